"""Reads single records for the broker itself and for those who look messages up by position."""

from __future__ import annotations

from collections.abc import Callable

from rocketpost.codec.record import Record, decode_record
from rocketpost.errors import CorruptRecord
from rocketpost.store.consume_queue import ConsumeQueue
from rocketpost.store.dispatch import Dispatcher
from rocketpost.store.read_check import ReadCheck


class RecordReader:
    """Decodes visible records and returns no damaged one. Belongs to the loop thread.

    Args:
        view: Returns bytes of the log, None if they are gone.
        dispatcher: Knows up to where records are visible.
        check: Tells sound records from damaged ones.
    """

    def __init__(
        self,
        view: Callable[[int, int], memoryview | None],
        dispatcher: Dispatcher,
        check: ReadCheck,
    ) -> None:
        self._view = view
        self._dispatcher = dispatcher
        self._check = check

    def record_at(self, position: int) -> Record | None:
        """Return the visible record at ``position``; None if none starts there or it is damaged."""
        visible_end = self._dispatcher.position
        head = self._view(position, 4)
        if head is None or position >= visible_end:
            return None
        size = int.from_bytes(head, "big", signed=True)
        if 0 < size <= visible_end - position:
            record = _decode(self._view(position, size))
            if record is not None and record.position == position:
                return record
        self._check.report_at(position)
        return None

    def record_of(
        self, queue: ConsumeQueue, offset: int, position: int, size: int
    ) -> Record | None:
        """Return the record that a queue entry leads to.

        Args:
            queue: The queue.
            offset: The queue offset of the entry.
            position: Where the entry says that the record lies.
            size: Its size, by the entry.

        Returns:
            The record, also if the entry was damaged and could be mended; None if it is gone or
            damaged, or if the entry only fills a gap.
        """
        place = (queue.topic, queue.queue_id, offset)
        for is_urgent in (False, True):
            # What was written a moment ago is checked only if it is not what the entry means.
            units = self._check.sound(*place, [(0, position, size)], is_urgent=is_urgent)
            if not units:
                return None
            record = _decode(self._view(*units[0][1:]))
            if record is not None and (record.topic, record.queue_id, record.queue_offset) == place:
                return record
        return None


def _decode(data: memoryview | None) -> Record | None:
    try:
        return decode_record(data) if data is not None else None
    except CorruptRecord:
        return None
