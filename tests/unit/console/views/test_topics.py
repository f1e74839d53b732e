from __future__ import annotations

from rocketpost.codec.bodies.stats import StatsBody, WindowStats
from rocketpost.console.views.topics import Traffic, adopt_rate, sum_traffic


def counted(minute: int, hour: int = 0, day: int = 0) -> StatsBody:
    return StatsBody(
        stats_minute=WindowStats(sum=minute, tps=minute / 60),
        stats_hour=WindowStats(sum=hour),
        stats_day=WindowStats(sum=day),
    )


def test_traffic_is_added_up_over_brokers() -> None:
    answers = [[counted(60, 100, 900), counted(6000)], [counted(120, 200, 1000), counted(600)]]
    assert sum_traffic([*answers]) == Traffic(in_tps=3.0, in_bytes=110.0, hour=300, day=1900)


def test_before_an_hour_has_passed_the_minute_counts() -> None:
    found = sum_traffic([[counted(60), counted(600)]])
    assert (found.hour, found.day) == (60, 60)


def test_a_part_is_not_the_whole() -> None:
    assert sum_traffic([[counted(60), counted(600)], None]) == Traffic()
    assert sum_traffic([]) == Traffic()


def test_rates_of_messages_and_bytes_are_of_the_same_time() -> None:
    minute = Traffic(in_tps=2.0, in_bytes=200.0, hour=1, day=1)
    assert adopt_rate(minute, None) == minute
    assert adopt_rate(minute, 5.0) == Traffic(in_tps=5.0, in_bytes=500.0, hour=1, day=1)
    assert adopt_rate(minute, 0.0) == Traffic(in_tps=0.0, in_bytes=0.0, hour=1, day=1)
    assert adopt_rate(Traffic(), 5.0) == Traffic(in_tps=5.0)
    quiet = Traffic(in_tps=0.0, in_bytes=0.0)
    assert adopt_rate(quiet, 5.0).in_bytes is None
    assert adopt_rate(quiet, 0.0).in_bytes == 0.0
