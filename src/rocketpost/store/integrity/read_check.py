"""Checks of records before they are served, so that no reader gets a flipped bit.

A record is checked against the queue entry that points to it (``kernel.record_scan``) unless it
was written or checked less than an interval ago. Bytes just written come from the page cache, not
from the disk, and readers that keep up read nothing else. Failures are distinguished:

- the entry is damaged and its record is found: the entry is mended, the record is served;
- the record is damaged: it is added to the register of damage and skipped;
- the entry is damaged and its record is not found nearby: an ERROR line names it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from rocketpost.kernel.record_scan import find_unsound
from rocketpost.model.clock import Clock
from rocketpost.store.integrity.damage import UNREADABLE, Damage, DamageRegister
from rocketpost.store.integrity.record_evidence import (
    RECORD_BYTES_MIN,
    FoundRecord,
    Place,
    entry_code,
    is_blank,
    read_record,
    resembles,
    stated_place,
    why_unsound,
)
from rocketpost.store.log.commit_log import CommitLog
from rocketpost.store.log.segmented_log import SegmentedLog
from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.store.queue.files import FILLER_SIZE
from rocketpost.store.queue.table import QueueTable

logger = logging.getLogger(__name__)

Unit = tuple[int, int, int]
"""Ordinal relative to a queue offset, position, and size of a record."""

SEARCH_COUNT_MAX: Final = 2048
"""Largest number of records examined to find the one that a damaged entry meant."""
SPAN_BYTES_MAX: Final = 16 * 1024
"""Largest average span per record for which the whole range of a read is read into memory."""
OWNER_COUNT_MAX: Final = 64
"""Largest number of queues searched for the owner of a damaged record."""
LOST_COUNT_MAX: Final = 4096
"""Largest number of lost entries remembered, so that each is reported once."""
_BLANK_BYTES: Final = 8
_MASK: Final = 2**64 - 1


class ReadCheck:
    """Tells sound records from damaged ones. Belongs to the loop thread."""

    def __init__(
        self,
        *,
        commit_log: CommitLog,
        segments: SegmentedLog,
        queues: QueueTable,
        damage: DamageRegister,
        delays_ms: tuple[int, ...],
        clock: Clock,
        interval_ms: int,
        require_checksum: bool,
    ) -> None:
        self._log = commit_log
        self._segments = segments
        self._queues = queues
        self._damage = damage
        self._delays_ms = delays_ms
        self._clock = clock
        self._require_checksum = require_checksum
        self.interval_ms = interval_ms
        """Time for which a record that was written or checked is trusted; may be changed."""
        self._fresh_from = 0
        self._marked_ms = 0
        self._marked_end = 0
        self._lost: set[Place] = set()
        self.mended_count = 0
        """Number of damaged queue entries that were mended."""
        self.lost_count = 0
        """Number of damaged queue entries whose record could not be found."""

    def start_at(self, end: int) -> None:
        """Trust nothing before ``end``, the end of the recovered log."""
        self._fresh_from = self._marked_end = end
        self._marked_ms = self._clock.now_ms()

    def select_sound(
        self, topic: str, queue_id: int, offset: int, units: list[Unit], *, is_urgent: bool = False
    ) -> list[Unit]:
        """Return the entries whose records can be served.

        Args:
            topic: The topic.
            queue_id: The queue.
            offset: The queue offset of ordinal 0.
            units: Entries, in the order of their ordinals; at least one.
            is_urgent: Check trusted records too, because a record could not be read.
        """
        now_ms = self._clock.now_ms()
        if not 0 <= now_ms - self._marked_ms < self.interval_ms:
            self._move_mark(now_ms)
        if units[0][1] >= self._fresh_from and not is_urgent:
            return units
        queue = self._queues.get((topic, queue_id))
        if queue is None:  # the queue was just deleted
            return []
        begin, end = offset + units[0][0], offset + units[-1][0] + 1
        checked_from, checked_end, checked_ms = queue.checked
        is_trusted = 0 <= now_ms - checked_ms < self.interval_ms
        if is_trusted and checked_from <= begin and end <= checked_end and not is_urgent:
            return units
        unsound = self._find_unsound(queue, offset, units)
        if unsound:
            return self._resolve_all(queue, offset, units, set(unsound))
        if len(units) == end - begin:  # otherwise the entries in between would count as checked
            if is_trusted and begin <= checked_end and checked_from <= end:
                begin, end = min(begin, checked_from), max(end, checked_end)
                now_ms = checked_ms
            queue.checked = (begin, end, now_ms)
        return units

    def trusts(self, queue: ConsumeQueue, begin: int, end: int, position: int) -> bool:
        """Tell whether the records of a range of queue offsets may be served without a check.

        Args:
            queue: The queue.
            begin: The first queue offset.
            end: The queue offset after the last.
            position: The position of the first record.
        """
        now_ms, fresh_from = self.fresh_from()
        return position >= fresh_from or self.was_checked(queue, begin, end, now_ms)

    def fresh_from(self) -> tuple[int, int]:
        """Return the time now in ms, and the position from which on records are trusted now.

        Those records were written recently.
        """
        now_ms = self._clock.now_ms()
        if not 0 <= now_ms - self._marked_ms < self.interval_ms:
            self._move_mark(now_ms)
        return now_ms, self._fresh_from

    def was_checked(self, queue: ConsumeQueue, begin: int, end: int, now_ms: int) -> bool:
        """Tell whether the records of a range of queue offsets were found sound recently."""
        checked_from, checked_end, checked_ms = queue.checked
        return (
            checked_from <= begin
            and end <= checked_end
            and 0 <= now_ms - checked_ms < self.interval_ms
        )

    def is_fresh(self, position: int) -> bool:
        """Tell whether the record at ``position`` was written recently."""
        return position >= self.fresh_from()[1]

    def report_at(self, position: int) -> None:
        """Report the record at ``position``, which cannot be read, if an entry points to it.

        Clients may ask for any position, so a position without a record is no damage.
        """
        segment = self._segments.find(position)
        if segment is None or not segment.is_readable(position - segment.start, RECORD_BYTES_MIN):
            return
        stated = stated_place(segment.view(), position - segment.start, position)
        if stated is None:
            return
        queue_id, offset = stated
        owners = [
            queue
            for queue in self._queues
            if queue.queue_id == queue_id and queue.first <= offset < queue.end
        ]
        for queue in owners[:OWNER_COUNT_MAX]:
            entry = queue.entry(offset)
            if entry is not None and entry[0] == position:
                unit = (0, position, entry[1])
                self.select_sound(queue.topic, queue_id, offset, [unit], is_urgent=True)
                return

    def _move_mark(self, now_ms: int) -> None:
        """Distrust records older than the interval, or all of them if the clock was changed."""
        end = self._log.end
        passed_ms = now_ms - self._marked_ms
        is_recent = 0 <= passed_ms < 2 * self.interval_ms
        self._fresh_from = self._marked_end if is_recent else end
        self._marked_ms, self._marked_end = now_ms, end

    def _find_unsound(self, queue: ConsumeQueue, offset: int, units: list[Unit]) -> list[int]:
        topic = queue.topic.encode()
        first, (_, last, last_bytes) = units[0][1], units[-1]
        segment = self._segments.find(first)
        if segment is not None and segment is self._segments.find(last):
            span = last + last_bytes - first
            is_dense = 0 < span <= len(units) * SPAN_BYTES_MAX
            if is_dense and segment.is_readable(first - segment.start, span):
                return find_unsound(
                    segment.view(), segment.start, units, offset, queue.queue_id, topic,
                    self._require_checksum,
                )  # fmt: skip
        unsound = []
        for index, unit in enumerate(units):
            segment = self._segments.find(unit[1])
            if (
                segment is None
                or not segment.is_readable(unit[1] - segment.start, unit[2])
                or find_unsound(
                    segment.view(), segment.start, [unit], offset, queue.queue_id, topic,
                    self._require_checksum,
                )
            ):  # fmt: skip
                unsound.append(index)
        return unsound

    def _resolve_all(
        self, queue: ConsumeQueue, offset: int, units: list[Unit], unsound: set[int]
    ) -> list[Unit]:
        found = []
        for index, unit in enumerate(units):
            if index not in unsound:
                found.append(unit)
                continue
            place = self._resolve(queue, offset + unit[0], unit[1], unit[2])
            if place is not None:
                found.append((unit[0], *place))
        return found

    def _resolve(
        self, queue: ConsumeQueue, queue_offset: int, position: int, size: int
    ) -> tuple[int, int] | None:
        """Return position and size of the record of a queue offset whose entry does not match."""
        if size == FILLER_SIZE or self._damage.find_covering(position) is not None:
            return None
        wanted = (queue.topic, queue.queue_id, queue_offset)
        if wanted in self._lost:
            return None
        for candidate in _variants(position):
            if self._is_record_of(wanted, candidate):
                return self._mend(queue, queue_offset, candidate)
        if self._is_ours(queue, wanted, position, size):
            self._report(wanted, position, size)
            return None
        if position < self._log.first:  # the record has expired, and its entry soon does
            return None
        for candidate in self._between_neighbours(queue, queue_offset):
            if self._is_record_of(wanted, candidate):
                return self._mend(queue, queue_offset, candidate)
        self._report_lost(wanted, position)
        return None

    def _is_record_of(self, wanted: Place, position: int) -> bool:
        found = self._read(position)
        return found is not None and found.is_sound and found.place == wanted

    def _is_ours(self, queue: ConsumeQueue, wanted: Place, position: int, size: int) -> bool:
        """Tell whether the bytes at a position are the record of an entry, but damaged."""
        found = self._read(position)
        if found is not None and found.is_sound:
            # Either this record states a wrong place, or the entry points to another record.
            owner = self._queues.get((found.topic, found.queue_id))
            entry = owner.entry(found.queue_offset) if owner is not None else None
            return entry is None or entry[0] != position
        segment = self._segments.find(position)
        if segment is None or size < RECORD_BYTES_MIN or position + size > self._log.written:
            return False
        at = position - segment.start
        if segment.is_readable(at, size) and resembles(
            segment.view()[at : at + size], position, size, wanted
        ):
            return True
        before, after = self._neighbours(queue, wanted[2])
        return before <= position and position + size <= after

    def _neighbours(self, queue: ConsumeQueue, queue_offset: int) -> tuple[int, int]:
        """Return the end of the record before an offset, and the start of the one after it."""
        before = queue.entry(queue_offset - 1) if queue_offset > queue.first else None
        after = queue.entry(queue_offset + 1) if queue_offset + 1 < queue.end else None
        begin, end = self._log.first, self._log.written
        if before is not None and before[1] != FILLER_SIZE and begin <= before[0] < end:
            begin = before[0] + before[1]
        if after is not None and after[1] != FILLER_SIZE and begin <= after[0] < end:
            end = after[0]
        return begin, end

    def _between_neighbours(self, queue: ConsumeQueue, queue_offset: int) -> Iterator[int]:
        """Yield the positions of records between the neighbouring entries, up to a limit."""
        position, end = self._neighbours(queue, queue_offset)
        for _ in range(SEARCH_COUNT_MAX):
            segment = self._segments.find(position)
            if segment is None or position >= end:
                return
            found = self._read(position)
            if found is not None:
                yield position
                position += found.size
            elif not segment.is_readable(position - segment.start, _BLANK_BYTES):
                return
            elif is_blank(segment.view(), position - segment.start):
                position = segment.end
            elif (following := self._damage.next_sound(position)) > position:
                position = following
            else:
                return

    def _read(self, position: int) -> FoundRecord | None:
        segment = self._segments.find(position)
        if segment is None or not self._log.first <= position < self._log.written:
            return None
        at = position - segment.start
        if not segment.is_readable(at, RECORD_BYTES_MIN):
            return None
        size = int.from_bytes(segment.view()[at : at + 4], "big", signed=True)
        if size > RECORD_BYTES_MIN and not segment.is_readable(at, size):
            return None
        return read_record(segment.view(), at, position, require_checksum=self._require_checksum)

    def _mend(self, queue: ConsumeQueue, queue_offset: int, position: int) -> tuple[int, int]:
        segment, found = self._segments.find(position), self._read(position)
        assert segment is not None
        assert found is not None
        at = position - segment.start
        code = entry_code(found, segment.view()[at : at + found.size], self._delays_ms)
        is_mended = queue.mend_from_thread(queue_offset, position, found.size, code)
        self.mended_count += 1
        logger.error(
            "queue entry was damaged and %s topic=%s queue=%s offset=%s position=%s",
            "is mended" if is_mended else "cannot be written; its record is served",
            found.topic, found.queue_id, queue_offset, position,
        )  # fmt: skip
        return position, found.size

    def _report(self, wanted: Place, position: int, size: int) -> None:
        segment = self._segments.find(position)
        assert segment is not None
        at = position - segment.start
        end = min(position + max(size, 1), segment.end)
        reason = UNREADABLE
        if segment.is_readable(at, end - position):
            reason = why_unsound(segment.view()[at : end - segment.start], position, size, wanted)
        self._damage.report_from_thread(
            Damage(position, end, reason, *wanted, self._clock.now_ms(), "read")
        )

    def _report_lost(self, wanted: Place, position: int) -> None:
        if wanted in self._lost:
            return
        self.lost_count += 1
        if len(self._lost) < LOST_COUNT_MAX:
            self._lost.add(wanted)
        logger.error(
            "queue entry is damaged, its message cannot be read by queue topic=%s queue=%s"
            " offset=%s position=%s; the scrub of the commit log mends it if the record is there",
            *wanted, position,
        )  # fmt: skip


def _variants(position: int) -> list[int]:
    """Return a position, and the positions that differ from it in one bit."""
    unsigned = position & _MASK
    return [position, *(unsigned ^ (1 << bit) for bit in range(64))]
