"""Which records of a log a consumer would get: those that a consume queue points at.

A log also holds what no queue has: messages of topics that were deleted, perhaps made again since,
and marks of old transactions. The files of a queue may be behind the log of a running broker; what
they do not cover yet counts as visible.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rocketpost.codec.bodies.topic import decode_topic_table
from rocketpost.errors import RocketpostError, StoreError
from rocketpost.model.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rocketpost.spark.fields import Ints
from rocketpost.store.layout import Layout, file_name, is_queue, parse_file_name, parse_queue_id

_ENTRY: Final = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags", ">i8")])
_FILLER_SIZE: Final = 0x7FFF_FFFF
_SMALL_CODES: Final = 0x7FFF

Mask = npt.NDArray[np.bool_]
Entries = npt.NDArray[np.void]


class QueueFiles:
    """The files of one queue, looked at from outside."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        names = os.listdir(directory) if os.path.isdir(directory) else []
        self._starts = sorted(s for s in map(parse_file_name, names) if s is not None)
        self._file_bytes = 0
        if self._starts:
            self._file_bytes = os.path.getsize(f"{directory}/{file_name(self._starts[0])}")

    @property
    def first(self) -> int:
        """The first offset that the files cover."""
        return self._starts[0] // _ENTRY.itemsize if self._starts else 0

    def entries(self, first: int, end: int) -> Entries:
        """Return entries by offset; those that are not there are zeros."""
        found = np.zeros(end - first, _ENTRY)
        for start in self._starts:
            low = max(first, start // _ENTRY.itemsize)
            high = min(end, (start + self._file_bytes) // _ENTRY.itemsize)
            if low >= high:
                continue
            data = self._read(start, low * _ENTRY.itemsize - start, (high - low) * _ENTRY.itemsize)
            some = np.frombuffer(data[: len(data) // _ENTRY.itemsize * _ENTRY.itemsize], _ENTRY)
            found[low - first : low - first + len(some)] = some
        return found

    def spans(self) -> list[tuple[int, int]]:
        """Return, for each file, the positions between which all of its messages lie."""
        found = []
        for start in self._starts:
            data = self._read(start, 0, self._file_bytes)
            entries = np.frombuffer(data[: len(data) // _ENTRY.itemsize * _ENTRY.itemsize], _ENTRY)
            # Empty entries are zeros, and what fills a gap says position 0 and the largest size.
            real = entries["position"][(entries["size"] > 0) & (entries["size"] < _FILLER_SIZE)]
            if len(real):
                found.append((int(real.min()), int(real.max())))
        return found

    def newest(self) -> int:
        """Return the position of the last message; -1 if there is none."""
        for start in reversed(self._starts):
            low, high = 0, self._file_bytes // _ENTRY.itemsize
            while low < high:  # entries are filled from the front
                middle = (low + high) // 2
                if self._entry(start, middle) is None:
                    high = middle
                else:
                    low = middle + 1
            if low and (last := self._entry(start, low - 1)) is not None:
                return last
        return -1

    def _entry(self, start: int, at: int) -> int | None:
        """Return the position that an entry of a file says; None if it is empty."""
        data = self._read(start, at * _ENTRY.itemsize, _ENTRY.itemsize)
        if len(data) < _ENTRY.itemsize or not any(data[8:12]):
            return None
        return int.from_bytes(data[:8], "big", signed=True)

    def _read(self, start: int, at: int, count: int) -> bytes:
        try:
            descriptor = os.open(f"{self._directory}/{file_name(start)}", os.O_RDONLY)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(descriptor, count, at)
        finally:
            os.close(descriptor)


class Visibility:
    """What consumers see of one store. Not thread-safe: belongs to one task."""

    def __init__(self, layout: Layout, known: frozenset[str]) -> None:
        self._layout = layout
        self._known = known
        self._queues: dict[tuple[str, int], QueueFiles] = {}

    def of(
        self, topics: pa.Array, queue_ids: Ints, offsets: Ints, positions: Ints, sys_flags: Ints
    ) -> Mask:
        """Return which of some records are visible, given their fields."""
        kinds = sys_flags & TRANSACTION_MASK
        visible: Mask = (kinds != TRANSACTION_PREPARED) & (kinds != TRANSACTION_ROLLBACK)
        coded = topics.dictionary_encode()
        queues = (coded.indices.to_numpy().astype(np.int64) << 32) + (queue_ids & 0xFFFF_FFFF)
        pairs, groups = _grouped(queues)
        for pair, members in zip(pairs, groups, strict=True):
            visible[members] &= self._in_queue(
                coded.dictionary[pair >> 32].as_py(),
                pair & 0xFFFF_FFFF,
                offsets[members],
                positions[members],
            )
        return visible

    def _in_queue(self, topic: str, queue_id: int, offsets: Ints, positions: Ints) -> Mask:
        if topic not in self._known or not is_queue(topic, queue_id):
            return np.zeros(len(offsets), np.bool_)
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = QueueFiles(self._layout.queue(topic, queue_id))
            self._queues[topic, queue_id] = queue
        low, high = int(offsets.min()), int(offsets.max())
        entries = queue.entries(low, high + 1)
        at, sizes = entries["position"], entries["size"]
        if high - low + 1 != len(offsets) or (np.diff(offsets) != 1).any():
            at, sizes = at[offsets - low], sizes[offsets - low]
        is_there = (at == positions) & (sizes > 0)
        is_pending = (sizes == 0) & (offsets >= queue.first)
        return np.asarray(is_there | is_pending, np.bool_)


def _grouped(values: Ints) -> tuple[list[int], Sequence[Ints | slice]]:
    """Return the distinct values, and where each is found, in order."""
    coded = pa.array(values).dictionary_encode()
    distinct = coded.dictionary.to_pylist()
    if len(distinct) == 1:
        return distinct, [slice(None)]
    codes = coded.indices.to_numpy()
    if len(distinct) <= _SMALL_CODES:
        codes = codes.astype(np.int16)  # sorted in linear time
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes, minlength=len(distinct))
    return distinct, np.split(order, np.cumsum(counts)[:-1])


def known_topics(layout: Layout) -> frozenset[str]:
    """Return the topics of a store: those with queues, and those with a configuration.

    Raises:
        StoreError: The table of topics cannot be read.
    """
    queues = layout.consume_queues
    topics = set(os.listdir(queues)) if os.path.isdir(queues) else set()
    path = f"{layout.config}/topics.json"
    if os.path.isfile(path):
        with open(path, "rb") as file:
            try:
                topics |= set(decode_topic_table(file.read()).topic_config_table)
            except RocketpostError as error:
                raise StoreError(f"{path} cannot be read: {error}") from error
    return frozenset(topics)


def topic_spans(layout: Layout, topic: str) -> list[tuple[int, int]]:
    """Return the positions between which the messages of a topic lie, file by file of its queues.

    What lies behind :func:`dispatched` may not be in its queue yet.
    """
    return [span for queue in _queues(layout, topic) for span in queue.spans()]


def dispatched(layout: Layout) -> int:
    """Return the position of the last message that is in the files of any queue; -1 if none is."""
    folder = layout.consume_queues
    topics = os.listdir(folder) if os.path.isdir(folder) else []
    return max((queue.newest() for topic in topics for queue in _queues(layout, topic)), default=-1)


def _queues(layout: Layout, topic: str) -> list[QueueFiles]:
    directory = layout.topic_queues(topic)
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return [QueueFiles(f"{directory}/{name}") for name in names if parse_queue_id(name) is not None]
