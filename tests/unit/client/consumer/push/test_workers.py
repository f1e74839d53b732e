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
        workers.submit(job(number), lambda job, error: begun[4:] and done.set(), rank)
    async with asyncio.timeout(5):
        await done.wait()
    await workers.stop(1)
    assert begun == expected


@pytest.mark.parametrize(("ranked", "expected"), [(False, [0, 1, 2, 3, 4]), (True, RANKED)])
async def test_plain_jobs_begin_in_order(ranked: bool, expected: list[int]) -> None:
    workers, begun = ThreadWorkers(1, ranked=ranked), list[int]()
    gate, done = threading.Event(), asyncio.Event()
    workers.submit(gate.wait, lambda job, error: None, -9)
    for number, rank in enumerate(RANKS if ranked else [0] * 5):
        workers.submit(
            lambda number=number: begun.append(number),  # type: ignore[misc]
            lambda job, error: begun[4:] and done.set(),
            rank,
        )
    gate.set()
    async with asyncio.timeout(5):
        await done.wait()
    await workers.stop(1)
    assert begun == expected


@pytest.mark.parametrize("ranked", [False, True])
@pytest.mark.parametrize("kind", [AsyncWorkers, ThreadWorkers])
async def test_jobs_submitted_together_begin_in_order_and_are_reported(
    kind: type[AsyncWorkers] | type[ThreadWorkers], ranked: bool
) -> None:
    workers, begun, reported = kind(1, ranked=ranked), list[int](), list[object]()
    done = asyncio.Event()

    def job(number: int) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            return

        def begin() -> Awaitable[None] | None:
            begun.append(number)
            return run() if kind is AsyncWorkers else None

        return begin  # type: ignore[return-value]

    def report(job: object, error: BaseException | None) -> None:
        assert error is None
        reported.append(job)
        if len(reported) == 5:
            done.set()

    jobs = [job(number) for number in range(5)]
    workers.submit_all(jobs, report)
    async with asyncio.timeout(5):
        await done.wait()
    await workers.stop(1)
    assert begun == [0, 1, 2, 3, 4]
    assert reported == jobs


async def test_as_many_jobs_wait_at_the_same_time_as_there_are_workers() -> None:
    workers, gate, done = AsyncWorkers(4), asyncio.Event(), asyncio.Event()
    begun: list[int] = []
    outcomes: list[BaseException | None] = []

    def job(number: int) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            begun.append(number)
            await gate.wait()

        return run

    def report(job: object, error: BaseException | None) -> None:
        outcomes.append(error)
        if len(outcomes) == 10:
            done.set()

    for number in range(10):
        workers.submit(job(number), report)
    for _ in range(20):
        await asyncio.sleep(0)
    assert begun == [0, 1, 2, 3]
    gate.set()
    async with asyncio.timeout(5):
        await done.wait()
    assert begun == list(range(10))
    assert outcomes == [None] * 10
    await workers.stop(1)


async def test_jobs_that_never_wait_are_done_by_one_worker() -> None:
    workers, done = AsyncWorkers(20), asyncio.Event()
    tasks: set[object] = set()

    async def run() -> None:
        tasks.add(asyncio.current_task())

    left = 500

    def report(job: object, error: BaseException | None) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    for _ in range(500):
        workers.submit(run, report)
    async with asyncio.timeout(5):
        await done.wait()
    assert len(tasks) == 1
    await workers.stop(1)


async def test_a_worker_survives_jobs_and_reports_that_raise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    workers, errors = AsyncWorkers(1), list[BaseException | None]()

    async def fail() -> None:
        raise ValueError("job")

    async def give_up() -> None:
        raise asyncio.CancelledError

    def refuse(job: object, error: BaseException | None) -> None:
        raise RuntimeError("report")

    async def work() -> None:
        return

    workers.submit(work, refuse)
    for job in (fail, give_up, work):
        workers.submit(job, lambda job, error: errors.append(error))
    async with asyncio.timeout(5):
        while len(errors) < 3:
            await asyncio.sleep(0)
    assert [type(error) for error in errors] == [ValueError, asyncio.CancelledError, type(None)]
    assert "not noted" in caplog.text
    await workers.stop(1)


class _GiveUp(BaseException):
    """Raised by some test frameworks, and by ``asyncio.run`` in a thread if it is cancelled."""


@pytest.mark.parametrize("kind", [AsyncWorkers, ThreadWorkers])
async def test_a_worker_survives_jobs_that_raise_other_exceptions(
    kind: type[AsyncWorkers] | type[ThreadWorkers],
) -> None:
    workers, errors = kind(1), list[BaseException | None]()
    done = asyncio.Event()

    def fail() -> None:
        raise _GiveUp

    def leave() -> None:
        raise SystemExit(1)

    def report(job: object, error: BaseException | None) -> None:
        errors.append(error)
        if error is None:
            done.set()

    jobs = [fail, fail] if kind is AsyncWorkers else [fail, leave]
    for job in jobs:
        workers.submit(job, report)
    workers.submit(lambda: None, report)
    async with asyncio.timeout(5):
        await done.wait()
    assert isinstance(errors[0], _GiveUp)
    assert len(errors) == 3
    await workers.stop(1)


async def test_a_stop_abandons_what_waits_and_cancels_what_does_not_finish() -> None:
    workers, ended = AsyncWorkers(1), list[str]()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    workers.submit(wait, lambda job, error: ended.append("reported"))
    workers.submit(wait, lambda job, error: ended.append("reported"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await workers.stop(0.001)
    assert ended == ["cancelled"]
