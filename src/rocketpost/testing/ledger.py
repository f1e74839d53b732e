"""A ledger of a broker's promises, kept outside of it, and the checks of them.

A test records every message before it is sent, every acknowledgement, every refusal and every
message that a reader has seen. A *slot* is a topic, a queue and an offset. Whatever happens to the
broker:

- an acknowledged message is at its slot, complete, with its properties, and at no other slot;
- a slot that a reader has seen never shows another message, and never vanishes;
- messages of one stream (one connection) are in each queue in the order of sending, and none is
  missing before one that is present;
- no message is present that was not sent.

Messages carry their number in a property; the body is compared by its digest. The ledger knows
nothing of sockets; :mod:`rocketpost.testing.load` feeds it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

from rocketpost.codec.record import Record
from rocketpost.errors import RocketpostError

NUMBER_PROPERTY: Final = "NUMBER"
_SHOWN_MAX: Final = 20


class PromiseBroken(RocketpostError):  # noqa: N818 - named after what happened
    """The broker broke promises; the text lists them."""


class QueueSlot(NamedTuple):
    """A topic, a queue and an offset."""

    topic: str
    queue_id: int
    offset: int


class Noted(NamedTuple):
    """A message as it was sent to the broker."""

    number: int
    topic: str
    queue_id: int
    stream: int
    digest: bytes
    properties: dict[str, str]


class Counts(NamedTuple):
    """Numbers of messages by outcome."""

    sent: int
    acknowledged: int
    refused: int
    seen: int
    deleted: int


class Ledger:
    """Records what was sent, acknowledged and seen. Not thread-safe.

    Collects :attr:`violations`; :meth:`verify` raises them.
    """

    def __init__(self) -> None:
        self._noted: dict[int, Noted] = {}
        self._slot_of: dict[int, QueueSlot] = {}
        self._number_at: dict[QueueSlot, int] = {}
        self._acknowledged: set[int] = set()
        self._refused: set[int] = set()
        self._seen: set[QueueSlot] = set()
        self._doomed: dict[str, set[int]] = {}
        self._dead: set[int] = set()
        self._next_number = 0
        self._ends: dict[tuple[str, int], int] = {}
        self.violations: list[str] = []

    @property
    def counts(self) -> Counts:
        """The numbers so far."""
        return Counts(
            len(self._noted),
            len(self._acknowledged),
            len(self._refused),
            len(self._seen),
            len(self._dead),
        )

    @property
    def acknowledged(self) -> frozenset[int]:
        """The numbers of all acknowledged messages that no deletion affects."""
        touched = self._dead.union(*self._doomed.values())
        return frozenset(self._acknowledged - touched)

    def sample(self, rng: random.Random, count: int) -> list[int]:
        """Return some acknowledged messages, including the newest."""
        owed = sorted(self.acknowledged)
        return [*rng.sample(owed, min(count - 1, len(owed))), *owed[-1:]]

    def topic_of(self, number: int) -> str:
        """Return the topic of a message."""
        return self._noted[number].topic

    # -- recording

    def next_number(self) -> int:
        """Return the number of the next message."""
        self._next_number += 1
        return self._next_number

    def note(
        self,
        number: int,
        *,
        topic: str,
        queue_id: int,
        stream: int,
        body: bytes,
        properties: dict[str, str],
    ) -> None:
        """Record a message before its first byte is sent."""
        assert number not in self._noted
        self._noted[number] = Noted(
            number, topic, queue_id, stream, _digest(body), dict(properties)
        )

    def acknowledge(self, number: int, offset: int) -> None:
        """Record that the broker acknowledged a message at ``offset``."""
        noted = self._noted[number]
        if number in self._acknowledged:
            self._complain(f"message {number} was acknowledged twice")
        self._acknowledged.add(number)
        self._place(noted, QueueSlot(noted.topic, noted.queue_id, offset), "acknowledged")

    def refuse(self, number: int) -> None:
        """Record that the broker refused a message."""
        self._refused.add(number)

    def see(self, record: Record) -> None:
        """Record a message that a reader got."""
        slot = QueueSlot(record.topic, record.queue_id, record.queue_offset)
        self._seen.add(slot)
        text = record.properties.get(NUMBER_PROPERTY, "")
        noted = self._noted.get(int(text)) if text.isdecimal() else None
        if noted is None:
            self._complain(f"nobody sent the message at {_show(slot)}: number {text!r}")
            return
        if (noted.topic, noted.queue_id) != (slot.topic, slot.queue_id):
            self._complain(f"message {noted.number} is in another queue: {_show(slot)}")
        if _digest(bytes(record.body)) != noted.digest:
            self._complain(f"the body of message {noted.number} was altered at {_show(slot)}")
        lost = noted.properties.items() - record.properties.items()
        if lost:
            self._complain(f"message {noted.number} lost properties: {sorted(lost)}")
        if noted.number in self._dead:
            self._complain(f"message {noted.number} of a deleted topic came back: {_show(slot)}")
        self._place(noted, slot, "seen")

    def forget_unacknowledged(self) -> None:
        """Record that a copy takes the broker's place, which owes acknowledged messages only.

        Messages that were not acknowledged may be gone, even if a reader saw them.
        """
        gone = [
            slot for slot, number in self._number_at.items() if number not in self._acknowledged
        ]
        for slot in gone:
            del self._slot_of[self._number_at.pop(slot)]
            self._seen.discard(slot)
        self._ends.clear()
        for slot in self._number_at:
            queue = (slot.topic, slot.queue_id)
            self._ends[queue] = max(self._ends.get(queue, 0), slot.offset + 1)

    def begin_delete(self, topic: str) -> None:
        """Record that a topic is about to be deleted: its messages may be gone from now on."""
        numbers = {
            number
            for number, noted in self._noted.items()
            if noted.topic == topic and number not in self._dead
        }
        self._doomed.setdefault(topic, set()).update(numbers)

    def end_delete(self, topic: str) -> None:
        """Record that the deletion was acknowledged: earlier messages must never come back."""
        self._dead |= self._doomed.pop(topic, set())

    def settle_delete(self, topic: str, present: Iterable[int]) -> None:
        """Record what is left of a topic whose deletion a crash interrupted: all or nothing."""
        doomed = self._doomed.pop(topic, set())
        found = doomed.intersection(present)
        expected = doomed & self._acknowledged
        if not found:
            self._dead |= doomed
        elif expected - found:
            self._complain(
                f"a deletion of {topic} was half undone: "
                f"{len(found)} are back, {len(expected - found)} are not"
            )

    # -- checks

    def expected_end(self, topic: str, queue_id: int) -> int:
        """Return the offset after the last acknowledged or seen one of the queue."""
        return self._ends.get((topic, queue_id), 0)

    def check_queue(
        self,
        topic: str,
        queue_id: int,
        records: list[Record],
        *,
        first: int,
        may_have_gaps: bool = False,
    ) -> None:
        """Check a queue that was read from ``first`` to its end.

        Every offset must be present; then the messages and their order are checked.

        Args:
            topic: The topic.
            queue_id: The queue.
            records: The messages that were read.
            first: The offset from which they were read.
            may_have_gaps: Whether offsets may be missing of messages that nobody was promised or
                has seen, as after a power cut.
        """
        offsets = [record.queue_offset for record in records]
        end = max(first + len(records), offsets[-1] + 1 if offsets and may_have_gaps else 0)
        if not may_have_gaps and offsets != list(range(first, end)):
            self._complain(f"{topic}/{queue_id} has holes: {_gaps(offsets, first)}")
        for offset in sorted(set(range(first, end)).difference(offsets)):
            slot = QueueSlot(topic, queue_id, offset)
            if may_have_gaps and slot in self._number_at and self._is_owed(slot):
                self._complain(f"message {self._number_at[slot]} is lost: {_show(slot)} is a hole")
        for record in records:
            self.see(record)
        for slot in self._seen:
            if slot[:2] == (topic, queue_id) and slot.offset >= end and self._is_owed(slot):
                self._complain(f"a reader saw {_show(slot)}, now the queue ends at {end}")
        self._check_acknowledged(topic, queue_id, first, end)
        self._check_order(topic, queue_id, offsets)

    def check_absent(self, topic: str) -> None:
        """Check that a topic that does not exist owes no message."""
        owed = [n for n in self.acknowledged if self._noted[n].topic == topic]
        if owed:
            self._complain(f"the topic {topic} is gone, with acknowledged messages: {owed[:5]}")

    def check_lost(self) -> None:
        """Check that every acknowledged message of a topic that still exists was seen."""
        for number in self.acknowledged:
            if self._slot_of[number] not in self._seen:
                self._complain(f"acknowledged message {number} was never seen")

    def verify(self) -> None:
        """Raise if a promise was broken.

        Raises:
            PromiseBroken: The text has the first violations.
        """
        if self.violations:
            more = len(self.violations) - _SHOWN_MAX
            shown = "\n".join(self.violations[:_SHOWN_MAX])
            raise PromiseBroken(shown + (f"\n... and {more} more" if more > 0 else ""))

    # -- inside

    def _place(self, noted: Noted, slot: QueueSlot, how: str) -> None:
        before = self._number_at.setdefault(slot, noted.number)
        if before != noted.number:
            self._complain(
                f"{_show(slot)} meant message {before}, now {noted.number} is {how} there"
            )
        queue = (slot.topic, slot.queue_id)
        self._ends[queue] = max(self._ends.get(queue, 0), slot.offset + 1)
        place = self._slot_of.setdefault(noted.number, slot)
        if place != slot:
            self._complain(f"message {noted.number} is at {_show(place)} and at {_show(slot)}")

    def _is_owed(self, slot: QueueSlot) -> bool:
        number = self._number_at.get(slot)
        if number is None or number in self._dead:
            return False
        return number not in self._doomed.get(slot.topic, ())

    def _check_acknowledged(self, topic: str, queue_id: int, first: int, end: int) -> None:
        for number in self.acknowledged:
            slot = self._slot_of[number]
            if slot[:2] == (topic, queue_id) and not first <= slot.offset < end:
                self._complain(
                    f"acknowledged message {number} is lost: {_show(slot)} "
                    f"is outside [{first}, {end})"
                )

    def _check_order(self, topic: str, queue_id: int, offsets: list[int]) -> None:
        """Compare the order of the queue with that of each stream."""
        here: dict[int, list[int]] = {}
        for offset in offsets:
            number = self._number_at.get(QueueSlot(topic, queue_id, offset))
            if number is not None:
                here.setdefault(self._noted[number].stream, []).append(number)
        sent: dict[int, list[int]] = {}
        for number, noted in self._noted.items():
            if (noted.topic, noted.queue_id) == (topic, queue_id) and noted.stream in here:
                sent.setdefault(noted.stream, []).append(number)
        for stream, numbers in here.items():
            late = [pair for pair in pairwise(numbers) if pair[0] > pair[1]]
            if late:
                told = ", ".join(f"{after} after {before}" for before, after in late[:5])
                known = sorted(self._acknowledged & {each for pair in late[:5] for each in pair})
                self._complain(
                    f"stream {stream} is out of order in {topic}/{queue_id}: {told}; of these "
                    f"acknowledged: {known}"
                )
            excused = self._refused.union(self._dead, numbers)
            missing = [n for n in sent[stream] if n < numbers[-1] and n not in excused]
            if missing:
                self._complain(
                    f"stream {stream} in {topic}/{queue_id} lacks {missing[:5]} "
                    f"before {numbers[-1]}"
                )

    def _complain(self, text: str) -> None:
        self.violations.append(text)


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=12).digest()


def _show(slot: QueueSlot) -> str:
    return f"{slot.topic}/{slot.queue_id}@{slot.offset}"


def _gaps(offsets: list[int], first: int) -> str:
    for expected, offset in enumerate(offsets, first):
        if offset != expected:
            return f"{offset} follows {expected - 1}"
    return "none"
