"""Held pulls: woken by what they want, by their time, never twice."""

from __future__ import annotations

import asyncio
import time

import pytest

from rocketpost.codec.faults import SystemBusy
from rocketpost.server.long_polling import HeldLimits
from rocketpost.testing.waiting import until
from rocketpost.transport.turns import BUDGET_SECONDS, Turns

from .polls import NamedPolls

A = ("T", 0)
B = ("T", 1)


@pytest.fixture
def woken() -> list[str]:
    return []


@pytest.fixture
async def polls(woken: list[str]) -> NamedPolls:
    return NamedPolls(woken.append)


async def test_an_arrival_wakes_its_queue_only(polls: NamedPolls, woken: list[str]) -> None:
    polls.park("c1", A, name="a")
    polls.park("c1", B, name="b")
    polls.arrive(A, 0)
    await polls.settle()
    assert woken == ["a"]
    assert len(polls.table) == 1
    polls.arrive(A, 0)
    await polls.settle()
    assert woken == ["a"]
    polls.table.drop("c1")


async def test_unwanted_tags_do_not_wake(polls: NamedPolls, woken: list[str]) -> None:
    polls.park("c1", A, tags=frozenset({7}), name="seven")
    polls.park("c2", A, tags=frozenset({8}), name="eight")
    polls.arrive(A, 8, 9)
    await polls.settle()
    assert woken == ["eight"]
    polls.arrive(A, 7)
    await polls.settle()
    assert woken == ["eight", "seven"]
    assert len(polls.table) == 0


async def test_time_wakes(polls: NamedPolls, woken: list[str]) -> None:
    polls.park("c1", A, tags=frozenset({7}), name="late", seconds=0.001)
    await until(lambda: woken)
    assert woken == ["late"]
    assert len(polls.table) == 0


async def test_a_lost_connection_takes_its_pulls_along(polls: NamedPolls, woken: list[str]) -> None:
    polls.park("c1", A, name="gone")
    polls.park("c2", A, name="there")
    polls.table.drop("c1")
    polls.table.drop("c1")
    assert len(polls.table) == 1
    polls.arrive(A, 0)
    await polls.settle()
    assert woken == ["there"]


async def test_waking_all(polls: NamedPolls, woken: list[str]) -> None:
    """They run in the order in which they came, so that simulations repeat themselves."""
    names = [str(n) for n in range(50)]
    for n, name in enumerate(names):
        polls.park("c", ("T", n % 2), tags=frozenset({n}), name=name)
    polls.table.close()
    assert woken == names
    assert len(polls.table) == 0


async def test_a_pull_parked_again_while_waking_stays(woken: list[str]) -> None:
    def resume(name: str) -> None:
        woken.append(name)
        if len(woken) == 1:
            polls.park("c", A, name="again")

    polls = NamedPolls(resume)
    polls.park("c", A, name="first")
    polls.park("c", A, tags=frozenset({5}), name="stays")
    polls.arrive(A, 0)
    await polls.settle()
    assert woken == ["first"]
    assert len(polls.table) == 2
    polls.arrive(A, 5)
    await polls.settle()
    assert sorted(woken) == ["again", "first", "stays"]


async def test_waking_a_queue_whatever_the_tags(polls: NamedPolls, woken: list[str]) -> None:
    polls.park("c", A, tags=frozenset({7}), name="seven")
    polls.park("c", B, name="other")
    polls.table.wake(*A)
    await polls.settle()
    assert woken == ["seven"]
    polls.table.wake("T", 9)
    polls.table.drop("c")


class Prefix:
    """Wants records that start with some bytes; counts how often it is asked."""

    def __init__(self, start: bytes, work: int = 1) -> None:
        self.start = start
        self.work = work
        self.asked = 0
        self.weight = 16

    def matches(self, record: memoryview) -> tuple[bool, int]:
        self.asked += 1
        return bytes(record).startswith(self.start), self.work


async def test_only_those_whose_expression_matches_are_woken(
    polls: NamedPolls, woken: list[str]
) -> None:
    ours, theirs = Prefix(b"a"), Prefix(b"b")
    for n in range(50):
        polls.park("c", A, matcher=ours, name=f"a{n}")
    polls.park("c", A, matcher=theirs, name="b")
    assert polls.table.tag_count == 16 + 49 + 16  # what is shared weighs once
    polls.arrive(A, 1, records=[b"x"])
    await polls.settle()
    assert woken == []
    assert (ours.asked, theirs.asked) == (1, 1)  # however many wait with it
    polls.arrive(A, 1, 2, records=[b"x", b"b1"])
    await polls.settle()
    assert woken == ["b"]
    assert len(polls.table) == 50
    polls.table.wake(*A)
    await polls.settle()
    assert len(woken) == 51
    assert polls.table.tag_count == 0


async def test_records_are_read_only_for_expressions(polls: NamedPolls, woken: list[str]) -> None:
    polls.park("c", A, tags=frozenset({7}), name="seven")
    polls.park("c", A, name="all")
    polls.arrive(A, 7)  # it has no records: looking for them would fail
    await polls.settle()
    assert sorted(woken) == ["all", "seven"]


async def test_dear_expressions_are_left_to_the_pulls(polls: NamedPolls, woken: list[str]) -> None:
    dear = [Prefix(b"b", work=60_000) for _ in range(4)]
    for n, matcher in enumerate(dear):
        polls.park("c", A, matcher=matcher, name=str(n))
    polls.arrive(A, 1, records=[b"x"])
    await polls.settle()
    assert woken == ["2", "3"]
    assert [matcher.asked for matcher in dear] == [1, 1, 0, 0]
    polls.table.drop("c")


async def test_an_arrival_does_not_look_at_pulls_with_other_tags(
    polls: NamedPolls, woken: list[str]
) -> None:
    class Counting(frozenset[int]):
        """Tags that must not be looked at."""

        def isdisjoint(self, other: object) -> bool:
            raise AssertionError("looked at")

    for n in range(20):
        polls.park("c", A, tags=Counting({n, n + 1}), name=str(n))
    polls.arrive(A, 5)
    await polls.settle()
    assert sorted(woken, key=int) == ["4", "5"]
    assert len(polls.table) == 18
    polls.table.drop("c")
    assert polls.table.tag_count == len(polls.table) == 0


async def test_a_connection_lost_while_others_run_takes_its_pulls_along(woken: list[str]) -> None:
    def resume(name: str) -> None:
        woken.append(name)
        polls.table.drop("c2")

    polls = NamedPolls(resume)
    polls.park("c1", A, name="first")
    polls.park("c2", A, name="gone")
    polls.arrive(A, 0)
    await polls.settle()
    assert woken == ["first"]
    assert len(polls.table) == 0


async def test_those_who_wait_with_one_pull_are_not_behind_thousands(woken: list[str]) -> None:
    def resume(name: str) -> None:
        woken.append(name)
        if len(woken) % 10 == 0:
            time.sleep(BUDGET_SECONDS)

    turns = Turns()
    polls = NamedPolls(resume, turns)
    for n in range(50):
        polls.park("greedy", A, name=f"greedy{n}")
    for n in range(3):
        polls.park(f"modest{n}", A, name=f"modest{n}")
    assert polls.table.count_of("greedy") == 50
    polls.arrive(A, 0)
    await asyncio.sleep(0)
    assert woken[:4] == ["greedy0", "modest0", "modest1", "modest2"]
    assert len(woken) == 10  # the others are run in later turns
    polls.park("late", A, name="late")
    while len(turns):
        await asyncio.sleep(0)
    assert len(woken) == 53
    assert len(polls.table) == 1
    polls.table.drop("late")


async def test_pulls_that_are_woken_go_with_their_connection(woken: list[str]) -> None:
    polls = NamedPolls(woken.append)
    for n in range(5):
        polls.park("c", A, name=str(n))
    polls.arrive(A, 0)
    polls.table.drop("c")
    await polls.settle()
    assert woken == []
    assert len(polls.table) == 0


async def test_nothing_is_resumed_during_the_notice_of_an_arrival(
    polls: NamedPolls, woken: list[str]
) -> None:
    polls.park("c", A, name="a")
    polls.park("d", B, name="b")
    polls.arrive(B, 0)
    polls.arrive(A, 0)
    assert woken == []
    assert len(polls.table) == 2
    await polls.settle()
    assert woken == ["b", "a"]


async def test_one_pull_that_fails_does_not_keep_others_from_their_answers(
    woken: list[str],
) -> None:
    def resume(name: str) -> None:
        if name == "bad":
            raise ValueError(name)
        woken.append(name)

    polls = NamedPolls(resume)
    bad = polls.park("c", A, name="bad").waiter
    polls.park("c", A, name="good")
    polls.arrive(A, 0)
    await polls.settle()
    assert woken == ["good"]
    assert isinstance(bad.refused, ValueError)  # type: ignore[attr-defined]


async def test_a_pull_that_nobody_wants_any_more_is_forgotten(
    polls: NamedPolls, woken: list[str]
) -> None:
    waiting = polls.park("c", A, tags=frozenset({7}), name="waiting")
    lined_up = polls.park("c", B, name="lined up")
    polls.arrive(B, 0)
    for held in (waiting, lined_up, lined_up):
        polls.table.cancel(held)
    assert len(polls.table) == polls.table.tag_count == 0
    polls.arrive(A, 7)
    await polls.settle()
    assert woken == []


async def test_there_is_a_bound_on_waiting_pulls_of_all_and_of_one(polls: NamedPolls) -> None:
    polls.table._limits = lambda: HeldLimits(count_max=4, of_one_max=3)
    polls.park("c", A, name="1")
    polls.park("c", A, name="2")
    with pytest.raises(SystemBusy, match="of this connection"):
        polls.park("c", A, name="more than is left to others")
    polls.park("d", A, name="3")
    polls.park("e", A, name="4")
    with pytest.raises(SystemBusy, match="4 pulls wait already"):
        polls.park("f", A, name="5")
    polls.table.close()
