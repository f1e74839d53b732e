from __future__ import annotations

from rocketpost.broker.timer.admission import Waiting
from rocketpost.broker.timer.steps import TimerTally
from rocketpost.store.timer.values import Item

NOW_MS = 1_000_000


def taken(topic: str, delay_s: int) -> tuple[Item, Waiting, int]:
    due_ms = NOW_MS + delay_s * 1000
    return Item(due_ms, due_ms, 0, 0, 100, 0), Waiting(topic, due_ms, due_ms, None), 0


def test_messages_are_counted_by_topic_and_delay() -> None:
    tally = TimerTally()
    tally.enter([taken("A", 30), taken("A", 700), taken("B", -5)], NOW_MS)
    tally.leave("A")
    assert (tally.entered, tally.left) == ({"A": 2, "B": 1}, {"A": 1})
    assert tally.delays["A"].counts[:3] == [1, 0, 1]
    assert tally.delays["B"].sum == 0  # one that is due already was not put off
