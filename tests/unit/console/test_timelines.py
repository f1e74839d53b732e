"""Drawings of owners of queues, and marks on charts."""

from __future__ import annotations

from rocketpost.console.collect.history import Point
from rocketpost.console.collect.holdings import Stint
from rocketpost.console.shapes import draw_chart
from rocketpost.console.timelines import WIDTH, Event, draw_timeline, place_marks

NOW = 10_000_000


def stint(client: str, begin_ms: int, seen_ms: int) -> Stint:
    return Stint(client=client, begin_ms=begin_ms, seen_ms=seen_ms)


def test_stints_are_bands_with_the_letter_of_their_owner() -> None:
    queues = {"q1": [stint("b", NOW - 50_000, NOW)], "q0": [
        stint("a", NOW - 100_000, NOW - 60_000), stint("b", NOW - 50_000, NOW)
    ]}  # fmt: skip
    drawn = draw_timeline(queues, now_ms=NOW, flapping=["q0"])
    assert drawn is not None
    assert drawn.clients == {"a": "A", "b": "B"}
    first, second = drawn.rows
    assert (first.queue, first.is_flapping, second.is_flapping) == ("q0", True, False)
    assert [(band.letter, band.x, band.width) for band in first.bands] == [
        ("A", 0.0, 0.4 * WIDTH),
        ("B", 0.5 * WIDTH, 0.5 * WIDTH),
    ]


def test_bands_stay_within_the_drawing_and_old_ones_are_left_out() -> None:
    queues = {
        "old": [stint("a", 0, NOW - 3_600_001)],
        "now": [stint("a", 0, NOW - 1_800_000), stint("b", NOW, NOW)],
    }
    drawn = draw_timeline(queues, now_ms=NOW)
    assert drawn is not None
    [row] = drawn.rows
    assert [(band.x, band.has_letter) for band in row.bands] == [(0.0, True), (WIDTH - 2.0, False)]
    assert draw_timeline({"old": queues["old"]}, now_ms=NOW) is None
    assert draw_timeline({}, now_ms=NOW) is None


def test_many_queues_and_owners_are_bounded_and_named() -> None:
    queues = {f"q{each:02d}": [stint(f"c{each:02d}", NOW - 60_000, NOW)] for each in range(40)}
    drawn = draw_timeline(queues, now_ms=NOW, rows_max=32)
    assert drawn is not None
    assert (len(drawn.rows), drawn.is_cut) == (32, True)
    assert (drawn.clients["c25"], drawn.clients["c26"]) == ("Z", "A2")


def test_marks_are_placed_on_the_chart_that_covers_them() -> None:
    chart = draw_chart([Point(NOW + each * 1000, 5.0) for each in range(101)], width=100)
    events = [
        Event(NOW + 50_000, "joined", "a"),
        Event(NOW - 1, "left", "b"),
        Event(NOW, "started", "broker"),
    ]
    assert chart is not None
    marks = place_marks(chart._replace(begin_ms=NOW), events)
    assert [(mark.x, mark.kind) for mark in marks] == [(0.0, "started"), (50.0, "joined")]
    assert place_marks(None, events) == []
