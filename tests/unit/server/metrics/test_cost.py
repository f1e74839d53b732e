"""The cost of a scrape to the event loop."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.model.histogram import Histogram
from rocketpost.model.ids import QueueOffset
from rocketpost.server.metrics.exposition import (
    SLICE_SAMPLES,
    Family,
    Labels,
    Sample,
    Writer,
    gauge,
    histogram,
)
from rocketpost.server.metrics.group_lags import (
    READS_AT_ONCE,
    GroupLags,
    LagQueue,
    StoreTimes,
    collect_lags,
)
from rocketpost.store.log.segment import ReadPages
from rocketpost.testing.clock import FakeClock

SERIES = 10_000
STEP_SECONDS_MAX = 0.01
COMMON = 'cluster="DefaultCluster",node_type="broker",node_id="broker-a"'
BOUNDS = (1024, 4096, 524_288, 1_048_576, 2_097_152, 4_194_304)
LABELS = Labels("topic", "consumer_group", "is_system")


def families() -> list[Family]:
    """Return half of the series as plain ones and half as histograms."""
    names = [(f"topic-{number}", f"group-{number}", "false") for number in range(1000)]
    plain = [
        gauge(f"rocketmq_number_{number}", "Some.", [Sample(LABELS(*each), 7) for each in names])
        for number in range(5)
    ]
    width = len(BOUNDS) + 3
    found = [(LABELS(*each), Histogram(BOUNDS)) for each in names[: SERIES // 2 // width]]
    return [*plain, histogram("rocketmq_sizes", "Some.", found, bounds=BOUNDS)]


def longest_step(steps: Iterable[object]) -> float:
    """Return the CPU time of the longest step, with which the loop serves no requests."""
    longest, began = 0.0, time.thread_time()
    for _ in steps:
        ended = time.thread_time()
        longest, began = max(longest, ended - began), ended
    return longest


def write() -> Iterable[bytes]:
    return Writer(common=COMMON, series_max=50_000).slices(families())


def test_ten_thousand_series_keep_the_loop_for_less_than_ten_milliseconds() -> None:
    text = b"".join(write()).decode()
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert SERIES * 0.98 < len(samples) <= SERIES
    assert min(longest_step(write()) for _ in range(7)) < STEP_SECONDS_MAX / 2


class Queue:
    """A queue whose store times are on a slow disk."""

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.first = QueueOffset(0)
        self.end = QueueOffset(100)

    def store_time(self, offset: int, pages: ReadPages) -> int:
        return offset


@pytest.mark.parametrize("queues", [1, 4])
def test_lag_is_computed_in_short_steps(queues: int) -> None:
    offsets, times = OffsetTable(clock=FakeClock()), StoreTimes()
    for number in range(SERIES // 5 // 4):
        for queue_id in range(queues):
            offsets.commit(f"topic-{number}", f"group-{number}", queue_id, 50)
    found: list[LagQueue] = [Queue(number) for number in range(queues)]

    def collect(lags: GroupLags) -> Iterable[object]:
        return collect_lags(
            lags,
            offsets,
            lambda topic: found,
            {},
            times,
            exist=lambda topic, group: True,
            now_ms=1000,
        )

    first = GroupLags()
    assert sum(1 for _ in collect(first)) >= SERIES // 5 // 4 * queues // READS_AT_ONCE - 1
    assert len(first.readers) == SERIES // 5 // 4
    assert min(longest_step(collect(GroupLags())) for _ in range(7)) < STEP_SECONDS_MAX / 2


def test_slices_are_short() -> None:
    counts = [part.count(b"\n") for part in write()]
    assert max(counts) <= SLICE_SAMPLES + 2  # HELP and TYPE
