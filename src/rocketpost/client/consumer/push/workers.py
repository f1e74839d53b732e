"""Workers that run handlers: tasks for async ones, threads for plain functions.

A job is a callable without arguments; its outcome is reported on the event loop. Threads report in
batches: one wake-up of the loop, which is the main cost, for all jobs that finished meanwhile.

Waiting jobs start in order of arrival; if they are ranked, in order of rank, lowest number first,
and by arrival within one rank.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import CoroutineType
from typing import Any, Protocol

logger = logging.getLogger(__name__)

_TURN_EVERY = 64

Job = Callable[[], object]
Report = Callable[[Any, BaseException | None], None]
"""Called with a job and its outcome: None, or its exception."""
_Entry = tuple[int, int, Job | None, Report]
"""Rank, number in order of arrival, job and report; without a job: stop."""


def _nobody(job: Job, error: BaseException | None) -> None:
    """Ignore an outcome."""


class Workers(Protocol):
    """Runs a limited number of jobs at a time."""

    def submit(self, job: Job, report: Report, rank: int = 0) -> None:
        """Run ``job`` when a worker is free."""
        ...

    def submit_all(self, jobs: Sequence[Job], report: Report) -> None:
        """Run jobs of the same rank when workers are free."""
        ...

    async def stop(self, seconds: float) -> None:
        """Abandon jobs that have not started; give the others ``seconds`` to finish."""
        ...


class AsyncWorkers:
    """Runs async jobs in a fixed number of tasks. Belongs to the event loop.

    Handlers that never wait are run by one task, one after the other; the other tasks are woken
    only while jobs wait and every awake task is in a handler.
    """

    def __init__(self, count: int, *, ranked: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Job, Report]] = deque()
        self._ranked: list[tuple[int, int, Job, Report]] | None = [] if ranked else None
        """A heap of waiting jobs, instead of the line of those without ranks."""
        self._number = 0
        self._count = count
        self._tasks: list[asyncio.Task[None]] = []
        self._parked: deque[asyncio.Future[None]] = deque()
        self._busy = 0
        self._checking = False
        self._idle: asyncio.Event | None = None

    def submit(self, job: Job, report: Report, rank: int = 0) -> None:
        """Run ``job``, which returns an awaitable, when a worker is free."""
        if self._ranked is None:
            self._waiting.append((job, report))
        else:
            self._number += 1
            heapq.heappush(self._ranked, (rank, self._number, job, report))
        if not self._checking:
            self._check()

    def submit_all(self, jobs: Sequence[Job], report: Report) -> None:
        """Run jobs, which return awaitables, when workers are free."""
        if self._ranked is not None:
            for job in jobs:
                self.submit(job, report)
            return
        self._waiting.extend([(job, report) for job in jobs])
        if not self._checking:
            self._check()

    async def stop(self, seconds: float) -> None:
        """Abandon jobs that have not started; cancel those that do not finish in ``seconds``."""
        self._waiting.clear()
        if self._ranked is not None:
            self._ranked.clear()
        if self._busy:
            self._idle = asyncio.Event()
            try:
                async with asyncio.timeout(seconds):
                    await self._idle.wait()
            except TimeoutError:
                logger.warning("handlers cancelled: count=%s", self._busy)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _check(self) -> None:
        """Wake as many workers as are needed, and check again while that may be too few."""
        self._checking = False
        waiting = len(self._waiting) if self._ranked is None else len(self._ranked)
        awake = len(self._tasks) - len(self._parked)
        if not waiting or awake == self._count:
            return
        if awake == self._busy:
            # One at first: it may do all the work. When it is seen to wait, all that are needed.
            for _ in range(min(waiting, self._count - awake) if awake else 1):
                self._wake_one()
        self._checking = True
        self._loop.call_soon(self._check)

    def _wake_one(self) -> None:
        if self._parked:
            parked = self._parked.popleft()
            if not parked.done():
                parked.set_result(None)
        else:
            self._tasks.append(self._loop.create_task(self._work(), name="handler"))

    async def _work(self) -> None:
        done, waiting, ranked = 0, self._waiting, self._ranked
        while True:
            if waiting:
                job, report = waiting.popleft()
            elif ranked:
                _, _, job, report = heapq.heappop(ranked)
            else:
                parked = self._loop.create_future()
                self._parked.append(parked)
                await parked
                continue
            outcome: BaseException | None = None
            self._busy += 1
            try:
                result = job()
                if type(result) is CoroutineType or isinstance(result, Awaitable):
                    await result
            except asyncio.CancelledError as error:
                if _is_cancelled():
                    raise
                outcome = error  # something that the handler awaited was cancelled, not this task
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # those of test frameworks, for example
                outcome = error
            finally:
                self._busy -= 1
                if self._idle is not None and not self._busy:
                    self._idle.set()
            try:
                report(job, outcome)
            except Exception:
                logger.exception("the outcome of a handler is not noted")
            outcome = None
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
        self._done: deque[tuple[Job, Report, BaseException | None]] = deque()
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
        if not self._pending:
            self._idle.clear()
        self._pending += 1
        self._number += 1
        self._jobs.put((rank, self._number, job, report))

    def submit_all(self, jobs: Sequence[Job], report: Report) -> None:
        """Run jobs when threads are free."""
        for job in jobs:
            self.submit(job, report)

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
            except BaseException as raised:  # SystemExit would end the thread unnoticed
                error = raised
            self._done.append((job, report, error))
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
            job, report, error = self._done.popleft()
            self._pending -= 1
            report(job, error)
        if not self._pending:
            self._idle.set()
