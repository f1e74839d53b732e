"""A store directory, read from outside: segments cut into splits, and the records in them.

Segments are read by ``pread``, not mapped: a broker may cut a file while it is read, and a map
would die of that. A split may begin anywhere. Its first record is found by looking for the magic
code of a record whose stated position is where it lies; a record belongs to the split in which it
begins. The last segment is read up to its last whole record, since a broker may be writing it.
"""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from rocketpost.codec.record import decode_record
from rocketpost.errors import CorruptRecord, StoreError
from rocketpost.kernel.record_scan import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, is_torn
from rocketpost.spark.decode import walk
from rocketpost.spark.fields import Ints, numbers
from rocketpost.store.layout import Layout, parse_file_name

CHUNK_BYTES: Final = 2 * 1024 * 1024
"""Stays in a core's cache from the read to the batch that is made of it."""
_MAGICS: Final = (MAGIC_V1.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big"))
_BLANK: Final = MAGIC_BLANK.to_bytes(4, "big")
_HEAD_BYTES: Final = 8
_SMALLEST: Final = 91
_RECORD_BYTES_MAX: Final = 1 << 30


class OnCorrupt(enum.Enum):
    """What to do where no record is, though there should be one."""

    FAIL = "fail"
    STOP = "stop"
    SKIP = "skip"


class Segment(NamedTuple):
    """A file of the commit log."""

    path: str
    start: int
    """The position of its first byte in the log."""
    size: int
    is_last: bool


class Split(NamedTuple):
    """A part of a segment: records that begin from ``begin`` on, before ``end``."""

    segment: Segment
    begin: int
    end: int


class Chunk(NamedTuple):
    """Some records of a segment, as bytes and where each begins in them."""

    data: bytes
    starts: Ints


def layout_of(path: str) -> Layout:
    """Return the layout of a store, given its root or its commit log.

    Raises:
        StoreError: There is no commit log.
    """
    root = path.rstrip("/")
    if os.path.isdir(f"{root}/commitlog"):
        return Layout(root)
    if os.path.basename(root) == "commitlog" and os.path.isdir(root):
        return Layout(os.path.dirname(root))
    raise StoreError(f"{path} is no store directory: it has no commitlog")


def segments(layout: Layout) -> list[Segment]:
    """Return the segments of a log, in order."""
    found = []
    for name in os.listdir(layout.commit_log):
        start = parse_file_name(name)
        path = layout.segment(start) if start is not None else ""
        if start is not None and os.path.isfile(path):
            found.append((start, path))
    found.sort()
    last = len(found) - 1
    return [
        Segment(path, start, os.path.getsize(path), at == last)
        for at, (start, path) in enumerate(found)
    ]


def splits(segment: Segment, split_bytes: int) -> list[Split]:
    """Cut a segment; parts that nothing was written to are left out.

    A task costs Spark about as much as reading ten megabytes, and files are made at full size.
    """
    found: list[Split] = []
    try:
        file = _Opened(segment.path)
    except FileNotFoundError:
        return found  # it expired since it was listed
    with file:
        for begin in range(0, segment.size, split_bytes):
            end = min(begin + split_bytes, segment.size)
            written = file.next_data(begin)
            if written is None:
                break
            if written < end:
                found.append(Split(segment, begin, end))
    return found


def first_store_ms(segment: Segment) -> int | None:
    """Return when the first record of a segment was stored; None if there is none yet."""
    with _Opened(segment.path) as file:
        head = file.read(0, 128)
    if head[4:8] not in _MAGICS:
        return None
    starts = np.zeros(1, np.int64)
    born_v6 = int(numbers(head, starts + 36, 4)[0]) & 0x10
    return int(numbers(head, starts + (68 if born_v6 else 56), 8)[0])


def chunks(split: Split, on_corrupt: OnCorrupt) -> Iterator[Chunk]:
    """Yield the records of a split.

    Raises:
        CorruptRecord: No record lies where one should, and that is to fail.
    """
    segment = split.segment
    try:
        file = _Opened(segment.path)
    except FileNotFoundError:
        return  # it expired since it was listed
    with file:
        at = _aligned(file, segment, split.begin, split.end) if split.begin else 0
        wanted = CHUNK_BYTES
        while at is not None and at < split.end:
            data = file.read(at, wanted)
            starts, end = _records(data, segment, at, bytes_max=split.end - at)
            if len(starts):
                yield Chunk(data, starts)
                at, wanted = at + end, CHUNK_BYTES
            elif _is_end(data):
                return
            elif (size := _longer(data, segment.size - at)) is not None:
                wanted = size
            elif segment.is_last or on_corrupt is OnCorrupt.STOP:
                return
            elif on_corrupt is OnCorrupt.FAIL:
                raise CorruptRecord(
                    f"no record at position {segment.start + at} ({segment.path} byte {at}); "
                    "onCorrupt=skip goes on behind it, onCorrupt=stop ends there"
                )
            else:
                at, wanted = _aligned(file, segment, at + 1, split.end), CHUNK_BYTES


def _records(data: bytes, segment: Segment, at: int, *, bytes_max: int) -> tuple[Ints, int]:
    """Return where records begin in ``data``, and the place after the last of them."""
    starts, end = walk(data, bytes_max=bytes_max)
    wrong = np.flatnonzero(numbers(data, starts + 28, 8) != starts + segment.start + at)
    if len(wrong):
        end, starts = int(starts[wrong[0]]), starts[: wrong[0]]
    if segment.is_last and len(starts) and not _is_whole(data, int(starts[-1])):
        # A writer copies from front to back, so only the last record can be unfinished.
        end, starts = int(starts[-1]), starts[:-1]
    return starts, end


def _is_whole(data: bytes, start: int) -> bool:
    try:
        record = decode_record(data, start)
    except CorruptRecord:
        return False
    return not is_torn(record.topic.encode(), record.properties_bytes)


def _is_end(data: bytes) -> bool:
    """Whether a segment ends here: with its filler, or because nothing more was written."""
    return len(data) < _HEAD_BYTES or data[4:8] == _BLANK or not any(data[:_HEAD_BYTES])


def _longer(data: bytes, left: int) -> int | None:
    """Return the size of a record that was cut by the end of the chunk, if that is what it is."""
    size = int.from_bytes(data[:4], "big", signed=True)
    is_record = data[4:8] in _MAGICS and len(data) < size <= min(left, _RECORD_BYTES_MAX)
    return size if is_record else None


def _aligned(file: _Opened, segment: Segment, begin: int, end: int) -> int | None:
    """Return where the first record from ``begin`` on, before ``end``, begins."""
    at = file.next_data(begin)
    while at is not None and at < end:
        data = file.read(at, CHUNK_BYTES)
        if len(data) < _SMALLEST:
            return None
        for place in _candidates(data):
            if place >= end - at:
                return None
            stated = int.from_bytes(data[place + 28 : place + 36], "big")
            if stated == segment.start + at + place:
                return at + place
        at = file.next_data(at + len(data) - _SMALLEST + 1)
    return None


def _candidates(data: bytes) -> Iterator[int]:
    """Yield, in order, where records may begin whose fixed fields lie within ``data``."""
    bytes_ = np.frombuffer(data, np.uint8)
    if not bytes_[: len(data) // 8 * 8].view(np.uint64).any() and not any(data[-8:]):
        return  # made beforehand, and not written yet
    magic = np.flatnonzero(
        (bytes_[4:-3] == _MAGICS[0][0])
        & (bytes_[5:-2] == _MAGICS[0][1])
        & (bytes_[6:-1] == _MAGICS[0][2])
    )
    for place in magic[magic <= len(data) - _SMALLEST].tolist():
        if data[place + 4 : place + 8] in _MAGICS:
            yield place


class _Opened:
    """A file open for reading."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def next_data(self, at: int) -> int | None:
        """Return the first place from ``at`` on that is no hole; None if there is none."""
        try:
            return os.lseek(self._descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            return at  # this file system knows of no holes

    def read(self, at: int, count: int) -> bytes:
        """Return up to ``count`` bytes from ``at`` on."""
        return os.pread(self._descriptor, count, at)
