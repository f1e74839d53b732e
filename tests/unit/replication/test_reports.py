"""When a slave reports its position."""

from __future__ import annotations

import pytest

from rocketpost.replication.reports import ReportSchedule


def test_the_first_report_is_due_at_once() -> None:
    schedule = ReportSchedule()
    assert schedule.is_due(0, 0)
    assert schedule.reported == 0
    assert not schedule.is_due(0, 0)


def test_more_is_reported_at_once_and_the_same_after_the_interval() -> None:
    schedule = ReportSchedule(interval_ms=5000)
    assert schedule.is_due(100, 1000)
    assert schedule.is_due(101, 1000)
    assert not schedule.is_due(101, 5999)
    assert schedule.is_due(101, 6000)
    assert not schedule.is_due(101, 10_999)


def test_a_report_never_falls() -> None:
    schedule = ReportSchedule()
    assert schedule.is_due(100, 0)
    with pytest.raises(AssertionError):
        schedule.is_due(99, 0)
