"""Beginning and end of a commit log: settled once, before any of its parts is read.

A store may be running, killed, or a copy that was made while it ran; so the last bytes of its log
may be torn, and tasks that look for the end one after the other would find different ends. The
driver finds it: the end of the whole records that follow each other from the newest message on
that a queue knows, every body checked. A segment that was not finished ends the log too, even if
later ones have records: that is a copy made while the broker went on, and no message after the gap
is shown without those in it. A broker that starts on such a copy keeps the later records and
reports the gap as damage (ADR 0046).
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
    Opened,
    Segment,
    aligned,
    longer,
    records_in,
)
from rocketpost.spark.records.chunk import walk
from rocketpost.store.layout import Layout, parse_file_name

log = logging.getLogger(__name__)

_PAGE: Final = 4096
_TAILS: Final = (4096, 64 * 1024, 8 * 1024 * 1024)
_UNFINISHED_MAX: Final = 16
"""How many of the last segments may have been written while a store was copied."""
_ALL: Final = 2**62


def layout_of(path: str) -> Layout:
    """Return the layout of a store, given its root or its commit log.

    Raises:
        StoreError: There is no commit log, or it is kept in another way than in segments.
    """
    root = path.rstrip("/") or "/"
    try:
        names = os.listdir(root)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    if any(name.startswith("dledger-") for name in names):
        raise StoreError(f"{path} is the store of a DLedger broker, which is not read here")
    if os.path.isdir(f"{root}/commitlog"):
        return Layout(root)
    if os.path.basename(root) == "commitlog":
        return Layout(os.path.dirname(root))
    raise StoreError(f"{path} is no store directory: it has no commitlog")


def segments(layout: Layout, newest: int = -1) -> list[Segment]:
    """Return the segments of a log, in order, cut off where its last whole record ends.

    Args:
        layout: The store.
        newest: Where the newest message begins that a queue knows of, if any.

    Raises:
        StoreError: The folder of segments cannot be read.
    """
    while True:
        try:
            return _cut_off(_written(_listed(layout)), newest)
        except FileNotFoundError:
            continue  # it expired since it was listed


def _cut_off(found: list[Segment], newest: int) -> list[Segment]:
    if not found:
        return []
    last = found[-1]
    whole = [segment._replace(limit=_size(segment, after)) for segment, after in pairwise(found)]
    return [*whole, last._replace(limit=_end(last, newest - last.start))]


class Hole(NamedTuple):
    """Positions of a log, the second not included, that no segment has."""

    start: int
    end: int


def holes(found: list[Segment]) -> list[Hole]:
    """Return what is missing between segments; what lies before the first one has expired."""
    return [
        Hole(end, after.start)
        for segment, after in pairwise(found)
        if (end := segment.start + segment.limit) < after.start
    ]


def _listed(layout: Layout) -> list[Segment]:
    """Return the segments that are there, all of one moment.

    The oldest ones may expire while names are read, so that one is seen and its successor is not.
    """
    while True:
        found = _looked_at(layout)
        fronts = [
            segment.path
            for segment, after in pairwise(found)
            if segment.start + _size(segment, after) < after.start
        ]
        if all(map(os.path.exists, fronts)):
            return found


def _looked_at(layout: Layout) -> list[Segment]:
    try:
        starts = list(map(parse_file_name, os.listdir(layout.commit_log)))
    except OSError as error:
        raise StoreError(f"{layout.commit_log} cannot be read: {error.strerror}") from None
    found = []
    for start in sorted(start for start in starts if start is not None):
        path = layout.segment(start)
        with contextlib.suppress(FileNotFoundError):  # it expired since it was listed
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                found.append(Segment(path, start, status.st_size))
    return found


def _size(segment: Segment, after: Segment) -> int:
    """Return how long a segment should be: a file that was cut lacks what lies behind it."""
    room = after.start - segment.start
    # Where files are missing between the two it is the size of its neighbour.
    return max(segment.limit, min(room, after.limit))


def _written(listed: list[Segment]) -> list[Segment]:
    """Leave out segments behind the first that was not finished."""
    kept = listed
    for at in range(max(0, len(listed) - _UNFINISHED_MAX), len(listed) - 1):
        if not _is_cut(*listed[at : at + 2]) and _is_open(listed[at]):
            kept = listed[: at + 1]
            break
    # Who copies is faster than who writes: only the last segment that was finished may be torn.
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
    """Tell whether a file was cut: it has lost something, and what follows is still the log."""
    return segment.limit < _size(segment, after)


def _has_records(segment: Segment) -> bool:
    with Opened(segment.path) as file:
        return file.read(4, 4) in MAGICS


def _is_open(segment: Segment) -> bool:
    """Tell whether a segment has room for more; one that is full ends with a blank."""
    size = segment.limit
    with Opened(segment.path) as file:
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
            return False  # it was cut, or overwritten
        return _ends_unwritten(file, segment, max(0, size - len(data)), data)


def _is_torn(segment: Segment) -> bool:
    with Opened(segment.path) as file:
        return _torn(file, segment, segment.limit) is not None


def _torn(file: Opened, segment: Segment, end: int) -> int | None:
    """Return where records break off, shortly before ``end``, in a page that was copied too early.

    Files are copied page by page. Of one that a broker writes to at the same time, a page may come
    half empty and the next one full: a record is damaged, and a page that it lies in ends in zeros.
    """
    at = _covering(file, segment, max(0, end - _TAILS[1]), end)
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


def _covering(file: Opened, segment: Segment, place: int, end: int) -> int | None:
    """Return where the record begins that a place lies in; else the next one, if there is any."""
    begin = max(0, place - _TAILS[2])
    at = aligned(file, segment, begin, end) if begin else 0
    if at is None or at >= place:
        return at
    wanted = place - at
    data = file.read(at, wanted + SMALLEST)
    starts, last = walk(data, bytes_max=wanted)
    if last > wanted:
        return at + int(starts[-1])
    if last < wanted and last + _stated_size(data[last : last + HEAD_BYTES]) <= len(data):
        return aligned(file, segment, place, end)  # damage lies in between
    return at + last


def _stated_size(head: bytes) -> int:
    """Return how long a record says that it is; 0 of what is none."""
    return int.from_bytes(head[:4], "big", signed=True) if head[4:8] in MAGICS else 0


def _ends_unwritten(file: Opened, segment: Segment, begin: int, data: bytes) -> bool:
    """Tell whether the last records of a segment are followed by nothing, or by half a record."""
    if not np.frombuffer(data, np.uint8).any():
        return True
    first = aligned(file, segment, begin, segment.limit) if begin else 0
    if first is None:
        return False
    at = first - begin
    _, end = records_in(data[at:], segment.start + first)
    mark = data[at + end : at + end + HEAD_BYTES]
    return not any(mark) or mark[4:8] in MAGICS


def _end(segment: Segment, known: int) -> int:
    """Return the byte of a segment after its last whole record.

    Args:
        segment: The last one of the log.
        known: The byte at which a record begins, as the files of queues say.
    """
    with Opened(segment.path) as file:
        if 0 < known < segment.limit:
            head = file.read(known, SMALLEST)
            stated = int.from_bytes(head[28:36], "big")
            if head[4:8] in MAGICS and stated == segment.start + known:
                torn = _torn(file, segment, known)
                if torn is not None:
                    return torn
                end = _verified(file, segment, known)
                if end > known:
                    return end
        end = _verified(file, segment, _nearly(file, segment))
        # What is torn behind that is left from before a broker cut its log off.
        torn = _torn(file, segment, segment.limit)
        return end if torn is None else min(end, torn)


def _nearly(file: Opened, segment: Segment) -> int:
    """Return where the last chunk of records begins, walking from the first one."""
    at, wanted, before = 0, CHUNK_BYTES, 0
    while at < segment.limit:
        data = file.read(at, wanted)
        chunk, end = records_in(data, segment.start + at)
        if len(chunk):
            before, at, wanted = at, at + end, CHUNK_BYTES
        elif len(data) == wanted and (size := longer(data, segment.limit - at)):
            wanted = size
        else:
            break
    return before


def _verified(file: Opened, segment: Segment, at: int) -> int:
    """Return the place after the last whole record, reading from ``at`` on."""
    wanted = _TAILS[1]  # little follows what is known, as a rule
    while at < segment.limit:
        data = file.read(at, wanted)
        found, end, _ = scan_records(data, 0, segment.start + at, count_max=_ALL)
        if found:
            at, wanted = at + end, min(4 * wanted, CHUNK_BYTES)
        elif len(data) == wanted and (size := longer(data, segment.limit - at)):
            wanted = size
        else:
            break
    return at
