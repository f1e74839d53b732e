"""Work of threads as events of the simulation: the store's workers, and plain handlers."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from rocketpost.client.consumer.push.workers import AsyncWorkers, Job, Report
from rocketpost.store.log.workers import Step

if TYPE_CHECKING:
    from rocketpost.testing.sim.machine import Machine


class SteppedWorker:
    """A worker of a store. A step is done some time after it is due, as a busy thread would.

    Args:
        machine: The machine, whose disk may be slow.
        step: The step.
    """

    def __init__(self, machine: Machine, step: Step) -> None:
        self._machine = machine
        self._loop = machine.loop
        self._step = step
        self._context = contextvars.copy_context()
        self._next: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(self, seconds: float | None) -> None:
        """See ``store.log.workers.Worker``."""
        self._plan(seconds)

    def wake(self) -> None:
        """See ``store.log.workers.Worker``."""
        self._plan(0.0)

    def pause(self, seconds: float) -> None:
        """Make the step that is being done take longer."""
        process = self._machine.process
        assert process is not None
        process.sleep(seconds)

    def close_blocking(self) -> None:
        """See ``store.log.workers.Worker``."""
        self._is_closed = True
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _plan(self, seconds: float | None) -> None:
        if self._is_closed or seconds is None:
            return
        when = self._loop.time() + seconds
        if self._next is not None:
            if self._next.when() <= when:
                return
            self._next.cancel()
        when += self._machine.draw_work_seconds()
        self._next = self._loop.call_at(when, self._do, context=self._context)

    def _do(self) -> None:
        self._next = None
        process = self._machine.process
        assert process is not None
        seconds, spent = process.work(self._step)
        self._plan(None if seconds is None else seconds + spent)


class HandlerThreads(AsyncWorkers):
    """Runs the plain handlers of a push consumer as the work of threads."""

    def submit(self, job: Job, report: Report, rank: int = 0) -> None:
        """Run ``job`` when a thread is free."""
        super().submit(partial(asyncio.to_thread, job), lambda _, error: report(job, error), rank)

    def submit_all(self, jobs: Sequence[Job], report: Report) -> None:
        """Run jobs when threads are free."""
        for job in jobs:
            self.submit(job, report)
