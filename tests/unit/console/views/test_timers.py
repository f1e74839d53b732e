"""Timers of brokers, from their runtime values."""

from __future__ import annotations

from rocketpost.console.collect.snapshot import BrokerView
from rocketpost.console.views.timers import TimedRow, count_due, describe_timer


def make_broker(**more: object) -> BrokerView:
    return BrokerView(cluster="c", name="b", broker_id=0, address="a:1", **more)  # type: ignore[arg-type]


def test_a_timer_is_described_by_what_the_broker_tells() -> None:
    runtime = {
        "timerReadBehind": "3", "timerCongestNum": "7", "timerEnqueueTps": "1.5",
        "timerDequeueTps": "bad", "timingMessages_Orders": "4",
    }  # fmt: skip
    row = describe_timer(make_broker(runtime=runtime))
    assert (row.is_on, row.waiting, row.behind_seconds) == (True, 7, 3)
    assert (row.enqueue_tps, row.dequeue_tps) == (1.5, None)
    assert row.topics == {"Orders": 4}


def test_what_a_broker_does_not_tell_is_unknown() -> None:
    assert describe_timer(make_broker(runtime={})).is_on is False
    silent = describe_timer(make_broker(problem="no answer"))
    assert (silent.is_on, silent.waiting) == (None, None)


def test_messages_are_counted_by_the_minute_in_order() -> None:
    rows = [
        TimedRow(id="x", offset_id="x", topic="T", due_ms=due, sent_ms=0, broker="b")
        for due in (60_000, 61_000, 180_000)
    ]
    assert count_due(rows) == [("1970-01-01 00:01 UTC", 2, 1.0), ("1970-01-01 00:03 UTC", 1, 0.5)]
