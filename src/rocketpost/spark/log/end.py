"""Start and end of a commit log, found once before any of it is read.

A store may belong to a running or a killed broker, or be a copy made while a broker ran. So the
last bytes of its log may be torn, and tasks that look for the end one after another would find
different ends. Therefore the driver finds it: the end of the sound records that follow the newest
message that a queue knows, with every body checked. An unfinished segment also ends the log, even
if later ones have records: the store is a copy made while the broker wrote, and no message after
the gap is shown without those in it. A broker that starts on such a copy keeps the later records
and reports the gap as damage (ADR 0046).
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from rocketpost.errors import StoreError
from rocketpost.kernel.record_scan import INVALID, scan_records
from rocketpost.spark.log.files import (
    BLANK,
    CHUNK_BYTES,
    HEAD_BYTES,
    MAGICS,
    SMALLEST,
    OpenFile,
    Segment,
    find_cut_record_size,
    find_first_record,
    find_sound_records,
)
from rocketpost.spark.records.chunk import find_records
from rocketpost.store.layout import Layout, parse_file_name

log = logging.getLogger(__name__)

_PAGE: Final = 4096
_TAILS: Final = (4096, 64 * 1024, 8 * 1024 * 1024)
_UNFINISHED_MAX: Final = 16
"""Number of last segments that may have been written while the store was copied."""
_ALL: Final = 2**62


def find_layout(path: str) -> Layout:
    """Return the layout of a store, given its root or its commit log.

    Raises:
        StoreError: There is no commit log, or it is not in segments.
    """
    root = path.rstrip("/") or "/"
    try:
        names = os.listdir(root)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    if any(name.startswith("dledger-") for name in names):
        raise StoreError(f"{path} is the store of a DLedger broker, which is not supported")
    if os.path.isdir(f"{root}/commitlog"):
        return Layout(root)
    if os.path.basename(root) == "commitlog":
        return Layout(os.path.dirname(root))
    raise StoreError(f"{path} is not a store directory: it has no commitlog")


def list_segments(layout: Layout, newest: int = -1) -> list[Segment]:
    """Return the segments of a log, in order, cut after the last complete record.

    Args:
        layout: The store.
        newest: The position of the newest message that a queue knows, if any.

    Raises:
        StoreError: The folder of segments cannot be read.
    """
    while True:
        try:
            return _cut_at_end(_drop_after_unfinished(_list_present(layout)), newest)
        except FileNotFoundError:
            continue  # it expired after it was listed


def _cut_at_end(found: list[Segment], newest: int) -> list[Segment]:
    if not found:
        return []
    last = found[-1]
    whole = [
        segment._replace(limit=_expected_size(segment, after)) for segment, after in pairwise(found)
    ]
    return [*whole, last._replace(limit=_find_end(last, newest - last.start))]


class Gap(NamedTuple):
    """A range of positions that no segment contains; the end is exclusive."""

    start: int
    end: int


def find_gaps(found: list[Segment]) -> list[Gap]:
    """Return the gaps between segments; segments before the first one have expired."""
    return [
        Gap(end, after.start)
        for segment, after in pairwise(found)
        if (end := segment.start + segment.limit) < after.start
    ]


def _list_present(layout: Layout) -> list[Segment]:
    """Return the segments that exist at one moment.

    The oldest ones may expire while names are read, so that one is listed and its successor is not.
    """
    while True:
        found = _list_once(layout)
        fronts = [
            segment.path
            for segment, after in pairwise(found)
            if segment.start + _expected_size(segment, after) < after.start
        ]
        if all(map(os.path.exists, fronts)):
            return found


def _list_once(layout: Layout) -> list[Segment]:
    try:
        starts = list(map(parse_file_name, os.listdir(layout.commit_log)))
    except OSError as error:
        raise StoreError(f"{layout.commit_log} cannot be read: {error.strerror}") from None
    found = []
    for start in sorted(start for start in starts if start is not None):
        path = layout.segment(start)
        with contextlib.suppress(FileNotFoundError):  # it expired after it was listed
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                found.append(Segment(path, start, status.st_size))
    return found


def _expected_size(segment: Segment, after: Segment) -> int:
    """Return the full size of a segment; a file may have been truncated."""
    room = after.start - segment.start
    # If files are missing between the two, it is the size of the adjacent file.
    return max(segment.limit, min(room, after.limit))


def _drop_after_unfinished(listed: list[Segment]) -> list[Segment]:
    """Return the segments up to the first unfinished one."""
    kept = listed
    for at in range(max(0, len(listed) - _UNFINISHED_MAX), len(listed) - 1):
        if not _is_cut(*listed[at : at + 2]) and _is_open(listed[at]):
            kept = listed[: at + 1]
            break
    # A copy is faster than the broker: only the last finished segment may be torn.
    if len(kept) > 1 and not _is_cut(*kept[-2:]) and _is_torn(kept[-2]):
        kept = kept[:-1]
    left_out = [each for each in listed[len(kept) :] if _has_records(each)]
    if left_out:
        log.warning(
            "the log ends in a segment that was not finished segment=%s left_out=%s",
            kept[-1].path,
            len(left_out),
        )
    return kept


def _is_cut(segment: Segment, after: Segment) -> bool:
    """Return whether a file was truncated: it lost records, but the log continues after it."""
    return segment.limit < _expected_size(segment, after)


def _has_records(segment: Segment) -> bool:
    with OpenFile(segment.path) as file:
        return file.read(4, 4) in MAGICS


def _is_open(segment: Segment) -> bool:
    """Return whether a segment has room for more records; a full one ends with a blank."""
    size = segment.limit
    with OpenFile(segment.path) as file:
        for count in _TAILS:
            data = file.read(max(0, size - count), count)
            at = data.rfind(BLANK)
            while at >= 4:
                if int.from_bytes(data[at - 4 : at], "big", signed=True) == len(data) - at + 4:
                    return False
                at = data.rfind(BLANK, 0, at)
            if count >= size:
                break
        if any(data[-HEAD_BYTES:]):
            return False  # truncated, or overwritten
        return _ends_unwritten(file, segment, max(0, size - len(data)), data)


def _is_torn(segment: Segment) -> bool:
    with OpenFile(segment.path) as file:
        return _find_torn_page(file, segment, segment.limit) is not None


def _find_torn_page(file: OpenFile, segment: Segment, end: int) -> int | None:
    """Return where records end, shortly before ``end``, in a page that was copied too early.

    Files are copied page by page. If a broker writes to the file at the same time, a page may be
    copied half empty and the next one full. Then a record is damaged, and one of its pages ends in
    zeros.
    """
    at = _find_covering(file, segment, max(0, end - _TAILS[1]), end)
    if at is None:
        return None
    data = file.read(at, end - at)
    _, stop, verdict = scan_records(data, 0, segment.start + at, count_max=_ALL)
    if verdict != INVALID:
        return None
    size = _stated_size(data[stop : stop + HEAD_BYTES])
    first = _PAGE - (at + stop) % _PAGE + stop
    last = max(first, stop + size + _PAGE - 1)
    for page_end in range(first, min(last + 1, len(data)), _PAGE):
        if not any(data[stop:page_end][-HEAD_BYTES:]) and any(data[page_end:]):
            return at + stop
    return None


def _find_covering(file: OpenFile, segment: Segment, place: int, end: int) -> int | None:
    """Return the start of the record that covers a byte, or of the next record, if any."""
    begin = max(0, place - _TAILS[2])
    at = find_first_record(file, segment, begin, end) if begin else 0
    if at is None or at >= place:
        return at
    wanted = place - at
    data = file.read(at, wanted + SMALLEST)
    starts, last = find_records(data, bytes_max=wanted)
    if last > wanted:
        return at + int(starts[-1])
    if last < wanted and last + _stated_size(data[last : last + HEAD_BYTES]) <= len(data):
        return find_first_record(file, segment, place, end)  # there is damage in between
    return at + last


def _stated_size(head: bytes) -> int:
    """Return the size field of the record, or 0 if there is no record."""
    return int.from_bytes(head[:4], "big", signed=True) if head[4:8] in MAGICS else 0


def _ends_unwritten(file: OpenFile, segment: Segment, begin: int, data: bytes) -> bool:
    """Return whether nothing or half a record follows the last records of a segment."""
    if not np.frombuffer(data, np.uint8).any():
        return True
    first = find_first_record(file, segment, begin, segment.limit) if begin else 0
    if first is None:
        return False
    at = first - begin
    _, end = find_sound_records(data[at:], segment.start + first)
    mark = data[at + end : at + end + HEAD_BYTES]
    return not any(mark) or mark[4:8] in MAGICS


def _find_end(segment: Segment, known: int) -> int:
    """Return the end of the last complete record of a segment.

    Args:
        segment: The last segment of the log.
        known: The start of a record, according to queue files.
    """
    with OpenFile(segment.path) as file:
        if 0 < known < segment.limit:
            head = file.read(known, SMALLEST)
            stated = int.from_bytes(head[28:36], "big")
            if head[4:8] in MAGICS and stated == segment.start + known:
                torn = _find_torn_page(file, segment, known)
                if torn is not None:
                    return torn
                end = _find_verified_end(file, segment, known)
                if end > known:
                    return end
        end = _find_verified_end(file, segment, _find_last_chunk(file, segment))
        # Torn bytes after that are left from before a broker truncated its log.
        torn = _find_torn_page(file, segment, segment.limit)
        return end if torn is None else min(end, torn)


def _find_last_chunk(file: OpenFile, segment: Segment) -> int:
    """Return the start of the last chunk of records, found from the first record on."""
    at, wanted, before = 0, CHUNK_BYTES, 0
    while at < segment.limit:
        data = file.read(at, wanted)
        chunk, end = find_sound_records(data, segment.start + at)
        if len(chunk):
            before, at, wanted = at, at + end, CHUNK_BYTES
        elif len(data) == wanted and (size := find_cut_record_size(data, segment.limit - at)):
            wanted = size
        else:
            break
    return before


def _find_verified_end(file: OpenFile, segment: Segment, at: int) -> int:
    """Return the end of the last complete record, reading from ``at`` on."""
    wanted = _TAILS[1]  # usually few records follow the known one
    while at < segment.limit:
        data = file.read(at, wanted)
        found, end, _ = scan_records(data, 0, segment.start + at, count_max=_ALL)
        if found:
            at, wanted = at + end, min(4 * wanted, CHUNK_BYTES)
        elif len(data) == wanted and (size := find_cut_record_size(data, segment.limit - at)):
            wanted = size
        else:
            break
    return at
