"""Lag of consumer groups, computed from offsets in memory in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.model.ids import QueueOffset
from rocketpost.model.names import is_own_offset
from rocketpost.store.log.segment import ReadPages

ROWS_AT_ONCE: Final = 50
"""Most groups whose lag is computed in one step."""
READS_AT_ONCE: Final = 20
"""Most records that are read in one step, perhaps from the disk."""


class LagQueue(Protocol):
    """The part of a queue that lag is computed from."""

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

    def store_time(self, offset: int, pages: ReadPages) -> int:
        """Return the store time of a message in ms; negative if it cannot be read."""
        ...


class GroupLags:
    """Progress of groups in topics, as columns: a row is at the same index in all of them."""

    def __init__(self) -> None:
        self.readers: list[tuple[str, str]] = []
        """Topic and group."""
        self.ready: list[int] = []
        """Messages that the group was not given yet."""
        self.in_flight: list[int] = []
        """Messages that it was given and has not committed or acknowledged."""
        self.lag_ms: list[int] = []
        """Age of the oldest message that is not consumed; 0 if there is none."""
        self.queueing_ms: list[int] = []
        """Age of the oldest message that the group was not given yet; 0 if there is none."""


_Cursor = tuple[str, str, int]
"""Topic, group and queue."""
_Row = dict[tuple[int, int], int]
"""Store times by queue and offset."""
_Behind = list[tuple[LagQueue, int, int]]
"""Queues with messages that are not consumed: the offsets of the first, and of the first that the
group was not given."""
_NOTHING: Final[_Row] = {}


class StoreTimes:
    """Store times of the messages that groups have to consume next. Owned by the loop.

    A record of the log is read when a group has moved, not at each scrape: a stalled group's
    messages may have left the memory long ago.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Row] = {}
        self._used: dict[tuple[str, str], _Row] = {}
        self._pages = ReadPages()
        self.reads = 0
        """Number of records that were read so far."""

    def oldest(self, reader: tuple[str, str], behind: _Behind, now_ms: int) -> tuple[int, int]:
        """Return the store times of the oldest message that is not consumed, and not given.

        Both are at most ``now_ms``, which also stands for messages that cannot be read.
        """
        known, used = self._known.get(reader, _NOTHING), _Row()
        consumed_to = given_to = now_ms
        for queue, done, given in behind:
            queue_id, end = queue.queue_id, queue.end
            for offset in (done,) if given == done else (done, given):
                if offset == end:
                    continue  # the group was given everything
                at = queue_id, offset
                time_ms = known.get(at)
                if time_ms is None:
                    self.reads += 1
                    time_ms = queue.store_time(offset, self._pages)
                if time_ms < 0:
                    continue
                used[at] = time_ms
                if offset == done and time_ms < consumed_to:
                    consumed_to = time_ms
                if offset == given and time_ms < given_to:
                    given_to = time_ms
        self._used[reader] = used
        return consumed_to, given_to

    def begin_step(self) -> None:
        """Note that other work of the process has run."""
        self._pages = ReadPages()

    def end_round(self) -> None:
        """Forget the groups that were not used since the last call."""
        self._known, self._used = self._used, {}


def collect_lags(
    lags: GroupLags,
    offsets: OffsetTable,
    queues_of: Callable[[str], Iterable[LagQueue]],
    in_pops: Mapping[_Cursor, int],
    times: StoreTimes,
    *,
    exist: Callable[[str, str], bool],
    now_ms: int,
) -> Iterator[None]:
    """Collect the lag of every group that has offsets here, in short steps.

    Offsets count messages that a filter skips, but not those that retention has deleted. A queue
    that a group never committed is not counted: it may not be the group's to consume.

    Args:
        lags: Gets the rows.
        offsets: The committed offsets.
        queues_of: Returns the queues of a topic.
        in_pops: The numbers of messages of a (topic, group, queue) that were popped and have not
            been acknowledged. The group's offset is already past them.
        times: The store times that are known from the round before.
        exist: Returns whether a topic and a group exist; offsets may be kept when a group is
            deleted.
        now_ms: The time.
    """
    rows, reads = 0, times.reads
    times.begin_step()
    for reader, committed, pulled in offsets.each_row():
        topic, group = reader
        if is_own_offset(topic, group) or not exist(topic, group):
            continue
        ready = in_flight = 0
        oldest = waiting = now_ms
        behind: _Behind = []
        for queue in queues_of(topic):
            queue_id = queue.queue_id
            done = committed.get(queue_id)
            if done is None:
                continue
            if in_pops:
                in_flight += in_pops.get((topic, group, queue_id), 0)
            end = queue.end
            if done < end:
                done = max(done, queue.first)
                given = pulled.get(queue_id, done)
                given = done if given <= done else min(given, end)
                ready += end - given
                in_flight += given - done
                behind.append((queue, done, given))
        if behind:
            oldest, waiting = times.oldest(reader, behind, now_ms)
        lags.readers.append(reader)
        lags.ready.append(ready)
        lags.in_flight.append(in_flight)
        lags.lag_ms.append(now_ms - oldest)
        lags.queueing_ms.append(now_ms - waiting)
        rows += 1
        if rows >= ROWS_AT_ONCE or times.reads - reads >= READS_AT_ONCE:
            rows, reads = 0, times.reads
            yield
            times.begin_step()
    times.end_round()
