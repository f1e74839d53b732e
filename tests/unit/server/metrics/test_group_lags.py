from __future__ import annotations

from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.model.ids import QueueOffset
from rocketpost.server.metrics.group_lags import GroupLag, LagQueue, StoreTimes, group_lags
from rocketpost.testing.clock import FakeClock

NOW_MS = 1_000_000


class Queue:
    """A queue whose message at offset n was stored at second n."""

    def __init__(self, queue_id: int, first: int, end: int) -> None:
        self.queue_id = queue_id
        self.first = QueueOffset(first)
        self.end = QueueOffset(end)

    def store_time(self, offset: int) -> int:
        return offset * 1000 if self.first <= offset < self.end else -1


def lags(
    offsets: OffsetTable,
    queues: dict[str, list[LagQueue]],
    popped: int = 0,
    times: StoreTimes | None = None,
) -> list[GroupLag]:
    return list(
        group_lags(
            offsets,
            lambda topic: queues.get(topic, []),
            {("T", "G", 0): popped} if popped else {},
            times or StoreTimes(),
            now_ms=NOW_MS,
        )
    )


def table(*rows: tuple[int, int]) -> OffsetTable:
    offsets = OffsetTable(clock=FakeClock())
    for queue_id, offset in rows:
        offsets.commit("T", "G", queue_id, offset)
    return offsets


def test_ready_and_given_messages_are_told_apart() -> None:
    offsets = table((0, 10))
    offsets.note_pull("T", "G", 0, 14)
    (lag,) = lags(offsets, {"T": [Queue(0, 0, 20)]})
    assert (lag.ready, lag.in_flight, lag.lag) == (6, 4, 10)
    assert (lag.lag_ms, lag.queueing_ms) == (NOW_MS - 10_000, NOW_MS - 14_000)


def test_a_group_at_the_end_has_no_lag() -> None:
    (lag,) = lags(table((0, 20)), {"T": [Queue(0, 0, 20)]})
    assert lag == GroupLag("T", "G", 0, 0, 0, 0)


def test_deleted_messages_and_queues_never_committed_do_not_count() -> None:
    (lag,) = lags(table((0, 5)), {"T": [Queue(0, 15, 20), Queue(1, 0, 100)]})
    assert lag.lag == 5


def test_an_offset_beyond_the_end_is_no_negative_lag() -> None:
    (lag,) = lags(table((0, 50)), {"T": [Queue(0, 0, 20)]})
    assert lag.lag == 0


def test_popped_messages_are_in_flight() -> None:
    (lag,) = lags(table((0, 20)), {"T": [Queue(0, 0, 20)]}, popped=3)
    assert (lag.ready, lag.in_flight) == (0, 3)


def test_the_oldest_queue_decides_the_age() -> None:
    (lag,) = lags(table((0, 10), (1, 4)), {"T": [Queue(0, 0, 20), Queue(1, 0, 20)]})
    assert lag.lag_ms == NOW_MS - 4000


def test_a_deleted_topic_has_no_lag() -> None:
    (lag,) = lags(table((0, 10)), {})
    assert lag.lag == 0


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
        def store_time(self, offset: int) -> int:
            return -1

    (lag,) = lags(table((0, 10)), {"T": [Unreadable(0, 0, 20)]})
    assert (lag.lag, lag.lag_ms, lag.queueing_ms) == (10, 0, 0)
