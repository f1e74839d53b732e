"""The frames that a slave is sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.ha_frames import BODY_BYTES_MAX
from rocketpost.errors import ReplicationError
from rocketpost.replication.sender import Frame, LogSender, stated_bytes

from .logs import MasterLog, filler


def sender(**changes: Any) -> LogSender:
    values: dict[str, Any] = {
        "first": 0,
        "end": 0,
        "segment_bytes": 100,
        "batch_bytes": 30,
        "window_bytes": 1000,
        "heartbeat_ms": 5000,
    }
    return LogSender(**(values | changes))


def sent(machine: LogSender, first: int, end: int, now_ms: int = 0) -> list[Frame]:
    frames = []
    while (frame := machine.next_frame(first, end, now_ms)) is not None:
        frames.append(frame)
    return frames


def test_nothing_is_sent_before_the_request() -> None:
    machine = sender()
    assert sent(machine, 0, 500, 10_000) == []
    assert machine.requested is None


def test_frames_follow_each_other_within_segments() -> None:
    machine = sender()
    machine.report(50, 0)
    assert sent(machine, 0, 170) == [(50, 30), (80, 20), (100, 30), (130, 30), (160, 10)]
    assert (machine.requested, machine.next, machine.acked) == (50, 170, 50)
    assert sent(machine, 0, 175) == [(170, 5)]
    machine.report(170, 0)
    assert machine.acked == 170


def test_a_frame_of_any_setting_fits_the_buffer_of_a_java_slave() -> None:
    machine = sender(segment_bytes=2**30, batch_bytes=2**30, window_bytes=2**30)
    machine.report(0, 0)
    assert machine.next_frame(0, 2**30, 0) == (0, BODY_BYTES_MAX)


def test_the_head_of_a_frame() -> None:
    assert Frame(5, 7).head().hex() == "000000000000000500000007"


@pytest.mark.parametrize(
    ("from_last_segment", "first", "end", "start"),
    [
        (False, 200, 450, 200),
        (True, 200, 450, 400),
        (True, 200, 400, 400),
        (False, 0, 50, 0),
        (True, 0, 50, 0),
        (True, 300, 300, 300),
    ],
)
def test_an_empty_slave_gets_the_whole_log_or_the_last_segment(
    from_last_segment: bool, first: int, end: int, start: int
) -> None:
    machine = sender(from_last_segment=from_last_segment)
    machine.report(0, 0)
    frames = sent(machine, first, end)
    assert machine.next == end
    assert (frames[0].position if frames else end) == start
    machine.report(0, 0)  # it has not appended anything yet
    assert machine.acked == 0
    machine.report(end, 0)
    assert machine.acked == end


def test_the_window_bounds_what_is_not_acknowledged() -> None:
    machine = sender(window_bytes=70)
    machine.report(0, 0)
    assert sent(machine, 0, 1000) == [(0, 30), (30, 30), (60, 10)]
    machine.report(40, 0)
    assert sent(machine, 0, 1000) == [(70, 30), (100, 10)]
    machine.report(110, 0)
    assert sent(machine, 0, 1000) == [(110, 30), (140, 30), (170, 10)]


def test_the_window_of_an_empty_slave_counts_from_the_start_of_the_log() -> None:
    machine = sender(window_bytes=40)
    machine.report(0, 0)
    assert sent(machine, 500, 1000) == [(500, 30), (530, 10)]


def test_the_window_has_room_for_one_frame_at_least() -> None:
    machine = sender(window_bytes=1)
    machine.report(0, 0)
    assert sent(machine, 0, 1000) == [(0, 30)]


def test_one_record_may_be_larger_than_the_window() -> None:
    asked = []

    def record_bytes(position: int) -> int:
        asked.append(position)
        return 75

    machine = sender(window_bytes=40, record_bytes=record_bytes)
    machine.report(0, 0)
    assert sent(machine, 0, 1000) == [(0, 30), (30, 30), (60, 15)]
    assert set(asked) == {0}
    machine.report(75, 0)
    assert sum(frame.size for frame in sent(machine, 0, 1000)) == 75


def test_the_size_that_a_record_states() -> None:
    log = MasterLog().add(100)
    assert stated_bytes(log.bytes_of(0, 8)) == log.end
    assert stated_bytes(memoryview(filler(1000))) == 24
    assert stated_bytes(log.bytes_of(1, 8)) == 0
    assert stated_bytes(b"") == stated_bytes(None) == 0


def test_heartbeats_name_the_next_byte() -> None:
    machine = sender(window_bytes=40)
    machine.report(0, 1000)
    assert sent(machine, 0, 1000, 2000) == [(0, 30), (30, 10)]
    assert sent(machine, 0, 1000, 6999) == []
    assert sent(machine, 0, 1000, 7000) == [(40, 0)]
    assert sent(machine, 0, 1000, 11_999) == []
    assert sent(machine, 0, 1000, 12_000) == [(40, 0)]


def test_a_heartbeat_to_an_empty_slave_is_at_the_start_of_a_segment() -> None:
    machine = sender()
    machine.report(0, 0)
    assert sent(machine, 300, 300, 5000) == [(300, 0)]


@pytest.mark.parametrize(
    ("requested", "why"),
    [(451, "ends at 451, but this log ends at 450"), (199, "before 200 was deleted")],
)
def test_a_slave_that_cannot_be_served_is_stuck_for_good(requested: int, why: str) -> None:
    machine = sender()
    machine.report(requested, 0)
    assert sent(machine, 200, 450, 5000) == [(requested, 0)]
    assert why in machine.stuck
    machine.report(requested, 5000)
    assert sent(machine, 200, 450, 9000) == []
    assert sent(machine, 200, 2000, 10_000) == [(requested, 0)]  # the log has grown past it
    assert machine.acked == 0


def test_a_slow_slave_is_stuck_when_its_part_of_the_log_is_deleted() -> None:
    machine = sender(window_bytes=30)
    machine.report(0, 0)
    assert sent(machine, 0, 1000) == [(0, 30)]
    machine.report(30, 0)
    assert sent(machine, 100, 1000) == []
    assert "before 100 was deleted" in machine.stuck
    assert machine.acked == 30


@pytest.mark.parametrize(("reports", "why"), [([50, 121], "only sent"), ([50, 110, 109], "lost")])
def test_impossible_reports_end_the_connection(reports: list[int], why: str) -> None:
    machine = sender()
    *good, bad = reports
    for position in good:
        machine.report(position, 0)
        sent(machine, 0, 120)
    with pytest.raises(ReplicationError, match=why):
        machine.report(bad, 0)


@given(
    requested=st.integers(0, 120),
    segment_bytes=st.integers(1, 50),
    batch_bytes=st.integers(1, 60),
    window_bytes=st.integers(1, 60),
    steps=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), max_size=20),
)
def test_frames_cover_the_log_without_gaps(
    requested: int,
    segment_bytes: int,
    batch_bytes: int,
    window_bytes: int,
    steps: list[tuple[int, int]],
) -> None:
    end = 120
    machine = sender(
        segment_bytes=segment_bytes, batch_bytes=batch_bytes, window_bytes=window_bytes
    )
    machine.report(requested, 0)
    has = requested
    for growth, acknowledged in steps:
        end += growth
        for position, size in sent(machine, 0, end):
            assert position == has
            assert 0 < size <= batch_bytes
            assert position % segment_bytes + size <= segment_bytes
            has += size
        assert has <= end
        assert has - machine.acked <= max(window_bytes, batch_bytes)
        assert has == end or has - machine.acked == max(window_bytes, batch_bytes)
        machine.report(min(machine.acked + acknowledged, has), 0)
