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


class _QueueLag(NamedTuple):
    ready: int
    in_flight: int
    oldest_ms: int | None
    waiting_ms: int | None


def group_lags(
    offsets: OffsetTable,
    queues_of: Callable[[str], list[LagQueue]],
    in_pops: Callable[[tuple[str, str, int]], int],
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
        now_ms: The time.
    """
    for topic, group in offsets.rows:
        if is_own_offset(topic, group):
            continue
        committed = offsets.row(topic, group)
        if not committed:
            continue  # it was deleted meanwhile
        found = [
            _queue_lag(
                queue,
                committed[queue.queue_id],
                offsets.pulled_offset(topic, group, queue.queue_id),
                in_pops((topic, group, queue.queue_id)),
            )
            for queue in queues_of(topic)
            if queue.queue_id in committed
        ]
        yield GroupLag(
            topic,
            group,
            ready=sum(each.ready for each in found),
            in_flight=sum(each.in_flight for each in found),
            lag_ms=_age(now_ms, [each.oldest_ms for each in found]),
            queueing_ms=_age(now_ms, [each.waiting_ms for each in found]),
        )


def _queue_lag(queue: LagQueue, committed: int, pulled: int, popped: int) -> _QueueLag:
    first, end = queue.first, queue.end
    done = min(max(committed, first), end)
    given = min(max(pulled, done), end)
    waiting_ms = _time(queue, given) if given < end else None
    oldest_ms = waiting_ms if done == given else _time(queue, done)
    return _QueueLag(end - given, given - done + popped, oldest_ms, waiting_ms)


def _time(queue: LagQueue, offset: int) -> int | None:
    time_ms = queue.store_time(offset)
    return time_ms if time_ms >= 0 else None


def _age(now_ms: int, times: list[int | None]) -> int:
    oldest = min((each for each in times if each is not None), default=now_ms)
    return max(0, now_ms - oldest)
