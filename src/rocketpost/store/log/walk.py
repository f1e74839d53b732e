"""Iteration over the records of the commit log, of all queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rocketpost.kernel.record_scan import BLANK, INVALID, Entry, scan_records
from rocketpost.model.ids import Position
from rocketpost.store.log.segmented_log import SegmentedLog
from rocketpost.store.recovery.resync import Resync

_COUNT: Final = 1024


def walk(segments: SegmentedLog, begin: int, end: int) -> Iterator[tuple[Position, memoryview]]:
    """Yield the records of [``begin``, ``end``) in order, except those that have expired.

    A record must begin at ``begin``, unless it has expired. Only the fields needed to find the next
    record are checked; damage is skipped.
    """
    for entry, record in walk_entries(segments, begin, end):
        yield Position(entry[0]), record


def walk_entries(
    segments: SegmentedLog, begin: int, end: int
) -> Iterator[tuple[Entry, memoryview]]:
    """Yield what :func:`walk` yields, with the fields of each record."""
    resync = Resync(segments)
    first = segments.first
    position = max(begin, first.start if first is not None else end)
    while position < end:
        segment = segments.find(position) or segments.first_from(position)
        if segment is None:
            return
        position = max(position, segment.start)
        view = segment.view()
        at = position - segment.start
        entries, at, verdict = scan_records(view, at, position, count_max=_COUNT, verify_crc=False)
        for entry in entries:
            if entry[0] >= end:
                return
            start = entry[0] - segment.start
            yield entry, view[start : start + entry[1]]
        position = segment.start + at
        if verdict == INVALID:
            following = resync.find(position, bytes_max=end - position)
            if following is None:
                return
            position = following
        elif verdict == BLANK or at == segment.size:
            position = segment.end
            segment.unmap()  # each map keeps a descriptor, and there may be more segments
