"""Search for messages to hand out in one queue, and the start of a group that is new to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from rocketpost.broker.filter.matching import WORK_MAX
from rocketpost.broker.pop.targets import Cursor, PopRequest
from rocketpost.broker.pull.reader import QUEUE_UNIT_BYTES, PullLimits, Records, choose
from rocketpost.kernel.queue_scan import scan_units
from rocketpost.model.ids import Position
from rocketpost.store.queue.consume_queue import ConsumeQueue

SCAN_MAX: Final = 32_000
"""Queue entries that one pop examines while none has a wanted tag."""

_QUEUES_EXPECTED: Final = 4
"""Queues among which one pop divides its matching budget."""


class ScanResult(NamedTuple):
    """Messages found from an offset on."""

    offsets: list[int]
    views: list[memoryview]
    next_offset: int
    is_cut: bool
    """Whether there may be more messages although none was found."""


class Store(Records, Protocol):
    """The part of the store that popping uses."""

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, or None if it never had a message."""
        ...


class QueueScan:
    """Reads queues for pops. Owned by the event loop; waits for nothing.

    Args:
        limits: Returns the bounds on one pop.
    """

    def __init__(self, *, store: Store, limits: Callable[[], PullLimits]) -> None:
        self._store = store
        self._limits = limits

    @property
    def bytes_max(self) -> int:
        """Largest number of bytes that one pop may return."""
        return self._limits().bytes_in_memory

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue that has, or had, messages."""
        queue = self._store.queue(topic, queue_id)
        return queue if queue is not None and queue.end else None

    def initial(self, cursor: Cursor, queue: ConsumeQueue, request: PopRequest) -> int:
        """Return the first offset of a group that is new to a queue."""
        if not request.from_end or cursor.topic != request.topic.topic_name:
            return int(queue.first)
        first = queue.entry(0) if queue.first == 0 else None
        memory = self._limits().memory_bytes
        if first is not None and self._store.end_position - first[0] <= memory:
            return 0  # the topic is so young that its first messages are new to every group
        return max(int(queue.first), int(queue.end) - 1)

    def find(
        self,
        queue: ConsumeQueue,
        offset: int,
        request: PopRequest,
        *,
        count_max: int,
        bytes_max: int,
    ) -> ScanResult:
        """Find messages from ``offset`` on."""
        limits, matcher = self._limits(), request.matcher
        step = (
            max(limits.scan_bytes // QUEUE_UNIT_BYTES, count_max)
            if request.is_filtered
            else count_max
        )
        # The cost of a matcher is bounded for each step.
        until = min(int(queue.end), offset + (SCAN_MAX if matcher is None else step))
        offsets: list[int] = []
        views: list[memoryview] = []
        while offset < until and not offsets:
            units = queue.read(offset, min(step, until - offset))
            if matcher is None:
                chosen, passed = scan_units(
                    units, request.tags, count_max=count_max, bytes_max=bytes_max
                )
            else:
                chosen, passed = choose(
                    units,
                    matcher,
                    self._store.view,
                    count_max=count_max,
                    bytes_max=bytes_max,
                    work_max=WORK_MAX // _QUEUES_EXPECTED,
                )
            if not passed:
                break
            for ordinal, view in self._views(queue, offset, chosen):
                offsets.append(offset + ordinal)
                views.append(view)
            offset += passed
            if matcher is not None:
                break
        return ScanResult(offsets, views, offset, not offsets and offset < queue.end)

    def _views(
        self, queue: ConsumeQueue, offset: int, chosen: list[tuple[int, int, int]]
    ) -> Iterator[tuple[int, memoryview]]:
        """Yield the records of entries by their ordinals, except those that cannot be served."""
        if not chosen:
            return
        for ordinal, position, size in self._sound(queue, offset, chosen):
            view = self._store.view(Position(position), size)
            if view is not None:
                yield ordinal, view
            else:  # the entry was trusted, but points to no record: it is damaged
                for _, found, found_bytes in self._sound(
                    queue, offset, [(ordinal, position, size)], is_urgent=True
                ):
                    view = self._store.view(Position(found), found_bytes)
                    if view is not None:
                        yield ordinal, view

    def _sound(
        self,
        queue: ConsumeQueue,
        offset: int,
        units: list[tuple[int, int, int]],
        *,
        is_urgent: bool = False,
    ) -> list[tuple[int, int, int]]:
        return self._store.select_sound(
            queue.topic, queue.queue_id, offset, units, is_urgent=is_urgent
        )
