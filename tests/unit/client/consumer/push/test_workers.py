"""Jobs that wait for a worker begin in the order of their arrival, or of their ranks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from rocketpost.client.consumer.push.workers import AsyncWorkers, ThreadWorkers

RANKS = [0, -2, -1, 0, -2]
RANKED = [1, 4, 2, 0, 3]


@pytest.mark.parametrize(("ranked", "expected"), [(False, [0, 1, 2, 3, 4]), (True, RANKED)])
async def test_async_jobs_begin_in_order(ranked: bool, expected: list[int]) -> None:
    workers, begun = AsyncWorkers(1, ranked=ranked), list[int]()
    done = asyncio.Event()

    def job(number: int) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            begun.append(number)

        return run

    for number, rank in enumerate(RANKS if ranked else [0] * 5):
        workers.submit(job(number), lambda error: begun[4:] and done.set(), rank)
    async with asyncio.timeout(5):
        await done.wait()
    await workers.stop(1)
    assert begun == expected


@pytest.mark.parametrize(("ranked", "expected"), [(False, [0, 1, 2, 3, 4]), (True, RANKED)])
async def test_plain_jobs_begin_in_order(ranked: bool, expected: list[int]) -> None:
    workers, begun = ThreadWorkers(1, ranked=ranked), list[int]()
    gate, done = threading.Event(), asyncio.Event()
    workers.submit(gate.wait, lambda error: None, -9)
    for number, rank in enumerate(RANKS if ranked else [0] * 5):
        workers.submit(
            lambda number=number: begun.append(number),  # type: ignore[misc]
            lambda error: begun[4:] and done.set(),
            rank,
        )
    gate.set()
    async with asyncio.timeout(5):
        await done.wait()
    await workers.stop(1)
    assert begun == expected
