"""Files of consume queues, read from outside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from rocketpost.spark.records.fields import Ints, Mask
from rocketpost.store.layout import Layout, file_name, parse_file_name, parse_queue_id

ENTRY: Final = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags", ">i8")])
_BATCH: Final = np.dtype(
    {"names": ["position", "size"], "formats": [">i8", ">i4"], "offsets": [0, 8], "itemsize": 46}
)
_FILLER_SIZE: Final = 0x7FFF_FFFF
_FILLER: Final = _FILLER_SIZE.to_bytes(4, "big")
_BLOCK_BITS: Final = 16

Entries = npt.NDArray[np.void]


class QueueFiles:
    """The files of one queue.

    Attributes:
        end: The offset after the last entry when this object was created.
        newest: The position of that entry's message; -1 if there was none.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._starts = _list_starts(directory)
        self._file_bytes = self._first_bytes()
        self.end, self.newest = self._last()

    @property
    def has_files(self) -> bool:
        """Whether files exist; a topic that was deleted and created again has none at first."""
        return bool(self._starts)

    @property
    def first(self) -> int:
        """The first offset that the files cover."""
        return self._starts[0] // ENTRY.itemsize if self._starts else 0

    @property
    def files(self) -> list[tuple[int, int]]:
        """The offsets of each file: the first, and the one after the last."""
        room = self._file_bytes // ENTRY.itemsize
        return [(s // ENTRY.itemsize, s // ENTRY.itemsize + room) for s in self._starts]

    def entries(self, first: int, end: int) -> Entries:
        """Return entries by offset; missing ones are zeros, as fillers are."""
        found = np.zeros(end - first, ENTRY)
        has_fillers = False
        for start, (file_first, file_end) in zip(self._starts, self.files, strict=True):
            low, high = max(first, file_first), min(end, file_end)
            if low >= high:
                continue
            data = self._read(start, low * ENTRY.itemsize - start, (high - low) * ENTRY.itemsize)
            some = np.frombuffer(data[: len(data) // ENTRY.itemsize * ENTRY.itemsize], ENTRY)
            has_fillers = has_fillers or _FILLER in data
            if len(some) == len(found) and not has_fillers:
                return some
            found[low - first : low - first + len(some)] = some
        if has_fillers:
            found[found["size"] == _FILLER_SIZE] = 0
        return found

    def find_entries(self, offsets: Ints) -> Entries:
        """Return the entries of some offsets, which may be any numbers."""
        every = np.zeros(len(offsets), ENTRY)
        if not self._starts:
            return every
        blocks = offsets >> _BLOCK_BITS
        if blocks[0] == blocks[-1] and (np.diff(offsets) == 1).all():
            return self.entries(int(offsets[0]), int(offsets[-1]) + 1)
        for block in np.unique(blocks).tolist():
            members = np.flatnonzero(blocks == block)
            some = offsets[members]
            low, high = int(some.min()), int(some.max())
            if high >= self.first and low < self.files[-1][1]:
                every[members] = self.entries(low, high + 1)[some - low]
        return every

    def _first_bytes(self) -> int:
        """Return the sizes of files; forget those that expired after they were listed."""
        while self._starts:
            try:
                return os.path.getsize(f"{self._directory}/{file_name(self._starts[0])}")
            except FileNotFoundError:
                del self._starts[0]
        return 0

    def _last(self) -> tuple[int, int]:
        """Return the offset after the last entry, and the position in that entry."""
        for start in reversed(self._starts):
            low, high = 0, self._file_bytes // ENTRY.itemsize
            while low < high:  # entries are filled from the front
                middle = (low + high) // 2
                if self._entry(start, middle) is None:
                    high = middle
                else:
                    low = middle + 1
            if low and (last := self._entry(start, low - 1)) is not None:
                return start // ENTRY.itemsize + low, last
        return self.first, -1

    def _entry(self, start: int, at: int) -> int | None:
        """Return the position in an entry of a file; None if it is empty."""
        data = self._read(start, at * ENTRY.itemsize, ENTRY.itemsize)
        if len(data) < ENTRY.itemsize or not any(data[8:12]):
            return None
        return int.from_bytes(data[:8], "big", signed=True)

    def _read(self, start: int, at: int, count: int) -> bytes:
        return _read(f"{self._directory}/{file_name(start)}", at, count)


def are_visible(
    found: Entries,
    offsets: Ints,
    positions: Ints,
    first: Ints | int,
    behind: Ints | int,
    alive: Ints | int,
) -> Mask:
    """Return which records are visible, from the entries of their offsets and the limits."""
    is_there = (found["position"] == positions) & (found["size"] > 0)
    is_pending = (found["size"] == 0) & (offsets >= first) & (positions >= behind)
    return np.asarray((is_there | is_pending) & (positions >= alive), np.bool_)


def list_queues(layout: Layout, topic: str) -> Iterator[tuple[int, QueueFiles]]:
    """Yield the queues of a topic."""
    directory = layout.topic_queues(topic)
    for name in _list_names(directory):
        queue_id = parse_queue_id(name)
        if queue_id is not None:
            yield queue_id, QueueFiles(f"{directory}/{name}")


def batch_positions(directory: str) -> Ints:
    """Return the positions of the records of a queue of batches, in order."""
    every = [np.zeros(0, np.int64)]
    for start in _list_starts(directory):
        data = _read(f"{directory}/{file_name(start)}", 0)
        entries = np.frombuffer(data[: len(data) // _BATCH.itemsize * _BATCH.itemsize], _BATCH)
        every.append(entries["position"][entries["size"] > 0].astype(np.int64))
    return np.concatenate(every)


def _list_starts(directory: str) -> list[int]:
    """Return the first bytes of the files of a queue, in order."""
    return sorted(s for s in map(parse_file_name, _list_names(directory)) if s is not None)


def _list_names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []  # the queue never existed, or its topic was deleted meanwhile


def _read(path: str, at: int, count: int | None = None) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return b""  # it expired after it was listed
    try:
        count = os.fstat(descriptor).st_size if count is None else count
        return os.pread(descriptor, count, at)
    finally:
        os.close(descriptor)
