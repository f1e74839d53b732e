"""Intake of messages from the timer topic into the wheel: their slot and their due time.

A message that is due beyond the end of the wheel, or later than its record is sure to be kept,
waits for a part of the time and is then postponed again. After a crash, messages that already left
the wheel are skipped.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from rocketpost.broker.delivery import Records
from rocketpost.broker.timer.admission import TimerRules, Waiting, waiting_of
from rocketpost.broker.timer.copies import Copies
from rocketpost.broker.timer.target import MISSING_MS_MAX
from rocketpost.codec.record import Record
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.names import TIMER_TOPIC
from rocketpost.store.queue.files import ENTRY, ENTRY_BYTES, FILLER_SIZE
from rocketpost.store.timer.log import DEFAULT, RECALL, ROLL
from rocketpost.store.timer.store import TimerStore
from rocketpost.store.timer.values import Item

logger = logging.getLogger(__name__)

TAKE_COUNT_MAX: Final = 256


class TakenMessage(NamedTuple):
    """A message that is now in the wheel, and the place of its unit."""

    item: Item
    waiting: Waiting
    at: int


class Intake:
    """Takes messages from the timer topic. Owned by the event loop; waits for nothing.

    Args:
        is_indexed: Whether messages are found by key. If not, and the topic is read again,
            messages due before the last save count as delivered.
    """

    def __init__(
        self, *, store: Records, timers: TimerStore, copies: Copies, is_indexed: bool = True
    ) -> None:
        self._store = store
        self._timers = timers
        self._copies = copies
        self._done_before = () if is_indexed else (timers.done_before, timers.left_before)
        # Messages that waited for a missing topic may be left; their copies are looked for.
        self._left_before = timers.left_before[0], timers.left_before[1] - 2 * MISSING_MS_MAX

    def start(self) -> bool:
        """Correct the progress in the topic if the log was cut; return whether it was corrected."""
        queue = self._store.queue(TIMER_TOPIC, 0)
        if queue is None:
            return False
        offset = self._timers.queue_offset
        corrected = min(max(offset, int(queue.first)), int(queue.end))
        if corrected == offset:
            return False
        logger.warning("timer topic: progress corrected: saved=%s now=%s", offset, corrected)
        self._timers.queue_offset = corrected
        return True

    def take(self, rules: TimerRules, now_ms: int) -> list[TakenMessage] | None:
        """Take some messages into the wheel and return them; None if there are none to take.

        Raises:
            OSError: The timer log could not be written; nothing was taken.
        """
        queue = self._store.queue(TIMER_TOPIC, 0)
        if queue is None:
            return None
        is_corrected = self.start()
        offset = self._timers.queue_offset
        count = min(TAKE_COUNT_MAX, int(queue.end) - offset)
        data = queue.read(offset, count) if count > 0 else b""
        found: list[tuple[Item, Waiting]] = []
        for position, size, _ in ENTRY.iter_unpack(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]):
            if size == FILLER_SIZE or position in self._timers.known:
                each = None
            else:
                record = self._store.record_of(queue, offset, position, size)
                each = self._item(record, offset, rules, now_ms)
            if each is not None and not self._is_done(offset, each[1]):
                found.append(each)
            offset += 1
        if offset == self._timers.queue_offset:
            return [] if is_corrected else None
        items = [item for item, _ in found]
        places = self._timers.add(items, now_ms=now_ms) if items else []
        self._timers.queue_offset = offset
        return [TakenMessage(*each, at) for each, at in zip(found, places, strict=True)]

    def _is_done(self, offset: int, waiting: Waiting) -> bool:
        return any(_is_before(limits, offset, waiting) for limits in self._done_before)

    def record(self, position: int, size: int) -> Record | None:
        """Return the message of a unit; None if it is gone or another record is in its place."""
        record = self._store.record_at(position)
        if record is None or record.size != size or record.topic != TIMER_TOPIC:
            return None
        return record

    def _item(
        self, record: Record | None, offset: int, rules: TimerRules, now_ms: int
    ) -> tuple[Item, Waiting] | None:
        """Return the slot and due time of a message; None if it does not wait."""
        timers = self._timers
        if record is None:
            logger.error("timed message is gone or damaged: offset=%s", offset)
            return None
        properties = record.properties
        waiting = waiting_of(properties, timers.precision_ms)
        if waiting is None:
            logger.error(
                "message of the timer topic has no delivery time: position=%s", record.position
            )
            return None
        if _is_before(self._left_before, offset, waiting):
            return None
        if self._copies.exists(record, properties, waiting.topic):
            return None
        slot_ms, due_ms = waiting.slot_ms, waiting.due_ms
        magic = DEFAULT | (RECALL if waiting.recalls else 0)
        window_ms = rules.roll_window_ms
        if slot_ms - now_ms >= window_ms:
            far_ms = slot_ms - now_ms - window_ms
            step_ms = window_ms // 2 if far_ms < window_ms // 3 else window_ms
            slot_ms = due_ms = timers.slot_of(now_ms + step_ms)
            magic |= ROLL
        if slot_ms > timers.slot_ms_max:
            # After a long stop the wheel is still at that time; this message is postponed again.
            slot_ms = due_ms = timers.slot_ms_max
            magic |= ROLL
        slot_ms = max(slot_ms, timers.read_ms)
        due_ms = max(due_ms, slot_ms)
        if slot_ms == timers.read_ms:
            due_ms = max(due_ms, timers.cursor.due_ms)
        topic_hash = string_hash(waiting.topic)
        return Item(slot_ms, due_ms, magic, record.position, record.size, topic_hash), waiting


def _is_before(limits: tuple[int, int], offset: int, waiting: Waiting) -> bool:
    """Tell whether a message is before both an offset and a time."""
    return offset < limits[0] and waiting.slot_ms < limits[1]
