from __future__ import annotations

from typing import NamedTuple

import pytest

from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.model.ids import QueueOffset
from rocketpost.server.metrics.group_lags import (
    READS_AT_ONCE,
    GroupLags,
    LagQueue,
    StoreTimes,
    collect_lags,
)
from rocketpost.store.log.segment import ReadPages
from rocketpost.testing.clock import FakeClock

NOW_MS = 1_000_000


class Queue:
    """A queue whose message at offset n was stored at second n."""

    def __init__(self, queue_id: int, first: int, end: int) -> None:
        self.queue_id = queue_id
        self.first = QueueOffset(first)
        self.end = QueueOffset(end)

    def store_time(self, offset: int, pages: ReadPages) -> int:
        return offset * 1000 if self.first <= offset < self.end else -1


class Lag(NamedTuple):
    """A row of the columns."""

    topic: str
    group: str
    ready: int
    in_flight: int
    lag_ms: int
    queueing_ms: int


def lags(
    offsets: OffsetTable,
    queues: dict[str, list[LagQueue]],
    popped: int = 0,
    times: StoreTimes | None = None,
    deleted: str = "",
) -> list[Lag]:
    found = GroupLags()
    steps = collect_lags(
        found,
        offsets,
        lambda topic: queues.get(topic, []),
        {("T", "G", 0): popped} if popped else {},
        times or StoreTimes(),
        exist=lambda topic, group: deleted not in (topic, group),
        now_ms=NOW_MS,
    )
    for _ in steps:
        pass
    columns = found.ready, found.in_flight, found.lag_ms, found.queueing_ms
    return [Lag(*names, *row) for names, *row in zip(found.readers, *columns, strict=True)]


def table(*rows: tuple[int, int]) -> OffsetTable:
    offsets = OffsetTable(clock=FakeClock())
    for queue_id, offset in rows:
        offsets.commit("T", "G", queue_id, offset)
    return offsets


def test_ready_and_given_messages_are_told_apart() -> None:
    offsets = table((0, 10))
    offsets.note_pull("T", "G", 0, 14)
    (lag,) = lags(offsets, {"T": [Queue(0, 0, 20)]})
    assert (lag.ready, lag.in_flight) == (6, 4)
    assert (lag.lag_ms, lag.queueing_ms) == (NOW_MS - 10_000, NOW_MS - 14_000)


def test_a_group_at_the_end_has_no_lag() -> None:
    (lag,) = lags(table((0, 20)), {"T": [Queue(0, 0, 20)]})
    assert lag == Lag("T", "G", 0, 0, 0, 0)


def test_deleted_messages_and_queues_never_committed_do_not_count() -> None:
    (lag,) = lags(table((0, 5)), {"T": [Queue(0, 15, 20), Queue(1, 0, 100)]})
    assert (lag.ready, lag.in_flight) == (5, 0)


def test_an_offset_beyond_the_end_is_no_negative_lag() -> None:
    (lag,) = lags(table((0, 50)), {"T": [Queue(0, 0, 20)]})
    assert (lag.ready, lag.in_flight) == (0, 0)


def test_popped_messages_are_in_flight() -> None:
    (lag,) = lags(table((0, 20)), {"T": [Queue(0, 0, 20)]}, popped=3)
    assert (lag.ready, lag.in_flight) == (0, 3)


def test_the_oldest_queue_decides_the_age() -> None:
    (lag,) = lags(table((0, 10), (1, 4)), {"T": [Queue(0, 0, 20), Queue(1, 0, 20)]})
    assert lag.lag_ms == NOW_MS - 4000


def test_a_deleted_topic_has_no_lag() -> None:
    (lag,) = lags(table((0, 10)), {})
    assert (lag.ready, lag.in_flight) == (0, 0)


@pytest.mark.parametrize("deleted", ["T", "G"])
def test_offsets_of_a_deleted_topic_or_group_are_left_out(deleted: str) -> None:
    assert lags(table((0, 10)), {"T": [Queue(0, 0, 20)]}, deleted=deleted) == []


def test_pages_are_read_again_when_others_have_run() -> None:
    offsets, times = OffsetTable(clock=FakeClock()), StoreTimes()
    for number in range(2 * READS_AT_ONCE):
        offsets.commit("T", f"G{number}", 0, 10)
    read: list[ReadPages] = []

    class Noting(Queue):
        def store_time(self, offset: int, pages: ReadPages) -> int:
            read.append(pages)
            return 0

    queues: dict[str, list[LagQueue]] = {"T": [Noting(0, 0, 20)]}
    assert len(lags(offsets, queues, times=times)) == 2 * READS_AT_ONCE
    assert all(pages is read[0] for pages in read[:READS_AT_ONCE])
    assert not any(pages is read[0] for pages in read[READS_AT_ONCE:])


def test_a_record_is_read_when_a_group_has_moved_and_not_at_each_scrape() -> None:
    offsets, times = table((0, 10), (1, 4)), StoreTimes()
    offsets.note_pull("T", "G", 0, 14)
    queues: dict[str, list[LagQueue]] = {"T": [Queue(0, 0, 20), Queue(1, 0, 20)]}
    first = lags(offsets, queues, times=times)
    assert times.reads == 3  # two of them in queue 0: given and not given
    assert lags(offsets, queues, times=times) == first
    assert times.reads == 3
    offsets.commit("T", "G", 1, 5)
    (lag,) = lags(offsets, queues, times=times)
    assert (times.reads, lag.lag_ms) == (4, NOW_MS - 5000)
    offsets.forget_group("G")
    assert lags(offsets, queues, times=times) == []
    offsets.commit("T", "G", 1, 5)
    lags(offsets, queues, times=times)
    assert times.reads == 5  # what is not used is forgotten


def test_a_message_that_cannot_be_read_has_no_age() -> None:
    class Unreadable(Queue):
        def store_time(self, offset: int, pages: ReadPages) -> int:
            return -1

    (lag,) = lags(table((0, 10)), {"T": [Unreadable(0, 0, 20)]})
    assert (lag.ready, lag.lag_ms, lag.queueing_ms) == (10, 0, 0)
