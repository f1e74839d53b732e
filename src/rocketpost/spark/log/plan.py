"""Plan for reading a store directory: by scanning, through queues, or by the key index.

Runs on the driver. All three ways give the same rows; the cheapest is taken. A scan leaves out
segments of other times and without a topic that is asked for. Queues are used where they point at
so little of the log that reading only that is cheaper. The index is used for keys.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from pyspark.sql.datasource import InputPartition

from rocketpost.spark.log import queue_ranges
from rocketpost.spark.log.end import holes, layout_of, segments
from rocketpost.spark.log.files import (
    OnCorrupt,
    Segment,
    Split,
    Stopped,
    around,
    behind,
    damaged,
    splits,
    store_ms_at,
)
from rocketpost.spark.log.key_lookup import looked_up
from rocketpost.spark.log.options import LogOptions, words_of
from rocketpost.spark.log.queue_ranges import Pending, QueueRange, Window
from rocketpost.spark.log.store_state import StoreState, state_of
from rocketpost.spark.records.fields import Ints
from rocketpost.spark.source.predicates import NumberBounds, Predicates, TextBounds
from rocketpost.store.layout import Layout

log = logging.getLogger(__name__)

_SPLIT_BYTES_MIN: Final = 32 * 1024 * 1024
_SPLIT_BYTES_MAX: Final = 256 * 1024 * 1024
_PICKS_PER_TASK: Final = 10_000
_TAIL_SPLITS_MAX: Final = 4
"""What queues lack is scanned by one task; more than so many splits of it, and all is scanned."""


@dataclass(eq=False)
class LogTask(InputPartition):
    """Part of a store that one task reads: splits, ranges of queues, or places from the index."""

    root: str
    state: StoreState
    splits: tuple[Split, ...] = ()
    pending: dict[tuple[str, int], Pending] | None = None
    """Of the splits only what queues lacked; None for all."""
    ranges: tuple[QueueRange, ...] = ()
    positions: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    window: Window | None = None
    """Which entries of the ranges count."""
    segments: tuple[Segment, ...] = ()
    """Those that ranges and positions lie in."""

    def __post_init__(self) -> None:
        super().__init__(None)


def tasks(path: str, options: LogOptions, asked: Predicates) -> list[LogTask]:
    """Return how to read one store.

    Raises:
        StoreError: It is none, or cannot be read.
    """
    if not asked.brokers.admits(options.broker_name or None):
        return []
    return _Planner(path, options, asked).tasks()


def split_bytes_of(size: int, cores: int) -> int:
    """Return how much of a log each task reads so that all cores have about the same to do.

    Every task has a price of its own, as much as reading several MB: no more of them than needed.
    Neither may they be few where a cluster has more cores than the machine that plans.
    """
    rounds = max(1, math.ceil(size / (cores * _SPLIT_BYTES_MAX)))
    return max(_SPLIT_BYTES_MIN, math.ceil(size / (cores * rounds)))


def joined(first: Predicates, second: Predicates) -> Predicates:
    """Return the bounds of rows that lie within both."""
    both: dict[str, Any] = {}
    for each in dataclasses.fields(Predicates):
        one, other = getattr(first, each.name), getattr(second, each.name)
        both[each.name] = _both(one, other)
    return Predicates(**both)


def _both(
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
        self._layout: Layout = layout_of(path)
        self._state = state_of(self._layout)
        self._every = segments(self._layout, self._state.newest)
        self._is_one_task = options.on_corrupt == "stop"

    def tasks(self) -> list[LogTask]:
        low, high = self._between()
        high = self._unbroken(low, high)
        inside = [s for s in self._every if s.start < high and s.start + s.limit > low]
        if not inside:
            return []
        words = self._words()
        if words is not None:
            return self._by_index(words, inside, low, high)
        if not self._by_queues_possible():
            return self._scan(inside, low, high)
        return self._by_queues(inside, low, high)

    def _between(self) -> tuple[int, int]:
        """Return between which positions the messages lie that are asked for."""
        if not self._every:
            return 0, 0
        first, last = self._every[0], self._every[-1]
        position = self._asked.positions
        low = max(first.start, position.low or 0)
        high = min(last.start + last.limit, 2**63 if position.high is None else position.high + 1)
        times, step_ms = self._asked.store_ms, self._options.clock_step_ms
        # Store times only grow, but for clocks that were set back.
        if times.low is not None:
            low = max(low, self._by_time(times.low - step_ms)[0])
        if times.high is not None:
            high = min(high, self._by_time(times.high + 1 + step_ms)[1])
        return low, high

    def _unbroken(self, low: int, high: int) -> int:
        """Return how far to read where segments are missing between two positions.

        Raises:
            CorruptRecord: Some are, and that is to fail.
        """
        for hole in holes(self._every):
            if low < hole.end and hole.start < high:
                path = self._layout.segment(hole.start)
                what = f"{path} is missing: the log has no positions {hole.start} to {hole.end}"
                try:
                    damaged(what, OnCorrupt(self._options.on_corrupt))
                except Stopped:
                    return hole.start
                log.warning("%s", what)
        return high

    def _by_time(self, ms: int) -> tuple[int, int]:
        """Return two positions: nothing before the first is younger, nothing behind is older."""
        first, after = 0, len(self._every)
        while first < after:  # the first segment that begins no earlier than that
            middle = (first + after) // 2
            at, begun = self._begun(middle, after)
            if begun is not None and begun < ms:
                first = at + 1
            else:
                after = middle
        if first == 0:
            return self._every[0].start, self._every[0].start
        return around(self._every[first - 1], ms)

    def _begun(self, first: int, after: int) -> tuple[int, int | None]:
        """Return which segment is the first that has a record left, and when that was stored."""
        for at in range(first, after):
            begun = store_ms_at(self._every[at], 0)
            if begun is not None:
                return at, begun
        return after, None

    def _topics(self) -> frozenset[str]:
        admits = self._asked.topics.admits
        return frozenset(topic for topic in self._state.topics if admits(topic))

    def _step(self, low: int, high: int) -> int:
        """Return how much of what lies between two positions a task scans."""
        return self._options.split_bytes or split_bytes_of(high - low, os.cpu_count() or 1)

    # -- scanning

    def _scan(self, inside: list[Segment], low: int, high: int) -> list[LogTask]:
        step = self._step(low, high)
        parts = [part for each in inside for part in splits(each, step, low=low, high=high)]
        return self._scanning(parts)

    def _scanning(self, parts: list[Split]) -> list[LogTask]:
        if self._is_one_task:
            return [LogTask(self._layout.root, self._state, tuple(parts))] if parts else []
        return [LogTask(self._layout.root, self._state, (part,)) for part in parts]

    # -- through queues

    def _by_queues_possible(self) -> bool:
        asked = self._asked
        bounds = (asked.topics, asked.tags, asked.queue_ids, asked.offsets)
        is_narrow = not all(bound.is_any for bound in bounds)
        # Queue files that are missing show only where the log itself is read.
        is_simple = not self._state.lacks_queues and not self._topics() & (
            self._state.batch_topics | self._state.without_queues
        )
        return self._options.view == "consumer" and is_narrow and is_simple

    def _by_queues(self, inside: list[Segment], low: int, high: int) -> list[LogTask]:
        state, step = self._state, self._step(low, high)
        window = queue_ranges.window(low, high, self._asked)
        plan = queue_ranges.planned(
            self._layout, state, self._topics(), self._asked, window, task_bytes=step
        )
        tail_from = max(self._settled(), low)
        tail = [part for each in inside for part in splits(each, step, low=tail_from, high=high)]
        some = [s for s in inside if s.start + s.limit > tail_from or _meets(s, plan.spans)]
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
            # A queue of a copy may lack more than the end: then its task has to go further back.
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

    def _settled(self) -> int:
        """Return the position before which queues lack nothing."""
        settled, safe_ms = self._state.settled, self._state.safe_ms
        if safe_ms is None:
            return settled
        return min(behind(self._every, settled), self._by_time(safe_ms)[0])

    def _next(self, position: int, low: int) -> int:
        """Return where the record begins that follows one that begins just before a position."""
        return position if position == low else behind(self._every, position - 1)

    # -- by the key index

    def _words(self) -> frozenset[str] | None:
        """Return words of which a message must have one to be asked for; None if there are none."""
        options, asked = self._options, self._asked
        if self._topics() & self._state.batch_topics:
            return None  # the index knows of the batch, not of the messages in it
        if options.view == "log" and asked.topics.values is None:
            return None  # it goes by topic, and topics that were deleted are not known
        found = [options.words] if options.words else []
        if asked.unique_keys.values is not None:
            found.append(asked.unique_keys.values)
        if asked.keys.values is not None and all(map(words_of, asked.keys.values)):
            found.append(frozenset(words_of(text)[0] for text in asked.keys.values))
        return min(found, key=len) if found else None

    def _by_index(
        self, words: frozenset[str], inside: list[Segment], low: int, high: int
    ) -> list[LogTask]:
        is_log = self._options.view == "log"
        topics = (self._asked.topics.values or frozenset()) if is_log else self._topics()
        hits = looked_up(self._layout, topics, words, first=low, end=high)
        found = []
        for at in range(0, len(hits.positions), _PICKS_PER_TASK):
            some = hits.positions[at : at + _PICKS_PER_TASK]
            near = [s for s in inside if s.start <= some[-1] and s.start + s.limit > some[0]]
            found.append(
                LogTask(self._layout.root, self._state, positions=some, segments=tuple(near))
            )
        step = self._step(low, high)
        parts = [
            part
            for first, end in hits.unknown
            for each in inside
            for part in splits(each, step, low=self._next(first, low), high=end)
        ]
        # Small holes share a task.
        small = tuple(part for part in parts if part.end - part.begin < step)
        large = [part for part in parts if part.end - part.begin >= step]
        if small and not self._is_one_task:
            found.append(LogTask(self._layout.root, self._state, small))
            parts = large
        return found + self._scanning(parts)


def _meets(segment: Segment, spans: list[tuple[int, int]]) -> bool:
    end = segment.start + segment.limit
    return any(low < end and high >= segment.start for low, high in spans)
