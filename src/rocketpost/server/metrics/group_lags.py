"""Lag of consumer groups, computed from offsets in memory in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.model.ids import QueueOffset
from rocketpost.model.names import is_own_offset


class LagQueue(Protocol):
    """A queue, as far as lag is concerned."""

    @property
    def queue_id(self) -> int:
        """Number of the queue in its topic."""
        ...

    @property
    def first(self) -> QueueOffset:
        """Offset of the first message that is still there."""
        ...

    @property
    def end(self) -> QueueOffset:
        """Offset of the next message."""
        ...

    def store_time(self, offset: int) -> int:
        """Return the store time of a message in ms; negative if it cannot be read."""
        ...


class GroupLag(NamedTuple):
    """Progress of one group in one topic."""

    topic: str
    group: str
    ready: int
    """Messages that the group was not given yet."""
    in_flight: int
    """Messages that it was given and has not committed or acknowledged."""
    lag_ms: int
    """Age of the oldest message that is not consumed; 0 if there is none."""
    queueing_ms: int
    """Age of the oldest message that the group was not given yet; 0 if there is none."""

    @property
    def lag(self) -> int:
        """Messages that are not consumed."""
        return self.ready + self.in_flight


_Cursor = tuple[str, str, int]
"""Topic, group and queue."""


class StoreTimes:
    """Store times of the messages that groups have to consume next. Owned by the loop.

    A record of the log is read when a group has moved, not at each scrape: a stalled group's
    messages may have left the memory long ago.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[_Cursor, int], int] = {}
        self._used: dict[tuple[_Cursor, int], int] = {}
        self.reads = 0
        """Number of records that were read so far."""

    def at(self, cursor: _Cursor, queue: LagQueue, offset: int) -> int | None:
        """Return the store time of a message in ms; None if it cannot be read."""
        key = cursor, offset
        time_ms = self._known.get(key)
        if time_ms is None:
            self.reads += 1
            time_ms = queue.store_time(offset)
            if time_ms < 0:
                return None
        self._used[key] = time_ms
        return time_ms

    def end_round(self) -> None:
        """Forget what was not used since the last call."""
        self._known, self._used = self._used, {}


def group_lags(
    offsets: OffsetTable,
    queues_of: Callable[[str], list[LagQueue]],
    in_pops: Callable[[_Cursor], int],
    times: StoreTimes,
    *,
    now_ms: int,
) -> Iterator[GroupLag]:
    """Return the lag of every group that has offsets here.

    Offsets count messages that a filter skips, but not those that retention has deleted. A queue
    that a group never committed is not counted: it may not be the group's to consume.

    Args:
        offsets: The committed offsets.
        queues_of: Returns the queues of a topic.
        in_pops: Returns how many messages of a (topic, group, queue) were popped and have not been
            acknowledged. The group's offset is already behind them.
        times: The store times that are known from the round before.
        now_ms: The time.
    """
    for topic, group in offsets.rows:
        if is_own_offset(topic, group):
            continue
        committed = offsets.row(topic, group)
        if not committed:
            continue  # it was deleted meanwhile
        pulled = offsets.pulled_row(topic, group)
        ready = in_flight = 0
        oldest = waiting = now_ms
        for queue in queues_of(topic):
            queue_id = queue.queue_id
            done = committed.get(queue_id)
            if done is None:
                continue
            end = queue.end
            cursor = topic, group, queue_id
            in_flight += in_pops(cursor)
            if done >= end:
                continue
            done = max(done, queue.first)
            given = min(max(pulled.get(queue_id, done), done), end)
            ready += end - given
            in_flight += given - done
            time_ms = times.at(cursor, queue, done)
            if time_ms is not None:
                oldest = min(oldest, time_ms)
            if given < end:
                if given != done:
                    time_ms = times.at(cursor, queue, given)
                if time_ms is not None:
                    waiting = min(waiting, time_ms)
        yield GroupLag(topic, group, ready, in_flight, now_ms - oldest, now_ms - waiting)
    times.end_round()
