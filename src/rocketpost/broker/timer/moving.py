"""Moves messages that are not due yet out of segments that are about to be deleted.

A waiting message is stored once more at the end of the timer topic, like one that is due beyond the
end of the wheel. Then the chain of its slot is rebuilt without the old unit, and the copy enters
the wheel like any message. While a slot is moved the service is paused, so no file ever has the
copy in the wheel beside its original.

A crash between the two steps leaves the old unit, and a copy that is not in the wheel yet. The next
start looks for such copies first, and removes their originals from the wheel. If the chain of a
slot cannot be rebuilt because the disk is full, it is tried again; until then no copy is taken.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rocketpost.broker.delivery import Records
from rocketpost.broker.timer.admission import copy_draft
from rocketpost.broker.timer.service import BATCH_BYTES_MAX, BATCH_COUNT_MAX, TimerService
from rocketpost.codec.record import Record
from rocketpost.errors import StoreError
from rocketpost.model import properties as names
from rocketpost.model.clock import Clock
from rocketpost.model.names import TIMER_TOPIC
from rocketpost.store.draft import Draft
from rocketpost.store.timer.log import RECALL, Unit
from rocketpost.store.timer.store import TimerStore
from rocketpost.store.timer.values import Cursor, Item

logger = logging.getLogger(__name__)

LOOKED_AT_ONCE: Final = 1024
_SHARE_MAX: Final = 2
"""Moved bytes may be one part in this many of the freed bytes; more would free too little."""


@dataclass
class Departure:
    """A slot that is being moved: the units to move, and those whose copies are being stored."""

    slot_ms: int
    leaving: deque[Unit]
    batch: list[Unit]


class MessageMover:
    """Decides which messages move, and makes their copies. Owned by the event loop; never waits."""

    def __init__(
        self,
        *,
        service: TimerService,
        store: Records,
        timers: TimerStore,
        clock: Clock,
        store_host: bytes,
    ) -> None:
        self._service = service
        self._store = store
        self._timers = timers
        self._clock = clock
        self._store_host = store_host
        self.moved = 0
        if timers.is_suspect:
            self._recover()

    def survey(self, position: int) -> Iterator[dict[int, int]]:
        """Find the slots that hold messages from before a position, and the size of those messages.

        Yields the result so far at intervals, and the full result at the end.
        """
        slots: set[int] = set()
        for count, (slot_ms, unit) in enumerate(self._logged_units(), 1):
            if unit.position < position:
                slots.add(slot_ms)
            if count % LOOKED_AT_ONCE == 0:
                yield {}
        # The log also has units that no longer wait: moved before, or in a rebuilt chain.
        found: dict[int, int] = {}
        for count, (slot_ms, unit) in enumerate(self._waiting_units(slots), 1):
            if unit.position < position and unit.position not in self._service.moved:
                found[slot_ms] = found.get(slot_ms, 0) + unit.size
            if count % LOOKED_AT_ONCE == 0:
                yield found
        yield found

    def check(self, found: dict[int, int], *, freed_bytes: int) -> None:
        """Check that moving the found messages frees enough space.

        Raises:
            StoreError: They would take too much of the freed space.
        """
        size = sum(found.values())
        if size > freed_bytes // _SHARE_MAX:
            raise StoreError(
                f"{size} of the {freed_bytes} bytes to delete are messages that still wait"
            )

    def begin(self, slot_ms: int, position: int) -> Departure | None:
        """Pause the service and return the messages that must leave a slot; None if there are none.

        Raises:
            StoreError: They are due now and will be delivered soon.
        """
        service, timers = self._service, self._timers
        old = [(at, unit) for at, unit in self._slot_units(slot_ms) if unit.position < position]
        leaving = [(at, unit) for at, unit in old if unit.position not in service.moved]
        if slot_ms <= max(timers.read_ms, self._clock.now_ms()):
            cursor = timers.cursor if slot_ms == timers.read_ms else Cursor()
            if any((service.due_of(unit), at) > cursor for at, unit in leaving):
                raise StoreError("messages that are due now are not delivered yet")
            return None
        if not old:
            return None
        service.is_held = True
        return Departure(slot_ms, deque(unit for _, unit in leaving), [])

    def drafts(self, departure: Departure) -> list[Draft]:
        """Return the next copies to store; empty once there are none."""
        drafts: list[Draft] = []
        size_sum = 0
        departure.batch = []
        while departure.leaving and len(drafts) < BATCH_COUNT_MAX and size_sum < BATCH_BYTES_MAX:
            unit = departure.leaving.popleft()
            record = self._service.record(unit.position, unit.size)
            if record is None:
                continue  # it is gone; the service reports that when it is due
            if self._service.was_delivered(record, due_ms=unit.due_ms):
                self._service.moved.add(unit.position)
                continue
            drafts.append(self._copy(record, unit))
            size_sum += unit.size
            departure.batch.append(unit)
        return drafts

    def note_stored(self, departure: Departure, count: int) -> None:
        """Note that the first ``count`` of the last copies are stored."""
        self._service.moved.update(unit.position for unit in departure.batch[:count])
        self.moved += min(count, len(departure.batch))
        departure.batch = []

    def end(self, departure: Departure) -> None:
        """Rebuild the chain of the slot without the moved units, and let the service continue.

        Raises:
            OSError: The timer log could not be read or written; see :meth:`rebuild_slots`.
        """
        service, slot_ms = self._service, departure.slot_ms
        service.is_held = False
        service.slots_to_rebuild.add(slot_ms)  # until it is known that it need not be
        units = [unit for _, unit in self._slot_units(slot_ms)]  # new ones may have arrived
        left = [unit for unit in units if unit.position in service.moved]
        if left:
            topics = [*filter(None, map(self._counted_topic, left))]
            items = [
                Item(slot_ms, unit.due_ms, unit.magic, unit.position, unit.size, unit.topic_hash)
                for unit in units
                if unit.position not in service.moved
            ]
            self._timers.add(items, now_ms=self._clock.now_ms(), anew=slot_ms)
            service.is_changed = True
            service.moved.difference_update(unit.position for unit in left)
            self._timers.waiting.subtract(topics)
        service.slots_to_rebuild.discard(slot_ms)

    def rebuild_slots(self) -> None:
        """Rebuild the chains of slots for which that failed before.

        Raises:
            OSError: Some of them still fail; try again later.
        """
        service = self._service
        for slot_ms in list(service.slots_to_rebuild):
            # Not while another slot is moved: the service must stay paused until that is done.
            if not service.is_held and not service.is_reading(slot_ms):
                self.end(Departure(slot_ms, deque(), []))

    def _recover(self) -> None:
        """Remove messages from the wheel that a crash left there beside their copies."""
        service = self._service
        moved = service.moved
        for position, size in (*self._untaken_entries(), *self._rebuilt_entries()):
            record = service.record(position, size)
            # A copy may itself have been moved while its original is still in the log.
            while record is not None and (original := self._original(record)) is not None:
                moved.add(original)
                record = self._store.record_at(original)
        if not moved:
            return
        service.slots_to_rebuild.update(
            slot for slot, unit in self._logged_units() if unit.position in moved
        )
        try:
            service.return_open_slot()  # only its old chain shows what is done of the first slot
            self.rebuild_slots()
        except OSError as error:
            logger.warning("moved messages stay in the wheel for now: reason=%s", error)

    def _original(self, copy: Record) -> int | None:
        """Return the position of the message that a record is a copy of; None if it is not a copy.

        RocketMQ's copies name none, any client may send their properties, and commits name a half.
        """
        position = copy.prepared_position
        is_marked = names.TIMER_ROLL_TIMES in copy.properties  # except copies without room for it
        if position >= copy.position or not (position or is_marked):
            return None
        original = self._store.record_at(position)
        if original is None:
            return position if is_marked else None
        is_same = original.topic == TIMER_TOPIC and _identity(original) == _identity(copy)
        return position if is_same else None

    def _untaken_entries(self) -> Iterator[tuple[int, int]]:
        queue = self._store.queue(TIMER_TOPIC, 0)
        if queue is not None:
            for offset in range(self._timers.queue_offset, int(queue.end)):
                entry = queue.entry(offset)
                if entry is not None:
                    yield entry[0], entry[1]

    def _rebuilt_entries(self) -> Iterator[tuple[int, int]]:
        """Yield the units of a wheel that was rebuilt from the log."""
        if self._timers.is_rebuilt:
            for _, unit in self._logged_units():
                yield unit.position, unit.size

    def _logged_units(self) -> Iterator[tuple[int, Unit]]:
        """Yield the log's units of slots that are still to come, whether in the wheel or not."""
        timers = self._timers
        for _, unit in timers.log.scan(timers.log.first, timers.log.end):
            # Slots of older units may have had another length.
            slot_ms = unit.slot_ms // timers.precision_ms * timers.precision_ms
            if slot_ms >= timers.read_ms:
                yield slot_ms, unit

    def _waiting_units(self, slots: Iterable[int]) -> Iterator[tuple[int, Unit]]:
        """Yield the units that wait in some slots."""
        for slot_ms in slots:
            for _, unit in self._timers.units_from(self._timers.wheel.get(slot_ms).last):
                yield slot_ms, unit

    def _slot_units(self, slot_ms: int) -> list[tuple[int, Unit]]:
        """Return the units of a slot, oldest first."""
        timers = self._timers
        return list(timers.units_from(timers.wheel.get(slot_ms).last))[::-1]

    def _counted_topic(self, unit: Unit) -> str | None:
        """Return the topic whose waiting messages include a unit; None if none does."""
        record = self._service.record(unit.position, unit.size)
        if record is None or unit.magic & RECALL:
            return None
        return record.properties.get(names.REAL_TOPIC, "")

    def _copy(self, record: Record, unit: Unit) -> Draft:
        return copy_draft(
            record,
            record.properties,
            topic=TIMER_TOPIC,
            queue_id=0,
            enqueued_ms=unit.written_ms,
            now_ms=self._clock.now_ms(),
            store_host=self._store_host,
        )


def _identity(record: Record) -> tuple[str | None, int, int]:
    return record.properties.get(names.UNIQUE_KEY), record.born_ms, record.body_crc
