from __future__ import annotations

from typing import Any

import pytest

from rocketpost.diagnosis.fate import Copy, Facts, GroupOffsets, State, judge_fate
from rocketpost.model.group import Subscription, parse_tags


def facts(**more: Any) -> Facts:
    values: dict[str, Any] = {"group": "G", "tag": "A", "queue_offset": 10, "members": 1}
    return Facts(**(values | more))


def copy(times: int, **more: Any) -> Copy:
    values: dict[str, Any] = {
        "topic": "%RETRY%G",
        "broker_name": "a",
        "queue_id": 0,
        "queue_offset": 3,
        "offset_id": "X",
        "reconsume_times": times,
        "store_ms": 100,
    }
    return Copy(**(values | more))


@pytest.mark.parametrize(
    ("committed", "pulled", "members", "state"),
    [
        (11, None, 1, State.CONSUMED),
        (11, 11, 0, State.CONSUMED),
        (10, 11, 1, State.IN_FLIGHT),
        (10, 11, 0, State.BEHIND),
        (10, 10, 1, State.BEHIND),
        (4, None, 1, State.BEHIND),
        (None, None, 1, State.NOT_STARTED),
        (None, 11, 1, State.IN_FLIGHT),
        (None, 11, 0, State.NOT_STARTED),
    ],
)
def test_the_offset_tells_how_it_stands(
    committed: int | None, pulled: int | None, members: int, state: State
) -> None:
    offsets = GroupOffsets(committed=committed, pulled=pulled)
    fate = judge_fate(facts(offsets=offsets, members=members), now_ms=0)
    assert fate.state is state
    assert fate.behind == (10 - committed if state is State.BEHIND and committed else None)
    assert ("nobody is online" in fate.reason) == (members == 0)


def test_the_rule_that_keeps_it_out_is_named() -> None:
    wanted = parse_tags("T", "B || C", version=0)
    passed = judge_fate(facts(subscription=wanted, offsets=GroupOffsets(committed=11)), now_ms=0)
    assert (passed.state, passed.filter) == (State.FILTERED, "B || C")
    behind = judge_fate(facts(subscription=wanted, offsets=GroupOffsets(committed=9)), now_ms=0)
    assert (behind.state, behind.filter, behind.behind) == (State.BEHIND, "B || C", 1)
    no_tag = judge_fate(
        facts(subscription=wanted, tag=None, offsets=GroupOffsets(committed=11)), now_ms=0
    )
    assert no_tag.reason.startswith("it has no tag")
    taken = parse_tags("T", "A || C", version=0)
    for good in (taken, Subscription(topic="T")):
        fate = judge_fate(facts(subscription=good, offsets=GroupOffsets(committed=11)), now_ms=0)
        assert fate.state is State.CONSUMED


def test_the_expression_that_kept_a_message_out_is_named() -> None:
    wanted = Subscription(topic="T", expression_type="SQL92", sub_string="a > 1")
    offsets = GroupOffsets(committed=11)
    out = judge_fate(facts(subscription=wanted, offsets=offsets, properties={"a": "1"}), now_ms=0)
    assert (out.state, out.filter) == (State.FILTERED, "a > 1")
    assert out.reason == "its properties do not match 'a > 1'"
    taken = judge_fate(facts(subscription=wanted, offsets=offsets, properties={"a": "2"}), now_ms=0)
    assert (taken.state, taken.filter) == (State.CONSUMED, None)


def test_a_filter_that_a_broker_keeps_cannot_be_judged_here() -> None:
    wanted = Subscription(topic="T", expression_type="SQL92", sub_string="MATCHES('big')")
    fate = judge_fate(facts(subscription=wanted, offsets=GroupOffsets(committed=11)), now_ms=0)
    assert fate.state is State.CONSUMED
    assert "unknown here" in fate.reason


def test_a_dead_letter_ends_it() -> None:
    dead = copy(3, topic="%DLQ%G", store_ms=900)
    fate = judge_fate(
        facts(dead=(dead,), retries=((copy(2), GroupOffsets(committed=4)),), retry_max=2), now_ms=0
    )
    assert (fate.state, fate.dead_ms, fate.copy) == (State.DEAD, 900, dead)
    assert fate.reason == "given up after 3 deliveries"
    once = judge_fate(facts(dead=(copy(1, topic="%DLQ%G"),)), now_ms=0)
    assert once.reason == "given up after 1 delivery"


def test_the_youngest_copy_counts() -> None:
    first, second = copy(1), copy(2, due_ms=500)
    done = GroupOffsets(committed=4)
    fate = judge_fate(
        facts(waiting=(copy(1, due_ms=50), second), retries=((first, done),), retry_max=16),
        now_ms=100,
    )
    assert (fate.state, fate.retry, fate.until_ms) == (State.RETRYING, 2, 500)
    assert fate.reason == "retry 2 of 16 waits until it is due"
    due = judge_fate(facts(waiting=(second,)), now_ms=500)
    assert due.reason == "retry 2 of ? is due and about to be delivered"
    came = judge_fate(facts(waiting=(second,), retries=((copy(2), done),)), now_ms=600)
    assert came.state is State.CONSUMED


@pytest.mark.parametrize(
    ("reading", "state"),
    [
        (GroupOffsets(committed=3, pulled=4), State.IN_FLIGHT),
        (GroupOffsets(committed=2, pulled=3), State.RETRYING),
        (GroupOffsets(), State.RETRYING),
    ],
)
def test_a_retry_stands_where_its_queue_stands(reading: GroupOffsets, state: State) -> None:
    fate = judge_fate(
        facts(retries=((copy(1), reading),), offsets=GroupOffsets(committed=11)), now_ms=0
    )
    assert (fate.state, fate.retry) == (state, 1)


def test_delayed_and_broadcast_come_first() -> None:
    assert judge_fate(facts(delayed_until_ms=5), now_ms=1).until_ms == 5
    assert "due" in judge_fate(facts(delayed_until_ms=5), now_ms=9).reason
    assert judge_fate(facts(broadcast=True), now_ms=1).state is State.BROADCAST


def test_a_popped_message_is_in_flight_whatever_the_offset_says() -> None:
    held = GroupOffsets(committed=11, popped_until_ms=700)
    fate = judge_fate(facts(offsets=held, members=0), now_ms=0)
    assert (fate.state, fate.until_ms) == (State.IN_FLIGHT, 700)
    again = judge_fate(
        facts(retries=((copy(2), held),), offsets=GroupOffsets(committed=11)), now_ms=0
    )
    assert (again.state, again.until_ms, again.retry) == (State.IN_FLIGHT, 700, 2)
