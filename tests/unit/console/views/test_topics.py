from __future__ import annotations

from rocketpost.codec.bodies.stats import StatsBody, WindowStats
from rocketpost.console.views.topics import Traffic, sum_traffic


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
