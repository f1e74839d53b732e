"""Numbers, sizes, times and charts as text."""

from __future__ import annotations

import pytest

from rocketpost.console.collect.history import Point
from rocketpost.console.shapes import (
    bytes_text,
    count_bars,
    draw_chart,
    duration_text,
    moment_text,
    number_text,
    parse_moment,
    rate_text,
)

NOW = 1_763_445_731_123


def test_unknown_is_said_to_be_unknown() -> None:
    for shape in (number_text, rate_text, bytes_text, duration_text):
        assert shape(None) == "N/A"
    assert moment_text(0, "utc") == "N/A"


def test_numbers() -> None:
    assert number_text(1234567) == "1,234,567"
    assert number_text(1.25, 1) == "1.2"
    assert rate_text(0) == "0"
    assert rate_text(3.14159) == "3.1"
    assert rate_text(1234.5) == "1,234"
    assert bytes_text(512) == "512 B"
    assert bytes_text(3 * 1024**3) == "3.0 GiB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.25, "250 ms"),
        (59, "59 s"),
        (200, "3 m 20 s"),
        (3600, "1 h"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_times_name_their_zone() -> None:
    assert moment_text(NOW, "utc") == "2025-11-18 06:02:11.123 UTC"
    assert moment_text(10**17, "utc") == "100000000000000000"


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("now", NOW),
        ("-15m", NOW - 900_000),
        ("1763445731000", 1_763_445_731_000),
        ("2025-11-18 06:02:11", 1_763_445_731_000),
        ("2025-11-18T07:02+01:00", 1_763_445_720_000),
    ],
)
def test_times_are_read(text: str, at_ms: int) -> None:
    assert parse_moment(text, now_ms=NOW) == at_ms


@pytest.mark.parametrize("text", ["-99999d", "1969-07-20 20:17", "0001-01-01 00:00+14:00"])
def test_a_time_before_1970_is_the_first_one(text: str) -> None:
    at_ms = parse_moment(text, now_ms=NOW)
    assert at_ms == 0
    assert parse_moment(str(at_ms), now_ms=NOW) == at_ms


def test_other_text_is_no_time() -> None:
    with pytest.raises(ValueError, match="isoformat"):
        parse_moment("yesterday", now_ms=NOW)


def test_a_gap_in_a_chart_is_drawn_as_a_gap() -> None:
    values = [1.0, 2.0, None, 4.0, 3.0]
    points = [Point(NOW + index * 5000, value) for index, value in enumerate(values)]
    chart = draw_chart(points, width=100, height=20)
    assert chart is not None
    assert len(chart.paths) == 2
    assert chart.high == 4
    assert draw_chart(points[:1]) is None


def test_bars_are_the_most_frequent_values() -> None:
    assert count_bars(["a", "b", "a"]) == [("a", 2, 1.0), ("b", 1, 0.5)]
    assert count_bars([]) == []
