"""Messages read through their queues: only the places of the log that queue entries point at.

That spares reading the rest of the log where a topic, or its messages of some tag, is a small part
of it. Entries tell position, size and tag hash of a message, 20 bytes for each. A task gets ranges
of queue offsets and reads their entries itself; entries that lie close together are read at once.

A queue may be behind the log. What it lacked when ranges were planned is :class:`Pending`: it is
found by scanning the end of the log for higher offsets. In a copy that was made while a broker ran
a queue may lack more than that; then the scan begins where the queue ends.
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
    Opened,
    Segment,
    are_sound,
    damaged,
    longer,
    missing,
)
from rocketpost.spark.log.queue_files import Entries, QueueFiles, queues_of
from rocketpost.spark.log.store_state import StoreState
from rocketpost.spark.records.chunk import Chunk
from rocketpost.spark.records.fields import Ints, Mask, heads
from rocketpost.spark.source.predicates import Predicates
from rocketpost.store.layout import Layout

SEEK_BYTES: Final = 8 * 1024
"""Reading one message by itself costs as much as scanning so many bytes of the log."""
_GAP_BYTES: Final = 16 * 1024
_PICKED_BYTES: Final = 4 * 1024 * 1024
_HEAD_BYTES: Final = 128
_ENTRIES_AT_ONCE: Final = 16_384
_MAGICS: Final = tuple(int.from_bytes(magic, "big", signed=True) for magic in MAGICS)


class QueueRange(NamedTuple):
    """Offsets of a queue, the second not included."""

    topic: str
    queue_id: int
    first: int
    end: int


class Pending(NamedTuple):
    """Where the files of a queue ended: its next offset, and the position of its last message."""

    next_offset: int
    newest: int


class QueuePlan(NamedTuple):
    """What to read of some topics."""

    tasks: list[tuple[QueueRange, ...]]
    pending: dict[tuple[str, int], Pending]
    cost_bytes: int
    """What that costs, as bytes of a scan."""
    spans: list[tuple[int, int]]
    """Positions between which messages lie, file by file."""


class _Piece(NamedTuple):
    range_: QueueRange
    cost_bytes: int
    span: tuple[int, int]


class Window(NamedTuple):
    """Which entries count, whatever their topic."""

    low: int
    """Positions from here on."""
    high: int
    """Positions before this."""
    tag_codes: frozenset[int] | None
    """Tag hashes, None for all."""

    def of(self, entries: Entries, dead_before: int) -> Mask:
        """Return which entries may be of messages that are asked for."""
        at = entries["position"]
        wanted = (entries["size"] > 0) & (at >= max(self.low, dead_before)) & (at < self.high)
        if self.tag_codes is not None:
            codes = entries["tags"].astype(np.int64)
            # Larger numbers are no hashes: when a delayed message is due, or where more is said.
            is_hash = (codes >= -(2**31)) & (codes < 2**31)
            wanted &= ~is_hash | np.isin(codes, sorted(self.tag_codes))
        return np.asarray(wanted, np.bool_)


def window(low: int, high: int, asked: Predicates) -> Window:
    """Return which entries count, given the positions that do."""
    codes = None
    if asked.tags.values is not None:
        codes = frozenset(string_hash(tag) for tag in asked.tags.values)
    position = asked.positions
    low = low if position.low is None else max(low, position.low)
    high = high if position.high is None else min(high, position.high + 1)
    return Window(low, high, codes)


def planned(
    layout: Layout,
    state: StoreState,
    topics: Iterable[str],
    asked: Predicates,
    entries: Window,
    *,
    task_bytes: int,
) -> QueuePlan:
    """Return how to read topics through their queues."""
    pieces: list[_Piece] = []
    pending = {}
    for topic in sorted(topics):
        for queue_id, queue in sorted(queues_of(layout, topic), key=lambda pair: pair[0]):
            if asked.queue_ids.admits(queue_id):
                dead = state.dead_before.get(topic, 0)
                found = _look(pieces, queue, topic, queue_id, asked, entries, dead)
                pending[topic, queue_id] = found
    cost = sum(piece.cost_bytes for piece in pieces)
    spans = [piece.span for piece in pieces]
    return QueuePlan(list(_tasks(pieces, task_bytes)), pending, cost, spans)


def _look(
    pieces: list[_Piece],
    queue: QueueFiles,
    topic: str,
    queue_id: int,
    asked: Predicates,
    window: Window,
    dead_before: int,
) -> Pending:
    """Add what is wanted of a queue, file by file; returns where it ends."""
    end, newest = queue.first, -1
    for file_first, file_end in queue.files:
        if file_first >= queue.end:
            break  # files are made beforehand, and long
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
                cost = _cost(entries[hits - file_first])
                range_ = QueueRange(topic, queue_id, int(hits[0]), int(hits[-1]) + 1)
                at = entries["position"][hits - file_first]
                pieces.append(_Piece(range_, cost, (int(at.min()), int(at.max()))))
        if end < file_end:
            break
    return Pending(end, newest)


def _cost(entries: Entries) -> int:
    """Return what reading some messages costs, as bytes of a scan."""
    sizes = entries["size"].astype(np.int64)
    gaps = np.diff(entries["position"].astype(np.int64)) - sizes[:-1]
    return int(sizes.sum() + np.clip(gaps, 0, SEEK_BYTES).sum()) + SEEK_BYTES


def _tasks(pieces: list[_Piece], task_bytes: int) -> Iterator[tuple[QueueRange, ...]]:
    """Share ranges out: a long one is cut, short ones go together."""
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
    """Where records should be, and what is known of them; -1 is not known."""

    positions: Ints
    sizes: Ints
    offsets: Ints


def places(
    layout: Layout, range_: QueueRange, window: Window, dead_before: int
) -> Iterator[Places]:
    """Yield where the messages of a range are, some at a time."""
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


def picked(wanted: Places, segments: tuple[Segment, ...], on_corrupt: OnCorrupt) -> Iterator[Chunk]:
    """Yield the records that lie at some places, in the order of the places.

    What is not there because its segment expired is left out.

    Raises:
        CorruptRecord: Something else lies at a place, and that is to fail.
    """
    starts = np.array([segment.start for segment in segments], np.int64)
    parts: list[bytes] = []
    places: list[Ints] = []
    members: list[Ints] = []
    filled = 0
    for segment_at, some in _by_segment(wanted, starts):
        segment = segments[segment_at]
        try:
            file = Opened(segment.path)
        except FileNotFoundError:
            missing(segment, on_corrupt)
            continue
        with file:
            for group in _groups(wanted, some):
                begin = int(wanted.positions[group[0]])
                last, size = int(wanted.positions[group[-1]]), int(wanted.sizes[group[-1]])
                if size > _PICKED_BYTES and not _is_so_long(file, segment, last, size):
                    size = 0  # nor is anything else read in its place
                data = file.read(begin - segment.start, last + size - begin)
                if filled and filled + len(data) > _PICKED_BYTES:
                    yield from _checked(parts, places, members, wanted, segments, on_corrupt)
                    parts, places, members, filled = [], [], [], 0
                parts.append(data)
                places.append(wanted.positions[group] - begin + filled)
                members.append(group)
                filled += len(data)
    if parts:
        yield from _checked(parts, places, members, wanted, segments, on_corrupt)


def _is_so_long(file: Opened, segment: Segment, position: int, size: int) -> bool:
    """Tell whether a record is as long as an entry says, which may be damaged and say anything."""
    at = position - segment.start
    return longer(file.read(at, _HEAD_BYTES), segment.limit - at) == size


def _by_segment(wanted: Places, starts: Ints) -> Iterator[tuple[int, Ints]]:
    at = np.searchsorted(starts, wanted.positions, side="right") - 1
    cuts = np.flatnonzero(np.diff(at)) + 1
    for some in np.split(np.arange(len(at)), cuts):
        if len(some) and at[some[0]] >= 0:
            yield int(at[some[0]]), some


def _groups(wanted: Places, some: Ints) -> Iterator[Ints]:
    """Cut ascending places where it is far to the next, or enough to read at once."""
    positions, sizes = wanted.positions[some], wanted.sizes[some]
    gaps = np.diff(positions) - sizes[:-1]
    # Records that overlap are none, or one is in the body of the other: each gets its own bytes.
    far = (gaps > _GAP_BYTES) | (gaps < 0)
    blocks = (positions - positions[0]) // _PICKED_BYTES
    return iter(np.split(some, np.flatnonzero(far | (np.diff(blocks) > 0)) + 1))


def _checked(
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
        fields = heads(data, safe)
        is_there &= np.isin(fields["magic"], _MAGICS) & (fields["size"] == sizes)
        is_there &= (fields["queueOffset"] == offsets) | (offsets < 0)
    positions = wanted.positions[at]
    chunk = Chunk(data, starts).only(is_there)
    true = chunk.fields.long("position") == positions[is_there][: chunk.fields.count]
    if is_there.all() and len(true) == len(chunk) and true.all():
        yield chunk
        return
    is_there[is_there] = are_sound(data, starts[is_there], positions[is_there])
    for position in positions[~is_there].tolist():
        segment = max((s for s in segments if s.start <= position), key=lambda s: s.start)
        where = f"position {position} ({segment.path} byte {position - segment.start})"
        damaged(f"a queue or the key index points at {where}: no such record", on_corrupt)
    if is_there.any():
        yield Chunk(data, starts[is_there])
