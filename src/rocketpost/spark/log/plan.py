"""Plan for reading a store directory: by scanning, through queues, or by the key index.

Runs on the driver. All three ways give the same rows; the cheapest is chosen. A scan skips segments
of other times and segments without a requested topic. Queues are used if they point at so little of
the log that reading only that is cheaper. The index is used for keys.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from pyspark.sql.datasource import InputPartition

from rocketpost.model.properties import split_keys
from rocketpost.spark.log import queue_reads
from rocketpost.spark.log.end import find_gaps, find_layout, list_segments
from rocketpost.spark.log.files import (
    OnCorrupt,
    Segment,
    Split,
    Stopped,
    bracket_time,
    handle_damage,
    next_position,
    read_store_ms,
    share_segments,
    split_segment,
)
from rocketpost.spark.log.key_lookup import look_up
from rocketpost.spark.log.options import LogOptions
from rocketpost.spark.log.queue_reads import Pending, QueueRange, Window
from rocketpost.spark.log.store_state import StoreState, read_state
from rocketpost.spark.records.fields import Ints
from rocketpost.spark.source.predicates import NumberBounds, Predicates, TextBounds
from rocketpost.store.layout import Layout

log = logging.getLogger(__name__)

_SPLIT_BYTES_MIN: Final = 32 * 1024 * 1024
_SPLIT_BYTES_MAX: Final = 256 * 1024 * 1024
_PICKS_PER_TASK: Final = 10_000
_TAIL_SPLITS_MAX: Final = 4
"""One task scans what queues lack. If that is more than this many splits, all is scanned."""


@dataclass(eq=False)
class LogTask(InputPartition):
    """Part of a store that one task reads: splits, ranges of queues, or places from the index."""

    root: str
    state: StoreState
    splits: tuple[Split, ...] = ()
    pending: dict[tuple[str, int], Pending] | None = None
    """Messages that queues lack: of the splits only these are read; None for all."""
    ranges: tuple[QueueRange, ...] = ()
    positions: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    window: Window | None = None
    """The bounds of queue entries to read."""
    segments: tuple[Segment, ...] = ()
    """The segments that contain the ranges and positions."""

    def __post_init__(self) -> None:
        super().__init__(None)


def plan_tasks(path: str, options: LogOptions, asked: Predicates) -> list[LogTask]:
    """Return the tasks that read one store.

    Raises:
        StoreError: The directory is not a store, or cannot be read.
    """
    if not asked.brokers.admits(options.broker_name or None):
        return []
    return _Planner(path, options, asked).tasks()


def choose_split_bytes(size: int, cores: int) -> int:
    """Return the bytes of a log per task, so that all cores have about the same work.

    A task costs as much as reading several MB, so there should not be more than needed. But a
    cluster may have more cores than the machine that plans, so there should not be too few.
    """
    rounds = max(1, math.ceil(size / (cores * _SPLIT_BYTES_MAX)))
    return max(_SPLIT_BYTES_MIN, math.ceil(size / (cores * rounds)))


def intersect_predicates(first: Predicates, second: Predicates) -> Predicates:
    """Return the bounds of rows that are within both."""
    both: dict[str, Any] = {}
    for each in dataclasses.fields(Predicates):
        one, other = getattr(first, each.name), getattr(second, each.name)
        both[each.name] = _intersect(one, other)
    return Predicates(**both)


def _intersect(
    one: TextBounds | NumberBounds, other: TextBounds | NumberBounds
) -> TextBounds | NumberBounds:
    if isinstance(one, TextBounds):
        assert isinstance(other, TextBounds)
        texts = one if other.values is None else one.restrict_to(other.values)
        return texts.restrict_to_prefix(other.prefix) if other.prefix else texts
    assert isinstance(other, NumberBounds)
    numbers = one.restrict_to_range(other.low, other.high)
    return numbers if other.values is None else numbers.restrict_to(other.values)


class _Planner:
    def __init__(self, path: str, options: LogOptions, asked: Predicates) -> None:
        self._options = options
        self._asked = asked
        self._layout: Layout = find_layout(path)
        self._state = read_state(self._layout)
        self._every = list_segments(self._layout, self._state.newest)
        self._is_one_task = options.on_corrupt == "stop"

    def tasks(self) -> list[LogTask]:
        low, high = self._find_positions()
        high = self._limit_to_present(low, high)
        inside = [s for s in self._every if s.start < high and s.start + s.limit > low]
        if not inside:
            return []
        words = self._list_words()
        if words is not None:
            return self._plan_index_reads(words, inside, low, high)
        if not self._can_use_queues():
            return self._scan(inside, low, high)
        return self._plan_queue_reads(inside, low, high)

    def _find_positions(self) -> tuple[int, int]:
        """Return the start and end positions of the requested messages."""
        if not self._every:
            return 0, 0
        first, last = self._every[0], self._every[-1]
        position = self._asked.positions
        low = max(first.start, position.low or 0)
        high = min(last.start + last.limit, 2**63 if position.high is None else position.high + 1)
        times, step_ms = self._asked.store_ms, self._options.clock_step_ms
        # Store times never decrease, unless a clock was set back.
        if times.low is not None:
            low = max(low, self._bound_by_time(times.low - step_ms)[0])
        if times.high is not None:
            high = min(high, self._bound_by_time(times.high + 1 + step_ms)[1])
        return low, high

    def _limit_to_present(self, low: int, high: int) -> int:
        """Return the end of reading if segments are missing between two positions.

        Raises:
            CorruptRecord: Segments are missing, and ``onCorrupt`` is ``fail``.
        """
        for hole in find_gaps(self._every):
            if low < hole.end and hole.start < high:
                path = self._layout.segment(hole.start)
                what = f"{path} is missing: the log has no positions {hole.start} to {hole.end}"
                try:
                    handle_damage(what, OnCorrupt(self._options.on_corrupt))
                except Stopped:
                    return hole.start
                log.warning("%s", what)
        return high

    def _bound_by_time(self, ms: int) -> tuple[int, int]:
        """Return two positions between which all messages of the requested times are."""
        first, after = 0, len(self._every)
        while first < after:  # the first segment that begins at that time or later
            middle = (first + after) // 2
            at, begun = self._find_first_segment(middle, after)
            if begun is not None and begun < ms:
                first = at + 1
            else:
                after = middle
        if first == 0:
            return self._every[0].start, self._every[0].start
        return bracket_time(self._every[first - 1], ms)

    def _find_first_segment(self, first: int, after: int) -> tuple[int, int | None]:
        """Return the first segment that still has a record, and the store time of that record."""
        for at in range(first, after):
            begun = read_store_ms(self._every[at], 0)
            if begun is not None:
                return at, begun
        return after, None

    def _topics(self) -> frozenset[str]:
        admits = self._asked.topics.admits
        return frozenset(topic for topic in self._state.topics if admits(topic))

    def _choose_scan_step(self, low: int, high: int) -> int:
        """Return the bytes that one task scans between two positions."""
        return self._options.split_bytes or choose_split_bytes(high - low, os.cpu_count() or 1)

    # Scans.

    def _scan(self, inside: list[Segment], low: int, high: int) -> list[LogTask]:
        step = self._choose_scan_step(low, high)
        return self._plan_scan(share_segments(inside, step, low=low, high=high))

    def _plan_scan(self, shares: Sequence[tuple[Split, ...]]) -> list[LogTask]:
        if self._is_one_task:
            every = tuple(part for share in shares for part in share)
            return [LogTask(self._layout.root, self._state, every)] if every else []
        return [LogTask(self._layout.root, self._state, share) for share in shares]

    # Reads through queues.

    def _can_use_queues(self) -> bool:
        asked = self._asked
        bounds = (asked.topics, asked.tags, asked.queue_ids, asked.offsets)
        is_narrow = not all(bound.is_any for bound in bounds)
        # Missing queue files are noticed only when the log itself is read.
        is_simple = not self._state.lacks_queues and not self._topics() & (
            self._state.batch_topics | self._state.without_queues
        )
        return self._options.view == "consumer" and is_narrow and is_simple

    def _plan_queue_reads(self, inside: list[Segment], low: int, high: int) -> list[LogTask]:
        state, step = self._state, self._choose_scan_step(low, high)
        window = queue_reads.window(low, high, self._asked)
        plan = queue_reads.plan_queue_reads(
            self._layout, state, self._topics(), self._asked, window, task_bytes=step
        )
        tail_from = max(self._find_settled(), low)
        tail = [
            part for each in inside for part in split_segment(each, step, low=tail_from, high=high)
        ]
        some = [s for s in inside if s.start + s.limit > tail_from or _overlaps(s, plan.spans)]
        cost = plan.cost_bytes + max(0, high - tail_from)
        scanned = sum(min(s.limit, high - s.start) - max(0, low - s.start) for s in some)
        is_far = high - tail_from > _TAIL_SPLITS_MAX * step
        if self._is_one_task or is_far or cost >= scanned:
            return self._scan(some, low, high)
        found = [
            LogTask(
                self._layout.root,
                state,
                ranges=ranges,
                window=window,
                segments=tuple(some),
            )
            for ranges in plan.tasks
        ]
        if tail:
            # A queue of a copy may lack more than its end. Then its task has to start earlier.
            back = min((p.newest for p in plan.pending.values()), default=0)
            before = [s for s in inside if s.start + s.limit > back and s.start < tail_from]
            found.append(
                LogTask(
                    self._layout.root,
                    state,
                    tuple(tail),
                    pending=plan.pending,
                    segments=tuple(before),
                )
            )
        return found

    def _find_settled(self) -> int:
        """Return the position before which queues are complete."""
        settled, safe_ms = self._state.settled, self._state.safe_ms
        if safe_ms is None:
            return settled
        return min(next_position(self._every, settled), self._bound_by_time(safe_ms)[0])

    def _find_next(self, position: int, low: int) -> int:
        """Return the start of the record after the one just before a position."""
        return position if position == low else next_position(self._every, position - 1)

    # Reads by the key index.

    def _list_words(self) -> frozenset[str] | None:
        """Return keys of which every requested message has one; None if there is no such bound."""
        options, asked = self._options, self._asked
        if self._topics() & self._state.batch_topics:
            return None  # the index has the batch, not the messages in it
        if options.view == "log" and asked.topics.values is None:
            return None  # the index needs topics, and deleted topics are not known
        found = [options.words] if options.words else []
        if asked.unique_keys.values is not None:
            found.append(asked.unique_keys.values)
        if asked.keys.values is not None and all(map(split_keys, asked.keys.values)):
            found.append(frozenset(split_keys(text)[0] for text in asked.keys.values))
        return min(found, key=len) if found else None

    def _plan_index_reads(
        self, words: frozenset[str], inside: list[Segment], low: int, high: int
    ) -> list[LogTask]:
        is_log = self._options.view == "log"
        topics = (self._asked.topics.values or frozenset()) if is_log else self._topics()
        hits = look_up(self._layout, topics, words, first=low, end=high)
        found = []
        for at in range(0, len(hits.positions), _PICKS_PER_TASK):
            some = hits.positions[at : at + _PICKS_PER_TASK]
            near = [s for s in inside if s.start <= some[-1] and s.start + s.limit > some[0]]
            found.append(
                LogTask(self._layout.root, self._state, positions=some, segments=tuple(near))
            )
        step = self._choose_scan_step(low, high)
        parts = [
            part
            for first, end in hits.unknown
            for each in inside
            for part in split_segment(each, step, low=self._find_next(first, low), high=end)
        ]
        # Small gaps share a task.
        small = tuple(part for part in parts if part.end - part.begin < step)
        large = [part for part in parts if part.end - part.begin >= step]
        if small and not self._is_one_task:
            found.append(LogTask(self._layout.root, self._state, small))
            parts = large
        return found + self._plan_scan([(part,) for part in parts])


def _overlaps(segment: Segment, spans: list[tuple[int, int]]) -> bool:
    end = segment.start + segment.limit
    return any(low < end and high >= segment.start for low, high in spans)
