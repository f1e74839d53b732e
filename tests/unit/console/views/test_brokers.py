from __future__ import annotations

from rocketpost.console.actions.audit_log import AuditLine
from rocketpost.console.views.brokers import find_acts, parse_write_times


def test_times_of_writes_are_read_from_the_text_of_a_broker() -> None:
    found = parse_write_times("[<=0ms]:14 [0~10ms]:28 [10s~]:0 ")
    assert [(each.bounds, each.count) for each in found] == [("<=0ms", 14), ("0–10ms", 28)]
    assert [each.share for each in found] == [0.5, 1.0]
    [only] = parse_write_times("[<=0ms]:0 [0~10ms]:0")
    assert (only.bounds, only.count, only.share) == ("<=0ms", 0, 0.0)
    assert parse_write_times("") == []
    assert parse_write_times("none") == []


def line(act: str, what: str) -> AuditLine:
    return AuditLine(at_ms=1, user="ada", address="127.0.0.1", act=act, what=what)


def test_changes_of_a_broker_are_those_that_name_it_or_all() -> None:
    own = line("change-setting", "broker-a flushDiskType x")
    every = line("change-setting", "* flushDiskType x")
    other = line("change-setting", "broker-b value broker-ab")
    reading = line("read messages", "broker-a")
    assert find_acts([own, other, reading, every], "broker-a") == [own, every]
    assert len(find_acts([own] * 50, "broker-a")) == 10
