"""The decision whether a group is new."""

from __future__ import annotations

import asyncio

import pytest

from rocketpost.codec.group.hello import History
from rocketpost.server.group.life.founding import Founding, Verdict

BLANK = History()


def founding(own: History = BLANK) -> Founding:
    return Founding(own, ["n1", "n2"])


async def test_a_group_is_new_once_all_members_say_so() -> None:
    group = founding()
    assert "missing: n1, n2" in group.obstacle
    group.note("n1", BLANK)
    assert group.verdict is Verdict.OPEN
    assert "missing: n2" in group.obstacle
    group.note("n2", BLANK)
    assert group.verdict is Verdict.NEW
    assert group.obstacle == ""


@pytest.mark.parametrize("heard", [["n1"], ["n1", "n2"]])
async def test_one_member_with_a_past_is_enough(heard: list[str]) -> None:
    group = founding()
    for peer in heard:
        group.note(peer, History(term=3 if peer == heard[-1] else 0, end=0))
    assert group.verdict is Verdict.OLD


async def test_one_member_may_bring_a_log_from_before_the_group() -> None:
    group = founding()
    group.note("n1", History(end=5000))
    assert group.verdict is Verdict.OPEN
    group.note("n2", BLANK)
    assert group.verdict is Verdict.NEW
    assert group.floor == 5000
    assert not group.is_stranger


async def test_a_member_with_such_a_log_does_not_join_a_group_that_has_begun() -> None:
    group = founding(History(end=4000))
    assert group.is_stranger
    group.note("n1", BLANK)
    group.note("n2", History(term=1, end=9000))
    assert group.is_stranger
    assert "the group has begun without them" in group.obstacle


async def test_it_begins_a_group_whose_other_members_have_nothing() -> None:
    group = founding(History(end=4000))
    group.note("n1", BLANK)
    group.note("n2", BLANK)
    assert not group.is_stranger
    assert (group.obstacle, group.floor) == ("", 4000)


async def test_two_such_logs_are_not_mixed() -> None:
    group = founding(History(end=4000))
    group.note("n1", History(end=5000))
    group.note("n2", BLANK)
    assert group.verdict is Verdict.OPEN
    assert "this member and n1 have messages from before the group" in group.obstacle


async def test_the_decision_waits_for_news() -> None:
    group = founding()
    task = asyncio.create_task(group.decide())
    await asyncio.sleep(0)
    group.note("n1", BLANK)
    await asyncio.sleep(0)
    group.note("n2", History(term=1))
    assert await task is Verdict.OLD
