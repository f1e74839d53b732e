"""Held pulls: woken by what they want, by their time, never twice."""

from __future__ import annotations

import asyncio
import time

import pytest

from rocketpost.server.long_polling import Held, LongPolls
from rocketpost.transport.turns import BUDGET_SECONDS, Turns

A = ("T", 0)
B = ("T", 1)


@pytest.fixture
def woken() -> list[str]:
    return []


@pytest.fixture
async def holds(woken: list[str]) -> LongPolls[str, str]:
    def resume(held: Held[str, str]) -> None:
        woken.append(held.payload)

    return LongPolls(resume=resume)


async def test_an_arrival_wakes_its_queue_only(
    holds: LongPolls[str, str], woken: list[str]
) -> None:
    holds.park("c1", A, tags=frozenset(), payload="a", seconds=60)
    holds.park("c1", B, tags=frozenset(), payload="b", seconds=60)
    assert holds.queues == {A, B}
    holds.arrived(A, [0])
    holds.go_on()
    assert woken == ["a"]
    assert len(holds) == 1
    holds.arrived(A, [0])
    holds.go_on()
    assert woken == ["a"]
    holds.drop("c1")


async def test_unwanted_tags_do_not_wake(holds: LongPolls[str, str], woken: list[str]) -> None:
    holds.park("c1", A, tags=frozenset({7}), payload="seven", seconds=60)
    holds.park("c2", A, tags=frozenset({8}), payload="eight", seconds=60)
    holds.arrived(A, [8, 9])
    holds.go_on()
    assert woken == ["eight"]
    holds.arrived(A, [7])
    holds.go_on()
    assert woken == ["eight", "seven"]
    assert len(holds) == 0
    assert not holds.queues


async def test_time_wakes(holds: LongPolls[str, str], woken: list[str]) -> None:
    holds.park("c1", A, tags=frozenset({7}), payload="late", seconds=0.001)
    async with asyncio.timeout(5):
        while not woken:
            await asyncio.sleep(0.001)
    assert woken == ["late"]
    assert len(holds) == 0


async def test_a_lost_connection_takes_its_pulls_along(
    holds: LongPolls[str, str], woken: list[str]
) -> None:
    holds.park("c1", A, tags=frozenset(), payload="gone", seconds=60)
    holds.park("c2", A, tags=frozenset(), payload="there", seconds=60)
    holds.drop("c1")
    holds.drop("c1")
    assert len(holds) == 1
    holds.arrived(A, [0])
    holds.go_on()
    assert woken == ["there"]


async def test_waking_all(holds: LongPolls[str, str], woken: list[str]) -> None:
    for n in range(5):
        holds.park("c", ("T", n % 2), tags=frozenset({n}), payload=str(n), seconds=60)
    holds.wake_all()
    assert sorted(woken) == list("01234")
    assert len(holds) == 0


async def test_a_pull_parked_again_while_waking_stays(woken: list[str]) -> None:
    def resume(held: Held[str, str]) -> None:
        woken.append(held.payload)
        if len(woken) == 1:
            holds.park("c", A, tags=frozenset(), payload="again", seconds=60)

    holds: LongPolls[str, str] = LongPolls(resume=resume)
    holds.park("c", A, tags=frozenset(), payload="first", seconds=60)
    holds.park("c", A, tags=frozenset({5}), payload="stays", seconds=60)
    holds.arrived(A, [0])
    holds.go_on()
    assert woken == ["first"]
    assert len(holds) == 2
    holds.arrived(A, [5])
    holds.go_on()
    assert sorted(woken) == ["again", "first", "stays"]


async def test_waking_a_queue_whatever_the_tags(
    holds: LongPolls[str, str], woken: list[str]
) -> None:
    holds.park("c", A, tags=frozenset({7}), payload="seven", seconds=60)
    holds.park("c", B, tags=frozenset(), payload="other", seconds=60)
    holds.wake(A)
    assert woken == ["seven"]
    holds.wake(("T", 9))
    holds.drop("c")


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
    holds: LongPolls[str, str], woken: list[str]
) -> None:
    ours, theirs = Prefix(b"a"), Prefix(b"b")
    for n in range(50):
        holds.park("c", A, tags=frozenset(), matcher=ours, payload=f"a{n}", seconds=60)
    holds.park("c", A, tags=frozenset(), matcher=theirs, payload="b", seconds=60)
    assert holds.tag_count == 16 + 49 + 16  # what is shared weighs once
    holds.arrived(A, [1], lambda: [memoryview(b"x")])
    holds.go_on()
    assert woken == []
    assert (ours.asked, theirs.asked) == (1, 1)  # however many wait with it
    holds.arrived(A, [1, 2], lambda: [memoryview(b"x"), memoryview(b"b1")])
    holds.go_on()
    assert woken == ["b"]
    assert len(holds) == 50
    holds.wake(A)
    assert len(woken) == 51
    assert holds.tag_count == 0
    assert not holds.queues


async def test_records_are_read_only_for_expressions(
    holds: LongPolls[str, str], woken: list[str]
) -> None:
    def records() -> list[memoryview]:
        raise AssertionError("nobody needs them")

    holds.park("c", A, tags=frozenset({7}), payload="seven", seconds=60)
    holds.park("c", A, tags=frozenset(), payload="all", seconds=60)
    holds.arrived(A, [7], records)
    holds.go_on()
    assert sorted(woken) == ["all", "seven"]


async def test_dear_expressions_are_left_to_the_pulls(
    holds: LongPolls[str, str], woken: list[str]
) -> None:
    dear = [Prefix(b"b", work=60_000) for _ in range(4)]
    for n, matcher in enumerate(dear):
        holds.park("c", A, tags=frozenset(), matcher=matcher, payload=str(n), seconds=60)
    holds.arrived(A, [1], lambda: [memoryview(b"x")])
    holds.go_on()
    assert woken == ["2", "3"]
    assert [matcher.asked for matcher in dear] == [1, 1, 0, 0]
    holds.drop("c")


async def test_an_arrival_does_not_look_at_pulls_with_other_tags(
    holds: LongPolls[str, str], woken: list[str]
) -> None:
    class Counting(frozenset[int]):
        """Tags that must not be looked at."""

        def isdisjoint(self, other: object) -> bool:
            raise AssertionError("looked at")

    for n in range(20):
        holds.park("c", A, tags=Counting({n, n + 1}), payload=str(n), seconds=60)
    holds.arrived(A, [5])
    holds.go_on()
    assert sorted(woken, key=int) == ["4", "5"]
    assert len(holds) == 18
    holds.drop("c")
    assert holds.tag_count == len(holds) == 0
    assert not holds.queues


async def test_a_connection_lost_while_others_run_takes_its_pulls_along(woken: list[str]) -> None:
    def resume(held: Held[str, str]) -> None:
        woken.append(held.payload)
        holds.drop("c2")

    holds: LongPolls[str, str] = LongPolls(resume=resume)
    holds.park("c1", A, tags=frozenset(), payload="first", seconds=60)
    holds.park("c2", A, tags=frozenset(), payload="gone", seconds=60)
    holds.arrived(A, [0])
    holds.go_on()
    assert woken == ["first"]
    assert len(holds) == 0


async def test_those_who_wait_with_one_pull_are_not_behind_thousands(woken: list[str]) -> None:
    def resume(held: Held[str, str]) -> None:
        woken.append(held.payload)
        if len(woken) % 10 == 0:
            time.sleep(BUDGET_SECONDS)

    turns = Turns()
    holds: LongPolls[str, str] = LongPolls(resume=resume, turns=turns)
    for n in range(50):
        holds.park("greedy", A, tags=frozenset(), payload=f"greedy{n}", seconds=60)
    for n in range(3):
        holds.park(f"modest{n}", A, tags=frozenset(), payload=f"modest{n}", seconds=60)
    assert holds.count_of("greedy") == 50
    holds.arrived(A, [0])
    holds.go_on()
    assert woken[:4] == ["greedy0", "modest0", "modest1", "modest2"]
    assert len(woken) == 10  # the others are run in later turns
    holds.park("late", A, tags=frozenset(), payload="late", seconds=60)
    while len(turns):
        await asyncio.sleep(0)
    assert len(woken) == 53
    assert len(holds) == 1
    holds.drop("late")


async def test_pulls_that_are_woken_go_with_their_connection(woken: list[str]) -> None:
    holds: LongPolls[str, str] = LongPolls(resume=lambda held: woken.append(held.payload))
    for n in range(5):
        holds.park("c", A, tags=frozenset(), payload=str(n), seconds=60)
    holds.arrived(A, [0])
    holds.drop("c")
    holds.go_on()
    assert woken == []
    assert len(holds) == 0
