from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.broker.request_times import RequestTimes
from rocketpost.broker.stats import SIZE_BOUNDS, BrokerStats
from rocketpost.codec.bodies.stats import WindowStats
from rocketpost.model.histogram import Histogram
from rocketpost.testing.clock import FakeClock


class Message(NamedTuple):
    topic: str
    record_bytes: int
    message_count: int = 1


def pass_seconds(stats: BrokerStats, clock: FakeClock, seconds: int) -> None:
    for _ in range(seconds):
        clock.advance(1000)
        stats.sample()


def test_rates_over_three_windows(clock: FakeClock) -> None:
    stats = BrokerStats(clock=clock)
    assert stats.rates("put") == [0.0, 0.0, 0.0]
    stats.count_stored([Message("T", 100)] * 600)
    pass_seconds(stats, clock, 60)
    stats.count_stored([Message("T", 100)] * 20)
    assert stats.rates("put") == [2.0, 10.3333, 10.3333]
    pass_seconds(stats, clock, 600)
    assert stats.rates("put") == [0.0, 0.0, 0.0333]
    assert (stats.put_count, stats.put_bytes) == (620, 62_000)


def test_pulls_are_counted_by_outcome(clock: FakeClock) -> None:
    stats = BrokerStats(clock=clock)
    stats.count_get("T", "G", 8, 800)
    stats.count_get("T", "G", 2, 200)
    stats.count_empty_get()
    stats.count_failed_put()
    pass_seconds(stats, clock, 10)
    assert stats.rates("found")[0] == 0.2
    assert stats.rates("missed")[0] == 0.1
    assert stats.rates("got")[0] == 1.0
    assert stats.group_get_tps("T", "G") == 1.0
    assert stats.group_get_tps("T", "H") == 0.0
    assert stats.put_failures == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 1023, 1024, 1025, 4096, 4097, 2_000_000, 4_194_304, 9_000_000]),
            st.integers(1, 3),
            st.booleans(),
        )
    )
)
def test_sizes_are_counted_by_mean_size(runs: list[tuple[int, int, bool]]) -> None:
    clock = FakeClock()
    stats, expected = BrokerStats(clock=clock), Histogram(SIZE_BOUNDS)
    stats.times = RequestTimes(now=lambda: 0.0)
    for size, count, asks in [*runs, (1, 1, True)]:
        stats.count_stored([Message("T", size, count)])
        expected.add(size / count, count)
        if asks:
            ((_, meter),) = stats.topics()
            assert meter.sizes.counts == expected.counts
            assert meter.sizes.sum == pytest.approx(expected.sum)


def test_readers_know_their_names(clock: FakeClock) -> None:
    stats = BrokerStats(clock=clock)
    stats.count_get("T", "G", 8, 800)
    stats.count_get("%RETRY%G", "G", 1, 100)
    assert [(each.reader, each.count) for each in stats.readers()] == [
        (("T", "G"), 8),
        (("%RETRY%G", "G"), 1),
    ]


def test_items_have_rocketmqs_names(clock: FakeClock) -> None:
    stats = BrokerStats(clock=clock)
    stats.count_stored([Message("T", 100), Message("T", 300)])
    stats.count_get("T", "G", 2, 400)
    clock.advance(10_000)
    body = stats.item("TOPIC_PUT_NUMS", "T")
    assert body is not None
    assert body.stats_minute == WindowStats(sum=2, tps=0.2, avgpt=1.0)
    sizes = stats.item("TOPIC_PUT_SIZE", "T")
    assert sizes is not None
    assert sizes.stats_day == WindowStats(sum=400, tps=40.0, avgpt=200.0)
    group = stats.item("GROUP_GET_NUMS", "T@G")
    assert group is not None
    assert group.stats_hour.avgpt == 2.0
    everything = stats.item("BROKER_PUT_NUMS", "DefaultCluster")
    assert everything is not None
    assert everything.stats_day.sum == 2
    assert stats.item("BROKER_GET_NUMS", "x") is not None
    for name, key in (
        ("TOPIC_PUT_NUMS", "U"),
        ("TOPIC_PUT_LATENCY", "T"),
        ("NUMS", "T"),
        ("", ""),
        ("__class___NUMS", "T"),
    ):
        assert stats.item(name, key) is None


def test_a_counter_that_is_new_has_no_rate_yet(clock: FakeClock) -> None:
    stats = BrokerStats(clock=clock)
    stats.count_stored([Message("T", 1)])
    assert stats.topic_put_tps("T") == 0.0
    assert stats.topic_put_tps("U") == 0.0


def test_windows_slide(clock: FakeClock) -> None:
    stats = BrokerStats(clock=clock)
    stats.count_stored([Message("T", 1)] * 100)
    pass_seconds(stats, clock, 120)
    stats.count_stored([Message("T", 1)] * 6)
    body = stats.item("TOPIC_PUT_NUMS", "T")
    assert body is not None
    assert body.stats_minute == WindowStats(sum=6, tps=0.1, avgpt=1.0)
    assert body.stats_hour.sum == body.stats_day.sum == 106
    assert stats.topic_put_tps("T") == 0.1


def test_days_turn_at_midnight(clock: FakeClock) -> None:
    stats = BrokerStats(clock=clock, day_of=lambda ms: ms // 10_000)
    stats.count_stored([Message("T", 1)])
    assert stats.put_today == (0, 0, 1)
    pass_seconds(stats, clock, 10)
    stats.count_stored([Message("T", 1)])
    stats.count_get("T", "G", 5, 5)
    assert stats.put_today == (0, 1, 2)
    pass_seconds(stats, clock, 10)
    assert stats.put_today == (1, 2, 2)
    assert stats.got_today == (0, 5, 5)


def test_the_default_day_is_utc(clock: FakeClock) -> None:
    stats = BrokerStats(clock=clock)
    stats.count_stored([Message("T", 1)])
    clock.advance(86_400_000)
    stats.sample()
    assert stats.put_today == (0, 1, 1)


def test_counters_of_deleted_topics_and_groups_are_forgotten(clock: FakeClock) -> None:
    stats = BrokerStats(clock=clock)
    stats.count_stored([Message("T", 1), Message("U", 1)])
    for topic in ("T", "U"):
        for group in ("G", "H"):
            stats.count_get(topic, group, 1, 1)
            stats.count_send_back(topic, group)
    stats.forget_topic("T")
    stats.forget_groups({"H"})
    for name in ("GROUP_GET_NUMS", "SNDBCK_PUT_NUMS"):
        kept = [key for key in ("T@G", "T@H", "U@G", "U@H") if stats.item(name, key)]
        assert kept == ["U@G"]
    assert stats.item("TOPIC_PUT_NUMS", "T") is None
    assert stats.item("TOPIC_PUT_NUMS", "U") is not None
