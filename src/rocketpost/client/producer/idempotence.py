"""Idempotent sends: stored once, however often they are repeated.

Each request carries the stamp of its message. After a failure it is repeated with the same stamp at
the same broker, until that answers or the time is over: only the broker that may have stored the
message can tell. It goes to another broker only if certainly no attempt was stored, now or when it
was sent before: nothing could be sent, or the broker refused it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from rocketpost.client.message import Message, SendResult
from rocketpost.client.producer.flight import OutgoingSend
from rocketpost.client.producer.numbering import BLOCK, Numbering, SequenceHomes, stamp_id
from rocketpost.client.producer.sender import Sender
from rocketpost.client.route_cache import PublishRoute
from rocketpost.client.session import Session
from rocketpost.codec.bodies.producers import ProducerState, decode_producer_states
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.faults import RequestCodeNotSupported
from rocketpost.codec.headers.client import GetProducerStates
from rocketpost.errors import ConnectionLost, NotSupported, RequestTimeout, RouteNotFound
from rocketpost.model.route import MessageQueue
from rocketpost.model.stamp import Stamp, parse_field

_PAUSE: Final = 0.1


class IdempotentSends:
    """Sends stamped messages. Belongs to the event loop."""

    def __init__(self, session: Session, sender: Sender, numbers: Numbering) -> None:
        self._session = session
        self._sender = sender
        self._numbers = numbers
        self._homes = SequenceHomes()
        self._asking = asyncio.Lock()
        self._routes: dict[str, PublishRoute] = {}

    def stamp(self, message: Message, sequence: int | None) -> tuple[Stamp, str]:
        """Return the stamp and the unique id of a message.

        Raises:
            MessageRefused: The sequence is missing, not allowed, or not a number.
        """
        stamp = self._numbers.stamp(message, sequence)
        return stamp, stamp_id(stamp)

    def peek(self, topic: str) -> PublishRoute | None:
        """Return the route of a topic whose brokers have reported their state; otherwise None."""
        route = self._session.routes.peek_publish(topic)
        return route if route is not None and self._routes.get(topic) is route else None

    async def prepare(self, topic: str, timeout: float) -> PublishRoute:
        """Return the route of a topic, after its brokers have reported what they have stored.

        Raises:
            NotSupported: A broker does not support idempotent producers.
            ClientError: A broker does not answer.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        route = self._session.routes.peek_publish(topic)
        if route is None:
            route = await self._session.routes.publish(topic, seconds=timeout)
        if self._routes.get(topic) is not route:
            async with self._asking:
                await self._ask_all(topic, route, deadline)
            self._routes[topic] = route
        return route

    def aim(
        self, out: OutgoingSend, stamp: Stamp, route: PublishRoute, wished: MessageQueue | None
    ) -> MessageQueue:
        """Stamp a request, and return its queue.

        Args:
            out: The request.
            stamp: The stamp of its first message.
            route: The topic's queues.
            wished: The preferred queue, in the order of the calls; any if None.
        """
        numbers, homes = self._numbers, self._homes
        queue = numbers.queue_of(stamp.sequence)
        if queue is None and wished is not None:
            queue = homes.at_home(out.topic, route, stamp.sequence, wished)
        if queue is None:
            queue = homes.choose(out.topic, route, stamp.sequence)
        after = None
        if wished is not None:
            after = numbers.follow(queue, stamp.sequence + out.count - 1)
        out.sequence = stamp.to_field(after)
        return queue

    async def send(
        self,
        out: OutgoingSend,
        messages: Sequence[Message],
        stamp: Stamp,
        queue: MessageQueue,
        *,
        is_ordered: bool,
        timeout: float,
    ) -> asyncio.Future[SendResult]:
        """Start the send of messages with the stamps from ``stamp`` on.

        A message that a broker has stored, or may have stored, goes to no other one.
        """
        numbers, first = self._numbers, stamp.sequence
        is_bound = numbers.queue_of(first) == queue or self._homes.of(first) == queue.broker_name
        watch = _Watch(numbers, messages, first, queue, is_ordered=is_ordered)
        try:
            future = await self._sender.send(
                out, queue, fixed=is_ordered or is_bound, timeout=timeout, watcher=watch
            )
        except BaseException:  # nothing was sent
            if is_ordered and out.sequence is not None:
                _, after = parse_field(out.sequence)
                numbers.unfollow(queue, first + out.count - 1, after)
            raise
        future.add_done_callback(watch.note_cancel)
        return future

    def ends(self, stamps: Sequence[Stamp], route: PublishRoute | None = None) -> set[int]:
        """Return the indexes of messages of a batch that must be the last of their request.

        After them the sequence is not consecutive, or the next message belongs to another broker,
        or would if it were sent alone: another run that divides its batches differently must use
        the same broker.

        Args:
            stamps: The stamps of the batch.
            route: The queues for its messages; None if their queue is given.
        """
        is_new = self._homes.are_empty and self._numbers.is_settled
        is_spread = route is not None and self._numbers.is_named and _is_spread(route)
        return {
            at
            for at, (stamp, later) in enumerate(pairwise(stamps))
            if later.sequence != stamp.sequence + 1
            or (is_spread and later.sequence % BLOCK == 0)
            or (not is_new and self._parts_after(stamp.sequence))
        }

    def put_back(self, messages: Sequence[Message], stamps: Sequence[Stamp]) -> None:
        """Keep the numbers of messages that were sent before and were not sent again."""
        for message, stamp in reversed(list(zip(messages, stamps, strict=True))):
            self._numbers.put_back(message, stamp.sequence)

    def repeat_all(
        self,
        messages: Sequence[Message],
        stamps: Sequence[Stamp],
        started: Sequence[tuple[OutgoingSend, MessageQueue, asyncio.Future[SendResult]]],
    ) -> None:
        """Keep the number of every message of a batch, in case the batch is sent again.

        A part of it failed or was given up; sending all of it again must not store the rest twice.

        Args:
            messages: The messages of the batch.
            stamps: Their stamps.
            started: The requests that were started, in order, with their queues and futures.
        """
        at = 0
        for request, queue, future in started:
            future.cancel()  # no caller waits for it any more
            is_stored = not future.cancelled() and future.exception() is None
            if is_stored or future.cancelled():
                queue = future.result().queue if is_stored else queue
                for index in range(at, at + request.count):
                    self._numbers.mark_unsettled(messages[index], stamps[index].sequence, queue)
            at += request.count
        self.put_back(messages[at:], stamps[at:])

    async def were_stored(
        self, topic: str, sequences: Sequence[int], timeout: float
    ) -> list[bool | None]:
        """Tell whether a broker had stored each sequence when asked; None if it is too old to tell.

        Raises:
            ClientError: A broker does not answer, or does not support idempotent producers.
        """
        await self.prepare(topic, timeout)
        homes = self._homes
        if homes.are_empty and not homes.horizon:
            return [False] * len(sequences)
        return [
            True if homes.of(each) is not None else None if each < homes.horizon else False
            for each in sequences
        ]

    async def asked_brokers(self, topic: str, timeout: float) -> frozenset[str]:
        """Return the brokers of the current route that have reported what they have stored.

        Raises:
            ClientError: A broker does not answer, or does not support idempotent producers.
        """
        await self._session.routes.refresh(topic)
        await self.prepare(topic, timeout)
        return self._homes.names

    async def last_sequence(self, topic: str) -> int | None:
        """Return the highest sequence of this epoch that a broker of the topic has stored.

        Raises:
            ClientError: A broker does not answer.
            Fault: A broker refuses.
        """
        route = await self._session.routes.publish(topic)
        names = dict.fromkeys(queue.broker_name for queue in route.queues)
        states = await asyncio.gather(*map(self._ask, names))
        return max(
            (
                state.last_sequence
                for state in states
                if state is not None
                and state.epoch == self._numbers.epoch
                and state.last_sequence is not None
            ),
            default=None,
        )

    # Inside.

    def _parts_after(self, sequence: int) -> bool:
        numbers, homes = self._numbers, self._homes
        return homes.of(sequence) != homes.of(sequence + 1) or (
            numbers.queue_of(sequence) != numbers.queue_of(sequence + 1)
        )

    async def _ask_all(self, topic: str, route: PublishRoute, deadline: float) -> None:
        names = dict.fromkeys(queue.broker_name for queue in route.queues)
        if self._numbers.is_named and (whole := self._session.routes.peek(topic)) is not None:
            # A broker that accepts no more messages may have stored some.
            names |= dict.fromkeys(each.broker_name for each in whole.broker_datas if each.master)
        for name in [name for name in names if name not in self._homes]:
            while name not in self._homes:
                try:
                    state = await self._ask(name)
                    self._learn(name, state)
                except (ConnectionLost, RequestTimeout, RouteNotFound):
                    if not self._numbers.is_named:
                        break  # it cannot have stored any of ours; sends will find another
                    if asyncio.get_running_loop().time() + _PAUSE >= deadline:
                        raise
                    await asyncio.sleep(_PAUSE)
                    await self._session.routes.refresh(topic)  # it may have another address now

    def _learn(self, name: str, state: ProducerState | None) -> None:
        if state is not None and state.epoch == self._numbers.epoch:
            self._homes.learn(name, state.runs, horizon=state.horizon)
        else:
            self._homes.learn(name, [])

    async def _ask(self, broker_name: str) -> ProducerState | None:
        header = GetProducerStates(producer_id=self._numbers.producer_id)
        address = self._session.routes.master(broker_name)
        try:
            response = await self._session.call(address, RequestCode.GET_PRODUCER_STATES, header)
        except RequestCodeNotSupported:
            raise NotSupported(
                f"the broker {broker_name} does not support idempotent producers; "
                "use one without idempotent=True, or a Rocketpost broker"
            ) from None
        states = decode_producer_states(response.body).producers
        return states[0] if states else None


class _Watch:
    """Follows the send of some messages, until their sender knows the outcome or gives up.

    Args:
        numbers: Keeps what is not settled.
        messages: The messages.
        first: The sequence of the first one.
        queue: The queue of the first attempt.
        is_ordered: Whether each message of the queue names the one before it.
    """

    def __init__(
        self,
        numbers: Numbering,
        messages: Sequence[Message],
        first: int,
        queue: MessageQueue,
        *,
        is_ordered: bool,
    ) -> None:
        self._numbers = numbers
        self._messages = messages
        self._first = first
        self._queue = queue
        self._is_ordered = is_ordered
        self._was_unsettled = numbers.queue_of(first) is not None
        self._is_given_up = False

    def move(self, queue: MessageQueue) -> None:
        """Note the queue of the next attempt."""
        self._queue = queue
        for sequence in range(self._first, self._first + len(self._messages)):
            self._numbers.move(sequence, queue)

    def end(self, queue: MessageQueue, *, is_stored: bool, is_known: bool) -> None:
        """Note the outcome, unless the sender has given up and so does not know it."""
        if self._is_ordered and not is_stored:
            self._numbers.break_off(queue)
        if self._is_given_up:
            return
        # This send stored nothing, but an earlier send of the same message may have.
        is_settled = is_stored or (is_known and not self._was_unsettled)
        for sequence, message in enumerate(self._messages, self._first):
            if is_settled:
                self._numbers.mark_settled(sequence)
            else:
                self._numbers.mark_unsettled(message, sequence, queue)

    def note_cancel(self, future: asyncio.Future[SendResult]) -> None:
        """Note that the sender has given up; the request may still be in flight."""
        if future.cancelled():
            self._is_given_up = True
            for sequence, message in enumerate(self._messages, self._first):
                self._numbers.mark_unsettled(message, sequence, self._queue)


def _is_spread(route: PublishRoute) -> bool:
    """Tell whether a topic has queues of several brokers."""
    first, *others = route.queues
    return any(queue.broker_name != first.broker_name for queue in others)
