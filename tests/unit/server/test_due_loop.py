"""The loop sleeps as long as a step says, looks at the clock in between, and survives failures."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from rocketpost.errors import StoreFull
from rocketpost.server.due_loop import CLOCK_LOOK_SECONDS, DueLoop, Next
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.testing.waiting import settle, until


class Steps:
    """Steps that a test decides, and when they were taken."""

    def __init__(self, *outcomes: int | Next | Exception) -> None:
        self.outcomes = list(outcomes)
        self.times: list[float] = []
        self.failures = 0
        self.loop = DueLoop(
            self.step, failure="nothing done", on_failure=self.failed, retry_seconds_max=4
        )

    async def step(self) -> int | Next:
        self.times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0)
        outcome = self.outcomes.pop(0) if self.outcomes else Next.WHEN_WOKEN
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def failed(self) -> None:
        self.failures += 1

    @property
    def pauses(self) -> list[float]:
        """The seconds between the steps."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return [round(after - before, 3) for before, after in pairs]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.loop.run())
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.wait((task,))


@in_virtual_time
async def test_it_sleeps_as_long_as_a_step_says() -> None:
    steps = Steps(Next.AT_ONCE, 20, 0, 3_600_000)
    async with steps.running():
        await until(lambda: len(steps.times) == 5)
    assert steps.pauses == [0, 0.02, 0.001, CLOCK_LOOK_SECONDS]


@in_virtual_time
async def test_it_is_woken_from_any_sleep() -> None:
    steps = Steps(Next.WHEN_WOKEN, 3000)
    async with steps.running():
        await settle()
        assert (len(steps.times), steps.loop.is_idle) == (1, True)
        steps.loop.wake()
        await settle()
        assert (len(steps.times), steps.loop.is_idle) == (2, False)
        steps.loop.wake()
        await settle()
        assert len(steps.times) == 3
    assert steps.pauses == [0, 0]


@in_virtual_time
async def test_a_failed_step_is_tried_again_after_a_growing_pause() -> None:
    full, bug = StoreFull("no room"), ValueError("a bad message")
    steps = Steps(full, full, OSError("a bad disk"), bug, Next.AT_ONCE, bug)
    async with steps.running():
        await until(lambda: len(steps.times) == 7)
    assert steps.pauses == [1, 2, 4, 4, 0, 1]
    assert steps.failures == 5
