"""Reads of messages through their queues: only the parts of the log that queue entries point at.

That is cheaper than a scan if a topic, or its messages with some tag, is a small part of the log.
An entry has the position, the size and the tag hash of a message in 20 bytes. A task gets ranges of
queue offsets and reads their entries itself; adjacent messages are read at once.

A queue may lag behind the log. :class:`Pending` has the end of each queue when ranges were planned;
later messages are found by scanning the end of the log for higher offsets. In a copy that was made
while a broker ran a queue may lack more than that; then the scan begins where the queue ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from rocketpost.kernel.hashing import string_hash
from rocketpost.spark.log.files import (
    MAGICS,
    SMALLEST,
    OnCorrupt,
    OpenFile,
    Segment,
    check_records,
    find_cut_record_size,
    handle_damage,
    handle_missing_segment,
)
from rocketpost.spark.log.queue_files import Entries, QueueFiles, list_queues
from rocketpost.spark.log.store_state import StoreState
from rocketpost.spark.records.chunk import Chunk
from rocketpost.spark.records.fields import Ints, Mask, read_heads
from rocketpost.spark.source.predicates import Predicates
from rocketpost.store.layout import Layout

SEEK_BYTES: Final = 8 * 1024
"""Cost of reading one message by itself, as bytes of a scan."""
_GAP_BYTES: Final = 16 * 1024
_PICKED_BYTES: Final = 4 * 1024 * 1024
_HEAD_BYTES: Final = 128
_ENTRIES_AT_ONCE: Final = 16_384
_MAGICS: Final = tuple(int.from_bytes(magic, "big", signed=True) for magic in MAGICS)


class QueueRange(NamedTuple):
    """A range of offsets of a queue; the end is exclusive."""

    topic: str
    queue_id: int
    first: int
    end: int


class Pending(NamedTuple):
    """The end of the files of a queue: its next offset, and the position of its last message."""

    next_offset: int
    newest: int


class QueuePlan(NamedTuple):
    """The plan to read topics through their queues."""

    tasks: list[tuple[QueueRange, ...]]
    pending: dict[tuple[str, int], Pending]
    cost_bytes: int
    """The cost, as bytes of a scan."""
    spans: list[tuple[int, int]]
    """Ranges of positions that contain the messages, by queue file."""


class _Piece(NamedTuple):
    range_: QueueRange
    cost_bytes: int
    span: tuple[int, int]


class Window(NamedTuple):
    """Bounds of queue entries, for all topics."""

    low: int
    """The lowest position."""
    high: int
    """The end of positions."""
    tag_codes: frozenset[int] | None
    """Tag hashes, None for all."""

    def of(self, entries: Entries, dead_before: int) -> Mask:
        """Return which entries may belong to requested messages."""
        at = entries["position"]
        wanted = (entries["size"] > 0) & (at >= max(self.low, dead_before)) & (at < self.high)
        if self.tag_codes is not None:
            codes = entries["tags"].astype(np.int64)
            # Larger numbers are not hashes, but due times of delayed messages or references.
            is_hash = (codes >= -(2**31)) & (codes < 2**31)
            wanted &= ~is_hash | np.isin(codes, sorted(self.tag_codes))
        return np.asarray(wanted, np.bool_)


def window(low: int, high: int, asked: Predicates) -> Window:
    """Return the bounds of entries for a range of positions."""
    codes = None
    if asked.tags.values is not None:
        codes = frozenset(string_hash(tag) for tag in asked.tags.values)
    position = asked.positions
    low = low if position.low is None else max(low, position.low)
    high = high if position.high is None else min(high, position.high + 1)
    return Window(low, high, codes)


def plan_queue_reads(
    layout: Layout,
    state: StoreState,
    topics: Iterable[str],
    asked: Predicates,
    entries: Window,
    *,
    task_bytes: int,
) -> QueuePlan:
    """Return the plan to read topics through their queues."""
    pieces: list[_Piece] = []
    pending = {}
    for topic in sorted(topics):
        for queue_id, queue in sorted(list_queues(layout, topic), key=lambda pair: pair[0]):
            if asked.queue_ids.admits(queue_id):
                dead = state.dead_before.get(topic, 0)
                found = _add_queue(pieces, queue, topic, queue_id, asked, entries, dead)
                pending[topic, queue_id] = found
    cost = sum(piece.cost_bytes for piece in pieces)
    spans = [piece.span for piece in pieces]
    return QueuePlan(list(_assign_tasks(pieces, task_bytes)), pending, cost, spans)


def _add_queue(
    pieces: list[_Piece],
    queue: QueueFiles,
    topic: str,
    queue_id: int,
    asked: Predicates,
    window: Window,
    dead_before: int,
) -> Pending:
    """Add the requested ranges of a queue, file by file; return the end of the queue."""
    end, newest = queue.first, -1
    for file_first, file_end in queue.files:
        if file_first >= queue.end:
            break  # files are preallocated, and large
        entries = queue.entries(file_first, min(file_end, queue.end))
        filled = np.flatnonzero(entries["size"] > 0)
        if not len(filled):
            break
        # Fillers come first; a queue ends with its first empty entry.
        empty = np.flatnonzero(entries["size"][filled[0] :] == 0)
        count = int(filled[0]) + (int(empty[0]) if len(empty) else len(entries) - int(filled[0]))
        end, newest = file_first + count, int(entries["position"][count - 1])
        wanted = window.of(entries[:count], dead_before)
        for low, high in asked.offsets.intervals(file_first, end):
            hits = np.flatnonzero(wanted[low - file_first : high - file_first]) + low
            if len(hits):
                cost = _estimate_cost(entries[hits - file_first])
                range_ = QueueRange(topic, queue_id, int(hits[0]), int(hits[-1]) + 1)
                at = entries["position"][hits - file_first]
                pieces.append(_Piece(range_, cost, (int(at.min()), int(at.max()))))
        if end < file_end:
            break
    return Pending(end, newest)


def _estimate_cost(entries: Entries) -> int:
    """Return the cost of reading some messages, as bytes of a scan."""
    sizes = entries["size"].astype(np.int64)
    gaps = np.diff(entries["position"].astype(np.int64)) - sizes[:-1]
    return int(sizes.sum() + np.clip(gaps, 0, SEEK_BYTES).sum()) + SEEK_BYTES


def _assign_tasks(pieces: list[_Piece], task_bytes: int) -> Iterator[tuple[QueueRange, ...]]:
    """Assign ranges to tasks: split long ones, and join short ones."""
    task: list[QueueRange] = []
    filled = 0
    for piece in pieces:
        parts = math.ceil(piece.cost_bytes / task_bytes)
        topic, queue_id, first, end = piece.range_
        step = math.ceil((end - first) / parts)
        for begin in range(first, end, step):
            if task and filled + piece.cost_bytes // parts > task_bytes:
                yield tuple(task)
                task, filled = [], 0
            task.append(QueueRange(topic, queue_id, begin, min(end, begin + step)))
            filled += piece.cost_bytes // parts
    if task:
        yield tuple(task)


class Places(NamedTuple):
    """Expected positions, sizes and offsets of records; -1 is unknown."""

    positions: Ints
    sizes: Ints
    offsets: Ints


def find_places(
    layout: Layout, range_: QueueRange, window: Window, dead_before: int
) -> Iterator[Places]:
    """Yield the expected positions of the messages of a range, in groups."""
    queue = QueueFiles(layout.queue(range_.topic, range_.queue_id))
    for first in range(range_.first, range_.end, _ENTRIES_AT_ONCE):
        entries = queue.entries(first, min(range_.end, first + _ENTRIES_AT_ONCE))
        hits = np.flatnonzero(window.of(entries, dead_before))
        entries = entries[hits]
        yield Places(
            entries["position"].astype(np.int64),
            entries["size"].astype(np.int64),
            hits.astype(np.int64) + first,
        )


def read_places(
    wanted: Places, segments: tuple[Segment, ...], on_corrupt: OnCorrupt
) -> Iterator[Chunk]:
    """Yield the records at expected positions, in their order.

    Records of expired segments are skipped.

    Raises:
        CorruptRecord: A position has no such record, and ``onCorrupt`` is ``fail``.
    """
    starts = np.array([segment.start for segment in segments], np.int64)
    parts: list[bytes] = []
    places: list[Ints] = []
    members: list[Ints] = []
    filled = 0
    for segment_at, some in _by_segment(wanted, starts):
        segment = segments[segment_at]
        try:
            file = OpenFile(segment.path)
        except FileNotFoundError:
            handle_missing_segment(segment, on_corrupt)
            continue
        with file:
            for group in _group_places(wanted, some):
                begin = int(wanted.positions[group[0]])
                last, size = int(wanted.positions[group[-1]]), int(wanted.sizes[group[-1]])
                if size > _PICKED_BYTES and not _has_size(file, segment, last, size):
                    size = 0  # and no other record is read instead
                data = file.read(begin - segment.start, last + size - begin)
                if filled and filled + len(data) > _PICKED_BYTES:
                    yield from _check_sizes(parts, places, members, wanted, segments, on_corrupt)
                    parts, places, members, filled = [], [], [], 0
                parts.append(data)
                places.append(wanted.positions[group] - begin + filled)
                members.append(group)
                filled += len(data)
    if parts:
        yield from _check_sizes(parts, places, members, wanted, segments, on_corrupt)


def _has_size(file: OpenFile, segment: Segment, position: int, size: int) -> bool:
    """Return whether a record has the size in its entry; a damaged entry may have any size."""
    at = position - segment.start
    return find_cut_record_size(file.read(at, _HEAD_BYTES), segment.limit - at) == size


def _by_segment(wanted: Places, starts: Ints) -> Iterator[tuple[int, Ints]]:
    at = np.searchsorted(starts, wanted.positions, side="right") - 1
    cuts = np.flatnonzero(np.diff(at)) + 1
    for some in np.split(np.arange(len(at)), cuts):
        if len(some) and at[some[0]] >= 0:
            yield int(at[some[0]]), some


def _group_places(wanted: Places, some: Ints) -> Iterator[Ints]:
    """Split ascending positions at large distances, and at the limit of one read."""
    positions, sizes = wanted.positions[some], wanted.sizes[some]
    gaps = np.diff(positions) - sizes[:-1]
    # Records that overlap are damaged, or one is in the body of the other: read each by itself.
    far = (gaps > _GAP_BYTES) | (gaps < 0)
    blocks = (positions - positions[0]) // _PICKED_BYTES
    return iter(np.split(some, np.flatnonzero(far | (np.diff(blocks) > 0)) + 1))


def _check_sizes(
    parts: list[bytes],
    places: list[Ints],
    members: list[Ints],
    wanted: Places,
    segments: tuple[Segment, ...],
    on_corrupt: OnCorrupt,
) -> Iterator[Chunk]:
    data = b"".join(parts) if len(parts) > 1 else parts[0]
    starts, at = np.concatenate(places), np.concatenate(members)
    sizes, offsets = wanted.sizes[at], wanted.offsets[at]
    is_there = (sizes >= SMALLEST) & (starts + sizes <= len(data))
    safe = np.where(is_there, starts, 0)
    if len(data) < SMALLEST:
        is_there[:] = False
    else:
        fields = read_heads(data, safe)
        is_there &= np.isin(fields["magic"], _MAGICS) & (fields["size"] == sizes)
        is_there &= (fields["queueOffset"] == offsets) | (offsets < 0)
    positions = wanted.positions[at]
    chunk = Chunk(data, starts).only(is_there)
    true = chunk.fields.long("position") == positions[is_there][: chunk.fields.count]
    if is_there.all() and len(true) == len(chunk) and true.all():
        yield chunk
        return
    is_there[is_there] = check_records(data, starts[is_there], positions[is_there])
    for position in positions[~is_there].tolist():
        segment = max((s for s in segments if s.start <= position), key=lambda s: s.start)
        where = f"position {position} ({segment.path} byte {position - segment.start})"
        handle_damage(
            f"a queue or the key index points to {where}, where there is no such record", on_corrupt
        )
    if is_there.any():
        yield Chunk(data, starts[is_there])
