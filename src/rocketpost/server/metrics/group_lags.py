"""Lag of consumer groups, computed from offsets in memory in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
_Row = dict[tuple[int, int], int]
"""Store times by queue and offset."""
_NOTHING: _Row = {}


class StoreTimes:
    """Store times of the messages that groups have to consume next. Owned by the loop.

    A record of the log is read when a group has moved, not at each scrape: a stalled group's
    messages may have left the memory long ago.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Row] = {}
        self._used: dict[tuple[str, str], _Row] = {}
        self.reads = 0
        """Number of records that were read so far."""

    def row(self, reader: tuple[str, str]) -> _Row:
        """Return the times of a topic and group that are known from the round before."""
        return self._known.get(reader, _NOTHING)

    def keep(self, reader: tuple[str, str], row: _Row) -> None:
        """Remember the times of a topic and group for the next round."""
        self._used[reader] = row

    def read(self, queue: LagQueue, offset: int) -> int:
        """Return the store time of a message in ms; negative if it cannot be read."""
        self.reads += 1
        return queue.store_time(offset)

    def end_round(self) -> None:
        """Forget the groups that were not used since the last call."""
        self._known, self._used = self._used, {}


def group_lags(
    offsets: OffsetTable,
    queues_of: Callable[[str], Iterable[LagQueue]],
    in_pops: Mapping[_Cursor, int],
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
        in_pops: The numbers of messages of a (topic, group, queue) that were popped and have not
            been acknowledged. The group's offset is already behind them.
        times: The store times that are known from the round before.
        now_ms: The time.
    """
    for reader, committed, pulled in offsets.each_row():
        topic, group = reader
        if is_own_offset(topic, group):
            continue
        known, used = times.row(reader), _Row()
        ready = in_flight = 0
        oldest = waiting = now_ms
        for queue in queues_of(topic):
            queue_id = queue.queue_id
            done = committed.get(queue_id)
            if done is None:
                continue
            if in_pops:
                in_flight += in_pops.get((topic, group, queue_id), 0)
            end = queue.end
            if done >= end:
                continue
            done = max(done, queue.first)
            given = pulled.get(queue_id, done)
            given = done if given <= done else min(given, end)
            ready += end - given
            in_flight += given - done
            for offset in (done,) if given == done else (done, given):
                if offset == end:
                    continue  # the group was given everything
                time_ms = known.get((queue_id, offset))
                if time_ms is None:
                    time_ms = times.read(queue, offset)
                if time_ms < 0:
                    continue
                used[queue_id, offset] = time_ms
                if offset == done and time_ms < oldest:
                    oldest = time_ms
                if offset == given and time_ms < waiting:
                    waiting = time_ms
        if used:
            times.keep(reader, used)
        yield GroupLag(topic, group, ready, in_flight, now_ms - oldest, now_ms - waiting)
    times.end_round()
