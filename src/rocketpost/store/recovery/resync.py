"""Search for the next sound record after damaged bytes of the commit log.

A damaged record still states its size, and most often the right one: if a sound record, a record
with a true head or the blank of the segment follows it, the damage ends there. Otherwise the bytes
are searched for the next sound record: magic, its own position, lengths and CRC must all agree.
Trying the size first also keeps out bytes that a sender made to look like a record.

The search reads each byte once. Bytes that look like records are checked by CRC, but only for a
limited amount of work; after that, long ones are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from rocketpost.codec.record import decode_record
from rocketpost.errors import CorruptRecord
from rocketpost.kernel.record_scan import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    Entry,
    parse_record,
)
from rocketpost.store.log.segment import Segment
from rocketpost.store.log.segmented_log import SegmentedLog

RECORD_BYTES_MIN: Final = 91
CRC_WORK_BYTES_MAX: Final = 256 * 1024 * 1024
"""Largest CRC work on bytes that only look like records, before long ones are skipped."""

_SHORT_BYTES_MAX: Final = 4096
_CHUNK_BYTES: Final = 1024 * 1024
_MAGIC: Final = b"\xda\xa3\x20"  # first bytes of both magics
_MAGIC_AT: Final = 4
_POSITION_AT: Final = 28
_HEAD: Final = Struct(">iI20xq")  # size, magic, own position
_MARK: Final = Struct(">iI")


class BadRange(NamedTuple):
    """Damaged bytes [``begin``, ``end``) within one segment."""

    begin: int
    end: int
    entry: Entry | None
    """The record there, if it is well-formed and only its CRC or checksum is wrong."""
    is_zero: bool
    """Whether all its bytes are zeros."""
    is_body_sound: bool = False
    """Whether the body of the record matches its CRC: the damage is elsewhere in the record."""


class Resync:
    """Finds sound records after damage. Used once, by one thread."""

    def __init__(self, segments: SegmentedLog, *, store_ms_min: int | None = None) -> None:
        self._segments = segments
        self.store_ms_min = store_ms_min
        """Store time before which records do not count: another broker has cut them off without
        erasing them. None if every sound record counts."""
        self._work_left = CRC_WORK_BYTES_MAX

    def find(self, position: int, *, bytes_max: int | None = None) -> int | None:
        """Return where the log continues after ``position``, at which no sound record begins.

        Args:
            position: A position within a segment.
            bytes_max: Largest number of bytes to search; None for all up to the end of the log.

        Returns:
            The start of a sound record or a blank; None if none follows.
        """
        segment = self._segments.find(position)
        assert segment is not None
        stop = None if bytes_max is None else position + bytes_max
        place = self._hop(segment, position)
        if place is not None:
            return place
        start = position + 1
        while segment is not None and (stop is None or segment.start < stop):
            place = self._search(segment, max(start, segment.start), stop)
            if place is not None:
                return place
            segment = self._segments.after(segment)
        return None

    def ranges(self, begin: int, end: int) -> Iterator[BadRange]:
        """Yield the damaged ranges of [``begin``, ``end``), one for each known record.

        Positions of missing segments belong to no range.
        """
        for segment in self._segments.between_from_thread(begin, end):
            at = max(begin, segment.start)
            stop = min(end, segment.end)
            while at < stop:
                following = self._next_head(segment, at, stop)
                view = segment.view()
                entry = parse_record(view, at - segment.start, at, False)
                if entry is not None and entry[1] != following - at:
                    entry = None
                part = view[at - segment.start : following - segment.start]
                is_body_sound = entry is not None and _has_sound_body(part)
                yield BadRange(at, following, entry, _is_zero(part), is_body_sound)
                at = following

    def _next_head(self, segment: Segment, at: int, stop: int) -> int:
        """Return the start of the next record with a true head, by the size of this one."""
        view = segment.view()
        size = _stated_size(view, at - segment.start)
        if size is not None and at + size < stop and _has_head(view, segment, at + size):
            return at + size
        return stop

    def _hop(self, segment: Segment, position: int) -> int | None:
        """Follow sizes from one true head to the next sound record; None if there is none."""
        view = segment.view()
        while True:
            size = _stated_size(view, position - segment.start)
            if size is None:
                return None
            position += size
            if self._is_sound(segment, position):
                return position
            if not _has_head(view, segment, position):
                return None

    def _is_sound(self, segment: Segment, position: int) -> bool:
        view = segment.view()
        at = position - segment.start
        if at == segment.size:
            following = self._segments.after(segment)
            return following is not None and self._is_record(following, following.start)
        if len(view) - at >= _MARK.size:
            size, magic = _MARK.unpack_from(view, at)
            if magic == MAGIC_BLANK:
                return bool(size == segment.size - at) and self.store_ms_min is None
        return self._is_record(segment, position)

    def _is_record(self, segment: Segment, position: int) -> bool:
        entry = parse_record(segment.view(), position - segment.start, position, True)
        if entry is None:
            return False
        return self.store_ms_min is None or entry[6] >= self.store_ms_min

    def _search(self, segment: Segment, begin: int, stop: int | None) -> int | None:
        end = segment.end if stop is None else min(segment.end, stop)
        for low, high in segment.data_ranges(begin - segment.start, end - segment.start):
            # The size is before the magic, and may be in a part that is reported as zeros.
            place = self._search_part(segment, max(low - _MAGIC_AT, begin - segment.start), high)
            if place is not None:
                return place
        return None

    def _search_part(self, segment: Segment, low: int, high: int) -> int | None:
        view = segment.view()
        for at in range(low, high, _CHUNK_BYTES):
            # The chunks overlap, so that a magic across the end of a chunk is found.
            chunk = bytes(view[at : at + _CHUNK_BYTES + len(_MAGIC) + _MAGIC_AT])
            hit = chunk.find(_MAGIC, _MAGIC_AT)
            while hit >= 0:
                place = segment.start + at + hit - _MAGIC_AT
                if place < segment.start + high and self._may_be_record(view, segment, place):
                    return place
                hit = chunk.find(_MAGIC, hit + 1)
        return None

    def _may_be_record(self, view: memoryview, segment: Segment, place: int) -> bool:
        if not _has_head(view, segment, place):
            return False
        size = _stated_size(view, place - segment.start) or 0
        if self._work_left < size and size > _SHORT_BYTES_MAX:
            return False
        if self._is_record(segment, place):
            return True
        self._work_left -= size
        return False


def _stated_size(view: memoryview, at: int) -> int | None:
    """Return the size stated by a record at ``at``; None if that is impossible."""
    if len(view) - at < RECORD_BYTES_MIN:
        return None
    (size, _) = _MARK.unpack_from(view, at)
    return size if RECORD_BYTES_MIN <= size <= len(view) - at else None


def _has_head(view: memoryview, segment: Segment, position: int) -> bool:
    """Tell whether the magic and the stated position at ``position`` are those of a record."""
    at = position - segment.start
    if len(view) - at < RECORD_BYTES_MIN:
        return False
    _, magic, stated = _HEAD.unpack_from(view, at)
    return stated == position and magic in (MAGIC_V1, MAGIC_V2)


def _has_sound_body(record: memoryview) -> bool:
    try:
        decode_record(record)
    except CorruptRecord:
        return False
    return True


def _is_zero(view: memoryview) -> bool:
    starts = range(0, len(view), _CHUNK_BYTES)
    return not any(bytes(view[at : at + _CHUNK_BYTES]).strip(b"\0") for at in starts)
