"""Samples over time take bounded memory."""

from __future__ import annotations

from rocketpost.console.collect.history import FINE_SAMPLES, History, Point, Ring


def test_a_ring_keeps_the_newest_samples_in_order() -> None:
    ring = Ring(3)
    assert ring.last_ms == 0
    for number in range(5):
        ring.add(number * 10, None if number == 3 else number)
    assert list(ring.points()) == [Point(20, 2.0), Point(30, None), Point(40, 4.0)]
    assert list(ring.points(since_ms=40)) == [Point(40, 4.0)]
    assert ring.last_ms == 40


def test_a_number_that_was_always_zero_takes_no_memory() -> None:
    history = History(series_max=2)
    history.add("idle", 1, 0)
    assert history.find("idle") is None
    history.add("busy", 1, 5)
    history.add("busy", 2, 0)
    series = history.find("busy")
    assert series is not None
    assert len(series.fine) == 2
    history.add("other", 3, 1)
    history.add("one too many", 3, 1)
    assert history.is_full
    assert history.find("one too many") is None
    history.keep({"other"})
    assert history.find("busy") is None


def test_minutes_are_sampled_once_a_minute() -> None:
    history = History()
    for second in range(0, 300, 5):
        history.add("group", 1_000_000 + second * 1000, 1)
    series = history.find("group")
    assert series is not None
    assert len(series.fine) == 60 <= FINE_SAMPLES
    assert len(series.minutes) == 5
