"""Workers that run handlers: tasks for async ones, threads for plain functions.

A job is a callable without arguments; its outcome is reported on the event loop. Threads report in
batches: one wake-up of the loop, which is the main cost, for all jobs that finished meanwhile.

Waiting jobs start in order of arrival; if they are ranked, in order of rank, lowest number first,
and by arrival within one rank.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

logger = logging.getLogger(__name__)

Report = Callable[[BaseException | None], None]
"""Called with the outcome of a job: None, or its exception."""

_TURN_EVERY = 64

Job = Callable[[], object]
_Entry = tuple[int, int, Job | None, Report]
"""Rank, number in order of arrival, job and report; without a job: stop."""


def _nobody(error: BaseException | None) -> None:
    """Ignore an outcome."""


class Workers(Protocol):
    """Runs a limited number of jobs at a time."""

    def submit(self, job: Job, report: Report, rank: int = 0) -> None:
        """Run ``job`` when a worker is free."""
        ...

    async def stop(self, seconds: float) -> None:
        """Abandon jobs that have not started; give the others ``seconds`` to finish."""
        ...


class AsyncWorkers:
    """Runs async jobs in a fixed number of tasks. Belongs to the event loop."""

    def __init__(self, count: int, *, ranked: bool = False) -> None:
        self._jobs: asyncio.Queue[_Entry] = asyncio.PriorityQueue() if ranked else asyncio.Queue()
        self._number = 0
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._count = count
        self._tasks: list[asyncio.Task[None]] = []

    def submit(self, job: Job, report: Report, rank: int = 0) -> None:
        """Run ``job``, which returns an awaitable, when a worker is free."""
        if len(self._tasks) < self._count:
            task = asyncio.get_running_loop().create_task(self._work(), name="handler")
            self._tasks.append(task)
        self._number += 1
        self._jobs.put_nowait((rank, self._number, job, report))

    async def stop(self, seconds: float) -> None:
        """Abandon jobs that have not started; cancel those that do not finish in ``seconds``."""
        while not self._jobs.empty():
            self._jobs.get_nowait()
        if self._busy:
            try:
                async with asyncio.timeout(seconds):
                    await self._idle.wait()
            except TimeoutError:
                logger.warning("handlers cancelled: count=%s", self._busy)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        done = 0
        while True:
            _, _, job, report = await self._jobs.get()
            assert job is not None
            self._busy += 1
            self._idle.clear()
            try:
                result = job()
                if isinstance(result, Awaitable):
                    await result
            except asyncio.CancelledError as error:
                if _is_cancelled():
                    raise
                report(error)  # something that the handler awaited was cancelled, not this task
            except Exception as error:
                report(error)
            else:
                report(None)
            finally:
                self._busy -= 1
                if not self._busy:
                    self._idle.set()
            done += 1
            if not done % _TURN_EVERY:
                await asyncio.sleep(0)  # handlers that never wait must not starve the loop


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class ThreadWorkers:
    """Runs plain jobs in threads that are started on demand. Belongs to the event loop."""

    def __init__(self, count: int, *, ranked: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self._count = count
        self._jobs: queue.SimpleQueue[_Entry] | queue.PriorityQueue[_Entry]
        self._jobs = queue.PriorityQueue() if ranked else queue.SimpleQueue()
        self._number = 0
        self._done: deque[tuple[Report, BaseException | None]] = deque()
        self._reporting = False
        self._pending = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._threads: list[threading.Thread] = []

    def submit(self, job: Job, report: Report, rank: int = 0) -> None:
        """Run ``job`` when a thread is free."""
        if len(self._threads) < self._count:
            name = f"rocketpost-handler-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._pending += 1
        self._idle.clear()
        self._number += 1
        self._jobs.put((rank, self._number, job, report))

    async def stop(self, seconds: float) -> None:
        """Abandon jobs that have not started; wait at most ``seconds`` for the others."""
        while True:
            try:
                self._jobs.get_nowait()
            except queue.Empty:
                break
            self._pending -= 1
        if not self._pending:
            self._idle.set()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("handlers still running: count=%s", self._pending)
        for _ in self._threads:
            self._number += 1
            self._jobs.put((0, self._number, None, _nobody))
        if not self._pending:
            await asyncio.to_thread(self._join_blocking)

    def _join_blocking(self) -> None:
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            _, _, job, report = self._jobs.get()
            if job is None:
                return
            error: BaseException | None = None
            try:
                job()
            except Exception as raised:
                error = raised
            self._done.append((report, error))
            self._report_from_thread()

    def _report_from_thread(self) -> None:
        # Two threads may both see False; an extra wake-up does no harm.
        if not self._reporting:
            self._reporting = True
            try:
                self._loop.call_soon_threadsafe(self._report_all)
            except RuntimeError:
                logger.debug("handler finished after the loop was closed")

    def _report_all(self) -> None:
        self._reporting = False
        while self._done:
            report, error = self._done.popleft()
            self._pending -= 1
            report(error)
        if not self._pending:
            self._idle.set()
