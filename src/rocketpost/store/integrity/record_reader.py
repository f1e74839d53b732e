"""Reads of records: those of a pull together, or one for the broker itself or for a query."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from rocketpost.codec.record import Record, decode_record
from rocketpost.errors import CorruptRecord
from rocketpost.kernel.queue_scan import gather_records
from rocketpost.kernel.record_scan import CHECKSUM_FAILS, NO_CHECKSUM, judge_checksum
from rocketpost.store.dispatch.dispatcher import Dispatcher
from rocketpost.store.integrity.read_check import SPAN_BYTES_MAX, ReadCheck, Unit
from rocketpost.store.log.commit_log import CommitLog
from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.store.queue.files import ENTRY_BYTES

Span = tuple[int, int]
"""Position and size of a part of the log."""


class RecordReader:
    """Decodes visible records and returns no damaged one. Belongs to the loop thread.

    Args:
        commit_log: Provides views of its bytes.
        dispatcher: Knows the end of the visible records.
        check: Tells sound records from damaged ones.
        require_checksum: Whether a record without a checksum property is damaged.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        dispatcher: Dispatcher,
        check: ReadCheck,
        *,
        require_checksum: bool,
    ) -> None:
        self._log = commit_log
        self._view = commit_log.view
        self.part_at = commit_log.part_at
        self._dispatcher = dispatcher
        self._check = check
        self.fresh_from = check.fresh_from
        self.was_checked = check.was_checked
        self._require_checksum = require_checksum

    def gather(
        self,
        queue: ConsumeQueue,
        offset: int,
        units: bytes | memoryview,
        wanted: AbstractSet[int],
        *,
        count_max: int,
        bytes_max: int,
    ) -> tuple[bytes, int, int] | None:
        """Return the records of queue entries, joined, if none of them needs a check.

        Args:
            queue: The queue.
            offset: The queue offset of the first entry.
            units: Its entries from there on; at least one.
            wanted: Tags codes to keep; empty means every entry.
            count_max: Maximum number of records.
            bytes_max: Maximum number of bytes; the first record may exceed it.

        Returns:
            The records, their number, and the number of entries scanned. None if a record must be
            checked, is in another file than the first one, or is not there.
        """
        position = int.from_bytes(units[:8], "big")
        part = self._log.part_at(position)
        end = offset + len(units) // ENTRY_BYTES
        if part is None or not self._check.trusts(queue, offset, end, position):
            return None
        return gather_records(units, wanted, count_max, bytes_max, *part)

    def cold_spans(self, queue: ConsumeQueue, offset: int, units: list[Unit]) -> list[Span]:
        """Return the parts of the log to read first, if records are neither trusted nor in memory.

        Args:
            queue: The queue.
            offset: The queue offset of ordinal 0.
            units: Entries, in the order of their ordinals; at least one.
        """
        (first, position, _), (last, last_position, last_bytes) = units[0], units[-1]
        if self._check.trusts(queue, offset + first, offset + last + 1, position):
            return []
        size = last_position + last_bytes - position
        spans = [(position, size)]
        if not 0 < size <= len(units) * SPAN_BYTES_MAX:
            spans = [(each_position, each_bytes) for _, each_position, each_bytes in units]
        return [] if all(self._log.is_cached(*span) for span in spans) else spans

    def record_at(self, position: int) -> Record | None:
        """Return the visible record at ``position``; None if none starts there or it is damaged."""
        visible_end = self._dispatcher.position
        head = self._view(position, 4)
        if head is None or position >= visible_end:
            return None
        is_fresh = self._check.is_fresh(position)
        if not is_fresh and not self._log.is_readable(position, 4):
            return None  # its queue is unknown; a read of that queue reports it
        size = int.from_bytes(head, "big", signed=True)
        if 0 < size <= visible_end - position and (
            is_fresh or self._log.is_readable(position, size)
        ):
            record = self._decode(self._view(position, size))
            if record is not None and record.position == position:
                return record
        self._check.report_at(position)
        return None

    def record_of(
        self, queue: ConsumeQueue, offset: int, position: int, size: int
    ) -> Record | None:
        """Return the record that a queue entry points to.

        Args:
            queue: The queue.
            offset: The queue offset of the entry.
            position: The record's position, by the entry.
            size: The record's size, by the entry.

        Returns:
            The record, even if the entry was damaged and could be mended; None if the record has
            expired or is damaged, or if the entry only fills a gap.
        """
        place = (queue.topic, queue.queue_id, offset)
        for is_urgent in (False, True):
            # A record just written is checked only if it is not the one of the entry.
            units = self._check.select_sound(*place, [(0, position, size)], is_urgent=is_urgent)
            if not units:
                return None
            record = self._decode(self._view(*units[0][1:]))
            if record is not None and (record.topic, record.queue_id, record.queue_offset) == place:
                return record
        return None

    def _decode(self, data: memoryview | None) -> Record | None:
        if data is None:
            return None
        try:
            record = decode_record(data)
        except CorruptRecord:
            return None
        end = len(data)
        verdict = judge_checksum(data, 0, end - len(record.properties_bytes), end)
        is_bad = verdict == CHECKSUM_FAILS or (verdict == NO_CHECKSUM and self._require_checksum)
        return None if is_bad else record
