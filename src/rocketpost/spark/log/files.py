"""Segments of a commit log, read from outside: splits, and the records in them.

Segments are read by ``pread``, not mapped: a broker may truncate a file while it is read, which
would kill a process with a map. A split may begin anywhere. Its first record is found by its magic
code and by its position field, which must equal the actual position. A record belongs to the split
in which it begins. The end of the log is found beforehand by ``spark.log.end``; before it, bytes
that are not a record are damage.
"""

from __future__ import annotations

import enum
import errno
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from rocketpost.errors import CorruptRecord
from rocketpost.kernel.record_scan import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from rocketpost.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from rocketpost.spark.records.chunk import Chunk, find_records
from rocketpost.spark.records.fields import Ints, Mask, read_heads
from rocketpost.spark.records.numpy_fields import find_boundaries
from rocketpost.store.layout import parse_file_name

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Size of a chunk, which becomes a batch. Smaller batches cost more, here and in the JVM."""
HEAD_BYTES: Final = 8
SMALLEST: Final = 91
MAGICS: Final = (MAGIC_V1.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big"))
BLANK: Final = MAGIC_BLANK.to_bytes(4, "big")
_POSITION_AT: Final = 28
_BODY_LENGTH_AT: Final = 84
_V6_MORE: Final = 12
_OVERHEAD_MAX: Final = 92 + 2 * _V6_MORE + 2 * 32_767
_PROBE_BYTES: Final = 64 * 1024
_ALL: Final = 2**62


class OnCorrupt(enum.Enum):
    """The reaction to missing or damaged records."""

    FAIL = "fail"
    STOP = "stop"
    SKIP = "skip"


class Stopped(Exception):  # noqa: N818 - no error: the reader was told to end here
    """Raised when damage ends the reading."""


class Segment(NamedTuple):
    """A file of the commit log."""

    path: str
    start: int
    """The position of its first byte."""
    limit: int
    """Records begin before this byte; a blank record may end them earlier."""


class Split(NamedTuple):
    """Part of a segment: the records that begin from ``begin`` on, before ``end``."""

    segment: Segment
    begin: int
    end: int


def split_segment(
    segment: Segment, split_bytes: int, *, low: int = 0, high: int | None = None
) -> list[Split]:
    """Split a segment, or its bytes between two positions, into parts of equal size.

    A short last part would cost a whole task, and leave a core idle at the end.
    """
    first = max(0, low - segment.start)
    end = segment.limit if high is None else min(segment.limit, high - segment.start)
    size = max(0, end - first)
    count = math.ceil(size / split_bytes)
    bounds = [first + size * number // count for number in range(count)]
    return [Split(segment, *pair) for pair in itertools.pairwise([*bounds, end])]


def share_segments(
    segments: Sequence[Segment], share_bytes: int, *, low: int = 0, high: int | None = None
) -> list[tuple[Split, ...]]:
    """Share segments, or their bytes between two positions, out in equal parts.

    A part may reach from one segment into the next: if each segment was split for itself, a log of
    one segment and a bit would be one part more than the cores can read in the same time.
    """
    whole = [
        part
        for segment in segments
        for part in split_segment(segment, max(1, segment.limit), low=low, high=high)
    ]
    size = sum(part.end - part.begin for part in whole)
    count = math.ceil(size / share_bytes)
    shares: list[list[Split]] = []
    shared = end_of_share = 0  # bytes
    for part in whole:
        at = part.begin
        while at < part.end:
            if shared == end_of_share:
                shares.append([])
                end_of_share = size * len(shares) // count
            end = min(part.end, at + end_of_share - shared)
            shares[-1].append(Split(part.segment, at, end))
            shared += end - at
            at = end
    return [tuple(share) for share in shares]


def read_chunks(split: Split, on_corrupt: OnCorrupt) -> Iterator[Chunk]:
    """Yield the records of a split.

    Raises:
        CorruptRecord: A record is missing or damaged, and ``onCorrupt`` is ``fail``.
        Stopped: The same, and ``onCorrupt`` is ``stop``.
    """
    segment = split.segment
    try:
        file = OpenFile(segment.path)
    except FileNotFoundError:
        handle_missing_segment(segment, on_corrupt)
        return
    with file:
        step = _choose_step(split.end - split.begin)
        at = (
            find_first_record(file, segment, split.begin, split.end, step=step)
            if split.begin
            else 0
        )
        wanted = step
        while at is not None and at < segment.limit:
            data = file.read(at, wanted if at < split.end else SMALLEST)
            if at >= split.end and _begins_record(data, segment.start + at):
                return
            chunk, end = find_sound_records(data, segment.start + at, bytes_max=split.end - at)
            if len(chunk):
                yield chunk
                at += end
                wanted = _choose_step(split.end - at)
            elif data[4:8] == BLANK:
                return
            elif len(data) == wanted and (size := find_cut_record_size(data, segment.limit - at)):
                wanted = size
            else:
                where = f"position {segment.start + at} ({segment.path} byte {at})"
                handle_damage(f"no record at {where}", on_corrupt)
                at, wanted = find_first_record(file, segment, at + 1, split.end, step=step), step


def handle_missing_segment(segment: Segment, on_corrupt: OnCorrupt) -> None:
    """Handle a segment that is missing now; return if it expired or can be skipped.

    Raises:
        CorruptRecord: It did not expire: older segments exist, which would expire first.
        Stopped: The same, and ``onCorrupt`` is ``stop``.
    """
    starts = map(parse_file_name, os.listdir(os.path.dirname(segment.path)))
    if any(start is not None and start < segment.start for start in starts):
        handle_damage(f"{segment.path} is missing, although older segments exist", on_corrupt)


def _choose_step(left: int) -> int:
    """Return the number of bytes to read at once."""
    return min(CHUNK_BYTES, max(left, _PROBE_BYTES))


def handle_damage(what: str, on_corrupt: OnCorrupt) -> None:
    """Handle damage; return if it can be skipped.

    Raises:
        CorruptRecord: ``onCorrupt`` is ``fail``.
        Stopped: ``onCorrupt`` is ``stop``.
    """
    if on_corrupt is OnCorrupt.STOP:
        raise Stopped
    if on_corrupt is OnCorrupt.FAIL:
        raise CorruptRecord(f"{what}; onCorrupt=skip continues after it, onCorrupt=stop ends there")


def find_sound_records(data: bytes, position: int, *, bytes_max: int = _ALL) -> tuple[Chunk, int]:
    """Return the leading sound records in ``data``, and the end of the last of them.

    The first record begins with ``data``, at ``position`` of the log. Sound records have the right
    position, and lengths that add up to their sizes.
    """
    starts, end = find_records(data, bytes_max=bytes_max)
    chunk = Chunk(data, starts)
    count = chunk.fields.count
    is_true = chunk.fields.long("position") == starts[:count] + position
    if not is_true.all():
        count = int(np.argmin(is_true))
    if count == len(starts):
        return chunk, end
    return Chunk(data, starts[:count]), int(starts[count])


def check_records(data: bytes, starts: Ints, positions: Ints) -> Mask:
    """Return which records have the right position, and lengths that add up to their size.

    Those are safe to decode. Each must have a magic code, and a size within ``data``.
    """
    _, add_up = find_boundaries(data, starts)
    return np.asarray(add_up & (read_heads(data, starts)["position"] == positions), np.bool_)


def find_cut_record_size(data: bytes, left: int) -> int | None:
    """Return the size of a record that the end of the chunk cuts, if it is a record."""
    size = int.from_bytes(data[:4], "big", signed=True)
    if data[4:8] not in MAGICS or not len(data) < size <= left:
        return None
    flags = int.from_bytes(data[36:40], "big")
    more = sum(_V6_MORE for bit in (BORN_HOST_V6, STORE_HOST_V6) if flags & bit)
    at = _BODY_LENGTH_AT + more
    body_bytes = int.from_bytes(data[at : at + 4], "big", signed=True)
    # A wrong size must not cause a read of the rest of a segment at once.
    return size if 0 <= size - body_bytes <= _OVERHEAD_MAX else None


def _begins_record(data: bytes, position: int) -> bool:
    """Return whether the next split finds a record here, or has none to find."""
    if data[4:8] == BLANK:
        return True
    stated = int.from_bytes(data[_POSITION_AT : _POSITION_AT + 8], "big")
    return data[4:8] in MAGICS and stated == position


def next_position(segments: list[Segment], position: int) -> int:
    """Return the position after the record that begins at ``position``, or the next byte."""
    for segment in segments:
        at = position - segment.start
        if 0 <= at < segment.limit:
            with OpenFile(segment.path) as file:
                head = file.read(at, SMALLEST)
            size = int.from_bytes(head[:4], "big", signed=True)
            if _begins_record(head, position) and SMALLEST <= size <= segment.limit - at:
                return position + size
    return position + 1


def read_store_ms(segment: Segment, at: int) -> int | None:
    """Return the store time of the first record from byte ``at`` on; None if there is none."""
    try:
        file = OpenFile(segment.path)
    except FileNotFoundError:
        return None
    with file:
        place: int | None = at
        if at or file.read(4, 4) not in MAGICS:  # or the first record is damaged
            place = find_first_record(file, segment, at, segment.limit, step=_PROBE_BYTES)
        head = file.read(place, SMALLEST) if place is not None else b""
    if head[4:8] not in MAGICS or len(head) < SMALLEST:
        return None
    flags = int.from_bytes(head[36:40], "big")
    time_at = 56 + (_V6_MORE if flags & BORN_HOST_V6 else 0)
    return int.from_bytes(head[time_at : time_at + 8], "big", signed=True)


def bracket_time(segment: Segment, ms: int) -> tuple[int, int]:
    """Return two positions of a segment, close to each other, that bracket a time.

    All records before the first were stored before ``ms``, and no record from the second on was.
    Assumes that store times never decrease.
    """
    low, high = 0, segment.limit
    while high - low > _PROBE_BYTES:
        middle = (low + high) // 2
        found = read_store_ms(segment, middle)
        if found is not None and found < ms:
            low = middle
        else:
            high = middle
    return segment.start + low, segment.start + high


def find_first_record(
    file: OpenFile, segment: Segment, begin: int, end: int, *, step: int = CHUNK_BYTES
) -> int | None:
    """Return the start of the first record from ``begin`` on, before ``end``.

    Usually it is near, so the reads grow from a small size up to ``step``.
    """
    at = file.next_data(begin)
    size = min(step, _PROBE_BYTES)
    while at is not None and at < end:
        data = file.read(at, size)
        if len(data) < SMALLEST:
            return None
        for place in _find_candidates(data):
            if place >= end - at:
                return None
            stated = int.from_bytes(data[place + _POSITION_AT : place + 36], "big")
            if stated == segment.start + at + place:
                return at + place
        at = file.next_data(at + len(data) - SMALLEST + 1)
        size = min(step, 4 * size)
    return None


def _find_candidates(data: bytes) -> Iterator[int]:
    """Yield, in order, possible starts of records whose fixed fields are within ``data``."""
    bytes_ = np.frombuffer(data, np.uint8)
    if not bytes_[: len(data) // 8 * 8].view(np.uint64).any() and not any(data[-8:]):
        return  # preallocated, and not written yet
    magic = np.flatnonzero(
        (bytes_[4:-3] == MAGICS[0][0])
        & (bytes_[5:-2] == MAGICS[0][1])
        & (bytes_[6:-1] == MAGICS[0][2])
    )
    for place in magic[magic <= len(data) - SMALLEST].tolist():
        if data[place + 4 : place + 8] in MAGICS:
            yield place


class OpenFile:
    """A file open for reading."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def size(self) -> int:
        """Return the size of the file."""
        return os.fstat(self._descriptor).st_size

    def next_data(self, at: int) -> int | None:
        """Return the first byte from ``at`` on that is not in a hole of the file; None if none."""
        try:
            return os.lseek(self._descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            return at  # this file system does not report holes

    def read(self, at: int, count: int) -> bytes:
        """Return up to ``count`` bytes from ``at`` on."""
        return os.pread(self._descriptor, count, at)
