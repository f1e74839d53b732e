from __future__ import annotations

import asyncio

from rocketpost.client.turns import Turns
from rocketpost.testing.waiting import settle


async def test_turns_come_in_the_order_in_which_they_were_taken() -> None:
    turns, started = Turns(), []

    async def start(number: int, ready: asyncio.Event) -> None:
        turn = turns.take("T")
        await ready.wait()
        await turn.wait()
        started.append(number)
        turn.end()

    ready = [asyncio.Event() for _ in range(3)]
    calls = [asyncio.create_task(start(number, each)) for number, each in enumerate(ready)]
    await settle()
    assert "T" in turns
    assert "other" not in turns
    for number in (2, 1):
        ready[number].set()
        await settle()
        assert started == []
    ready[0].set()
    await asyncio.gather(*calls)
    assert started == [0, 1, 2]
    assert "T" not in turns


async def test_a_caller_that_gives_up_lets_nobody_overtake() -> None:
    turns = Turns()
    first, second, third = turns.take("T"), turns.take("T"), turns.take("T")
    second.end()
    waiting = asyncio.create_task(third.wait())
    await settle()
    assert not waiting.done()
    first.end()
    await waiting
    assert "T" in turns
    third.end()
    assert "T" not in turns
