"""Reads queues by offset.

The reader filters queue entries by tags code without reading the log, or by a matcher that examines
the records. Records that were written or checked lately are returned as one copy; others are
checked one by one and returned as views of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

from rocketpost.broker.filter.matching import WORK_MAX, Matcher
from rocketpost.codec.codes import ResponseCode
from rocketpost.kernel.queue_scan import scan_units
from rocketpost.model.ids import Position, QueueOffset

Span = tuple[int, int]
"""Position and size of a part of the log."""

QUEUE_UNIT_BYTES: Final = 20
_UNIT: Final = Struct(">qiq")
_FILLER_SIZE: Final = 0x7FFF_FFFF
_DISK_FACTOR: Final = 8
"""Cost factor of matching a record that is no longer in memory."""


class Queue(Protocol):
    """The part of a consume queue that pulling uses."""

    @property
    def first(self) -> QueueOffset:
        """Offset of the oldest readable message."""
        ...

    @property
    def end(self) -> QueueOffset:
        """Offset one past the newest readable message."""
        ...

    def read(self, offset: QueueOffset, count_max: int) -> bytes | memoryview:
        """Return entries from ``offset`` on."""
        ...


class Records(Protocol):
    """The part of the commit log that pulling uses."""

    @property
    def end_position(self) -> Position:
        """Position one past the newest byte."""
        ...

    def queue(self, topic: str, queue_id: int) -> Queue | None:
        """Return a queue; None if it was never written."""
        ...

    def view(self, position: Position, size: int) -> memoryview | None:
        """Return bytes of the log; None if they are gone."""
        ...

    def select_sound(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        units: list[tuple[int, int, int]],
        *,
        is_urgent: bool = False,
    ) -> list[tuple[int, int, int]]:
        """Return the entries whose records can be served; checks all of them if urgent."""
        ...


class RecordAccess(Protocol):
    """Access to records without a look at each of them, where that is possible."""

    def gather(
        self,
        queue: Any,
        offset: int,
        units: bytes | memoryview,
        wanted: AbstractSet[int],
        *,
        count_max: int,
        bytes_max: int,
    ) -> tuple[bytes, int, int] | None:
        """Return the records of entries, joined, their number, and the number of entries scanned.

        None if they must be looked at one by one.
        """
        ...

    def cold_spans(
        self, queue: Any, offset: int, units: list[tuple[int, int, int]]
    ) -> Sequence[Span]:
        """Return the parts of the log to read into memory first; empty if none."""
        ...


class ColdRecords(NamedTuple):
    """Records that a read has found, but that are not in memory."""

    spans: Sequence[Span]
    """Their positions and sizes in the log."""


class PullLimits(NamedTuple):
    """Bounds on the result of one pull; lower for messages that are no longer in memory."""

    memory_bytes: int
    bytes_in_memory: int = 262_144
    count_in_memory: int = 32
    bytes_on_disk: int = 65_536
    count_on_disk: int = 8
    scan_bytes: int = 16_000
    batch_max: int = 160


class PullResult(NamedTuple):
    """The outcome of a read. ``views`` are the records, back to back, in one or more pieces."""

    code: int
    status: str
    next_offset: int
    first: int
    end: int
    views: Sequence[bytes | memoryview]
    size: int = 0
    message_count: int = 0
    is_far_behind: bool = False
    """Whether even the last record read is further behind than memory reaches, so that a slave
    should serve the next read."""


class QueueReader:
    """Reads queues for consumers.

    Args:
        access: Joins records that need no check, and knows which are not in memory.
    """

    def __init__(self, *, records: Records, access: RecordAccess, limits: PullLimits) -> None:
        self._records = records
        self._access = access
        self.limits = limits
        """Current limits; may be replaced while the broker runs."""

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        tags: AbstractSet[int],
        matcher: Matcher | None = None,
        bytes_max: int | None = None,
        defers_cold: bool = False,
    ) -> PullResult | ColdRecords:
        """Return the messages at ``offset``, or why there are none, and the next offset.

        Args:
            topic: The topic.
            queue_id: The queue.
            offset: The first queue offset wanted.
            count_max: Maximum number of messages.
            tags: Wanted tags codes; empty means all.
            matcher: Decides which records are wanted; None means all.
            bytes_max: Maximum number of bytes, below the broker's own limits; the first record
                may exceed it. None or 0 for no further limit.
            defers_cold: Whether to return the places of records that are not in memory, instead of
                waiting for the disk.
        """
        queue = self._records.queue(topic, queue_id)
        if queue is None or queue.end == 0:
            status = "NO_MATCHED_LOGIC_QUEUE" if queue is None else "NO_MESSAGE_IN_QUEUE"
            code = ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
            return PullResult(code, status, 0, 0, 0, [])
        first, end = queue.first, queue.end
        if offset == end:
            return _nothing(ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", end, first, end)
        if offset > end:
            return _nothing(
                ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", end, first, end
            )
        if offset < first:
            return _nothing(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", first, first, end)
        return self._read(
            (topic, queue_id),
            queue,
            QueueOffset(offset),
            max(count_max, 1),
            tags,
            matcher,
            bytes_max,
            defers_cold,
        )

    def end(self, topic: str, queue_id: int) -> int:
        """Return the offset one past the newest readable message of a queue."""
        queue = self._records.queue(topic, queue_id)
        return 0 if queue is None else int(queue.end)

    def _read(
        self,
        name: tuple[str, int],
        queue: Queue,
        offset: QueueOffset,
        count_max: int,
        tags: AbstractSet[int],
        matcher: Matcher | None,
        bytes_wanted: int | None,
        defers_cold: bool,
    ) -> PullResult | ColdRecords:
        limits = self.limits
        first, end = queue.first, queue.end
        count_max = min(count_max, limits.batch_max)
        is_filtered = tags or matcher is not None
        scan = max(limits.scan_bytes // QUEUE_UNIT_BYTES, count_max) if is_filtered else count_max
        units = queue.read(offset, min(scan, end - offset))
        if not len(units):
            return _nothing(ResponseCode.PULL_NOT_FOUND, "OFFSET_FOUND_NULL", offset, first, end)
        in_memory = self._records.end_position - int.from_bytes(units[:8], "big") <= (
            limits.memory_bytes
        )
        count_max = min(count_max, limits.count_in_memory if in_memory else limits.count_on_disk)
        bytes_max = limits.bytes_in_memory if in_memory else limits.bytes_on_disk
        if bytes_wanted is not None and 0 < bytes_wanted < bytes_max:
            bytes_max = bytes_wanted
        if matcher is None:
            gathered = self._access.gather(
                queue, offset, units, tags, count_max=count_max, bytes_max=bytes_max
            )
            if gathered is not None and gathered[1]:
                joined, count, passed = gathered
                return PullResult(
                    ResponseCode.SUCCESS,
                    "FOUND",
                    offset + passed,
                    first,
                    end,
                    (joined,),
                    len(joined),
                    count,
                    not in_memory and self._is_far(units, passed),
                )
            chosen, passed = scan_units(units, tags, count_max=count_max, bytes_max=bytes_max)
        else:
            chosen, passed = choose(
                units,
                matcher,
                self._records.view,
                count_max=count_max,
                bytes_max=bytes_max,
                work_max=WORK_MAX if in_memory else WORK_MAX // _DISK_FACTOR,
            )
        next_offset = offset + passed
        if not chosen:
            status, code = "NO_MATCHED_MESSAGE", ResponseCode.PULL_RETRY_IMMEDIATELY
            return _nothing(code, status, next_offset, first, end)
        if defers_cold and (spans := self._access.cold_spans(queue, offset, chosen)):
            return ColdRecords(spans)
        chosen = self._records.select_sound(*name, offset, chosen)
        found = self._views(chosen)
        if found is None:
            chosen = self._records.select_sound(*name, offset, chosen, is_urgent=True)
            found = self._views(chosen)
        if not chosen or found is None:
            status, code = "MESSAGE_WAS_REMOVING", ResponseCode.PULL_RETRY_IMMEDIATELY
            return _nothing(code, status, next_offset, first, end)
        views, size = found
        return PullResult(
            ResponseCode.SUCCESS,
            "FOUND",
            next_offset,
            first,
            end,
            views,
            size,
            len(chosen),
            not in_memory and self._is_far(units, passed),
        )

    def _is_far(self, units: bytes | memoryview, passed: int) -> bool:
        """Tell whether the last of ``passed`` entries is further behind than memory reaches."""
        at = (passed - 1) * QUEUE_UNIT_BYTES
        position = int.from_bytes(units[at : at + 8], "big")
        return self._records.end_position - position > self.limits.memory_bytes

    def _views(self, chosen: list[tuple[int, int, int]]) -> tuple[list[memoryview], int] | None:
        """Return the records and their size; records adjacent in the log share one view.

        None if one of them is missing.
        """
        views: list[memoryview] = []
        total = 0
        view = self._records.view
        start = run = 0
        for _, position, size in chosen:
            if position == start + run and run:
                run += size
                continue
            if run:
                found = view(Position(start), run)
                if found is None:
                    return None
                views.append(found)
                total += run
            start, run = position, size
        if run:
            found = view(Position(start), run)
            if found is None:
                return None
            views.append(found)
            total += run
        return views, total


def choose(
    units: bytes | memoryview,
    matcher: Matcher,
    view: Callable[[Position, int], memoryview | None],
    *,
    count_max: int,
    bytes_max: int,
    work_max: int,
) -> tuple[list[tuple[int, int, int]], int]:
    """Choose entries by their records, as ``kernel.queue_scan.scan_units`` does by their tags.

    Args:
        units: Whole entries.
        matcher: Decides which records are wanted.
        view: Returns a record, None if it is gone.
        count_max: Maximum number of entries to choose.
        bytes_max: Maximum number of bytes of records; the first record may exceed it.
        work_max: Maximum cost of matching; one record is always matched.
    """
    chosen: list[tuple[int, int, int]] = []
    total = spent = ordinal = 0
    for position, size, _ in _UNIT.iter_unpack(units):
        if spent > work_max or len(chosen) >= count_max:
            return chosen, ordinal
        record = view(Position(position), size)
        if record is None:
            if size != _FILLER_SIZE:  # the check before serving reports why it is missing
                chosen.append((ordinal, position, size))
        else:
            wanted, work = matcher.matches(record)
            spent += work
            if wanted:
                total += size
                if total > bytes_max and chosen:
                    return chosen, ordinal
                chosen.append((ordinal, position, size))
        ordinal += 1
    return chosen, ordinal


def _nothing(code: int, status: str, next_offset: int, first: int, end: int) -> PullResult:
    return PullResult(code, status, next_offset, first, end, [])
