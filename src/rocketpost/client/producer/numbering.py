"""Sequences of an idempotent producer's messages, and the sends with unknown outcomes.

Every message gets a sequence, and with it its unique id: sending the same sequence again sends the
same message. A send whose outcome is unknown stays unsettled: if the same message object is sent
again, it gets its old number and its old queue.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from rocketpost.client.checks import check_number
from rocketpost.client.message import Message
from rocketpost.client.route_cache import PublishRoute
from rocketpost.errors import ConfigError, MessageRefused
from rocketpost.model.route import MessageQueue
from rocketpost.model.stamp import NUMBER_MAX, Stamp, producer_id_problem

UNSETTLED_MAX: Final = 10_000
BLOCK: Final = 512
"""Number of consecutive sequences per broker, so that each has few gaps to remember."""

NO_SEQUENCE: Final = "a sequence needs a producer made with idempotent=True"
OWN_IDS: Final = "an idempotent producer makes the ids of its messages from their numbers"


def check_numbers(sequence: int | None, message_id: str | None, *, is_idempotent: bool) -> None:
    """Check the sequence and the id given for a message.

    Raises:
        MessageRefused: The producer does not accept them.
        ConfigError: The sequence is not a number.
    """
    if not is_idempotent:
        if sequence is not None:
            raise MessageRefused(NO_SEQUENCE)
    elif message_id is not None:
        raise MessageRefused(OWN_IDS)
    elif sequence is not None:
        check_number("sequence", sequence)


def stamp_id(stamp: Stamp) -> str:
    """Return the unique id of a message; the same for the same stamp, in any process.

    Its layout is that of ``model.unique_id``, with a hash instead of address and process; its time
    is the start of the month, since tools search from there on.
    """
    digest = blake2b(stamp.to_property().encode(), digest_size=12).hexdigest().upper()
    return f"{digest[:20]}00000000{digest[20:]}"


class Numbering:
    """Numbers the messages of one producer. Belongs to the event loop.

    Args:
        producer_id: The user's name for it, which outlives this process; a random one if None.
        epoch: Fences off lower epochs of the same id.

    Raises:
        ConfigError: The id is not allowed, or the epoch is not a number.
    """

    def __init__(self, producer_id: str | None, epoch: int) -> None:
        self.is_named = producer_id is not None
        if producer_id is None:
            producer_id = f"~{secrets.token_hex(12)}"
        elif problem := producer_id_problem(producer_id):
            raise ConfigError(problem)
        if not 0 <= epoch <= NUMBER_MAX:
            raise ConfigError(f"the epoch {epoch} is not a number from 0 to {NUMBER_MAX}")
        self.producer_id = producer_id
        self.epoch = epoch
        self._next = 0
        self._unsettled: dict[int, MessageQueue] = {}
        self._to_repeat: dict[int, tuple[Message, deque[int]]] = {}
        self._repeatable: set[int] = set()
        self._tails: dict[MessageQueue, int] = {}

    def stamp(self, message: Message, sequence: int | None) -> Stamp:
        """Return the stamp of a message to send now.

        Raises:
            MessageRefused: The sequence is missing, not to be given, or no number.
        """
        if sequence is None:
            if self.is_named:
                raise MessageRefused(
                    "a producer with a producer_id needs a sequence for each message: "
                    "send(message, sequence=...), send_batch(messages, first_sequence=...)"
                )
            sequence = self._find_repeated(message)
        elif not self.is_named:
            raise MessageRefused("a sequence needs a producer_id, which outlives this process")
        if not 0 <= sequence <= NUMBER_MAX:
            raise MessageRefused(f"the sequence {sequence} is not a number from 0 to {NUMBER_MAX}")
        return Stamp(self.producer_id, self.epoch, sequence)

    @property
    def is_settled(self) -> bool:
        """Whether the outcome of every send is known."""
        return not self._unsettled

    def queue_of(self, sequence: int) -> MessageQueue | None:
        """Return the queue of an unsettled message."""
        return self._unsettled.get(sequence)

    def mark_settled(self, sequence: int) -> None:
        """Record that a message is certainly stored, or certainly not.

        If its sender had given up before, it does not know; the message keeps its number until it
        is sent again.
        """
        if sequence not in self._repeatable:
            self._unsettled.pop(sequence, None)

    def move(self, sequence: int, queue: MessageQueue) -> None:
        """Note the queue of an unsettled message that has gone to another one."""
        if sequence in self._unsettled:
            self._unsettled[sequence] = queue

    def put_back(self, message: Message, sequence: int) -> None:
        """Keep the number of an unsettled message that was to be sent again, but was not."""
        if sequence in self._unsettled and not self.is_named and sequence not in self._repeatable:
            origin = message.origin
            self._repeatable.add(sequence)
            self._to_repeat.setdefault(id(origin), (origin, deque()))[1].appendleft(sequence)

    def mark_unsettled(self, message: Message, sequence: int, queue: MessageQueue) -> None:
        """Record that it is unknown whether a message is stored in ``queue``."""
        self._unsettled[sequence] = queue
        while len(self._unsettled) > UNSETTLED_MAX:
            del self._unsettled[next(iter(self._unsettled))]
        if self.is_named or sequence in self._repeatable:
            return
        origin = message.origin
        self._repeatable.add(sequence)
        self._to_repeat.setdefault(id(origin), (origin, deque()))[1].append(sequence)
        while len(self._to_repeat) > UNSETTLED_MAX:
            _, sequences = self._to_repeat.pop(next(iter(self._to_repeat)))
            self._repeatable.difference_update(sequences)

    # Order of messages.

    def follow(self, queue: MessageQueue, sequence: int) -> int | None:
        """Make a message the newest of ``queue``; return the sequence that must be stored first."""
        before = self._tails.get(queue)
        self._tails[queue] = sequence
        return before

    def unfollow(self, queue: MessageQueue, sequence: int, before: int | None) -> None:
        """Undo :meth:`follow` for a message that was not sent, if none follows it yet."""
        if self._tails.get(queue) == sequence:
            if before is None:
                del self._tails[queue]
            else:
                self._tails[queue] = before

    def break_off(self, queue: MessageQueue) -> None:
        """Let the next message of a queue follow none, because the previous one failed."""
        self._tails.pop(queue, None)

    def _find_repeated(self, message: Message) -> int:
        origin = message.origin
        known = self._to_repeat.get(id(origin))
        if known is not None:
            _, sequences = known
            while sequences:
                sequence = sequences.popleft()
                self._repeatable.discard(sequence)
                if not sequences:
                    del self._to_repeat[id(origin)]
                if sequence in self._unsettled:
                    return sequence
        sequence = self._next
        self._next += 1
        return sequence


class SequenceHomes:
    """The stored sequences of a producer, by broker. Belongs to the event loop."""

    def __init__(self) -> None:
        self._runs: dict[str, tuple[list[int], list[int]]] = {}
        self.horizon = 0
        """The sequence below which a broker no longer knows what it has stored."""
        self._layouts: dict[str, tuple[PublishRoute, list[list[MessageQueue]]]] = {}

    def __contains__(self, broker_name: str) -> bool:
        return broker_name in self._runs

    @property
    def are_empty(self) -> bool:
        """Whether no broker has stored any sequence."""
        return not any(starts for starts, _ in self._runs.values())

    @property
    def names(self) -> frozenset[str]:
        """Every broker that has reported its stored sequences."""
        return frozenset(self._runs)

    def learn(self, broker_name: str, runs: Sequence[tuple[int, int]], *, horizon: int = 0) -> None:
        """Record the stored sequences of a broker."""
        self.horizon = max(self.horizon, horizon)
        self._runs[broker_name] = [start for start, _ in runs], [end for _, end in runs]

    def of(self, sequence: int) -> str | None:
        """Return the broker that has stored a sequence, or None."""
        for broker_name, (starts, ends) in self._runs.items():
            at = bisect_right(starts, sequence) - 1
            if at >= 0 and sequence < ends[at]:
                return broker_name
        return None

    def choose(self, topic: str, route: PublishRoute, sequence: int) -> MessageQueue:
        """Return the queue of a message without a given one: brokers by blocks, queues in turn."""
        by_broker = self._layout(topic, route)
        home = self.of(sequence) if self._runs else None
        queues = by_broker[sequence // BLOCK % len(by_broker)]
        if home is not None:
            queues = next((each for each in by_broker if each[0].broker_name == home), queues)
        return queues[sequence % len(queues)]

    def at_home(
        self, topic: str, route: PublishRoute, sequence: int, wished: MessageQueue
    ) -> MessageQueue:
        """Return the preferred queue, or one of the broker that has stored the sequence already."""
        home = self.of(sequence) if self._runs else None
        if home is None or home == wished.broker_name:
            return wished
        return self.choose(topic, route, sequence)

    def _layout(self, topic: str, route: PublishRoute) -> list[list[MessageQueue]]:
        known = self._layouts.get(topic)
        if known is None or known[0] is not route:
            by_broker: dict[str, list[MessageQueue]] = {}
            for queue in route.queues:
                by_broker.setdefault(queue.broker_name, []).append(queue)
            known = self._layouts[topic] = (route, list(by_broker.values()))
        return known[1]
