"""Held pulls: woken by what they want, by their time, never twice."""

from __future__ import annotations

import asyncio

import pytest

from rocketpost.server.hold import Held, Holds

A = ("T", 0)
B = ("T", 1)


@pytest.fixture
def woken() -> list[str]:
    return []


@pytest.fixture
async def holds(woken: list[str]) -> Holds[str, str]:
    def resume(held: Held[str, str]) -> None:
        woken.append(held.payload)

    return Holds(resume=resume)


async def test_an_arrival_wakes_its_queue_only(holds: Holds[str, str], woken: list[str]) -> None:
    holds.park("c1", A, tags=frozenset(), payload="a", seconds=60)
    holds.park("c1", B, tags=frozenset(), payload="b", seconds=60)
    assert holds.queues == {A, B}
    holds.arrived(A, [0])
    assert woken == ["a"]
    assert len(holds) == 1
    holds.arrived(A, [0])
    assert woken == ["a"]
    holds.drop("c1")


async def test_unwanted_tags_do_not_wake(holds: Holds[str, str], woken: list[str]) -> None:
    holds.park("c1", A, tags=frozenset({7}), payload="seven", seconds=60)
    holds.park("c2", A, tags=frozenset({8}), payload="eight", seconds=60)
    holds.arrived(A, [8, 9])
    assert woken == ["eight"]
    holds.arrived(A, [7])
    assert woken == ["eight", "seven"]
    assert len(holds) == 0
    assert not holds.queues


async def test_time_wakes(holds: Holds[str, str], woken: list[str]) -> None:
    holds.park("c1", A, tags=frozenset({7}), payload="late", seconds=0.001)
    async with asyncio.timeout(5):
        while not woken:
            await asyncio.sleep(0.001)
    assert woken == ["late"]
    assert len(holds) == 0


async def test_a_lost_connection_takes_its_pulls_along(
    holds: Holds[str, str], woken: list[str]
) -> None:
    holds.park("c1", A, tags=frozenset(), payload="gone", seconds=60)
    holds.park("c2", A, tags=frozenset(), payload="there", seconds=60)
    holds.drop("c1")
    holds.drop("c1")
    assert len(holds) == 1
    holds.arrived(A, [0])
    assert woken == ["there"]


async def test_waking_all(holds: Holds[str, str], woken: list[str]) -> None:
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

    holds: Holds[str, str] = Holds(resume=resume)
    holds.park("c", A, tags=frozenset(), payload="first", seconds=60)
    holds.park("c", A, tags=frozenset({5}), payload="stays", seconds=60)
    holds.arrived(A, [0])
    assert woken == ["first"]
    assert len(holds) == 2
    holds.arrived(A, [5])
    assert sorted(woken) == ["again", "first", "stays"]


async def test_waking_a_queue_whatever_the_tags(holds: Holds[str, str], woken: list[str]) -> None:
    holds.park("c", A, tags=frozenset({7}), payload="seven", seconds=60)
    holds.park("c", B, tags=frozenset(), payload="other", seconds=60)
    holds.wake(A)
    assert woken == ["seven"]
    holds.wake(("T", 9))
    holds.drop("c")
