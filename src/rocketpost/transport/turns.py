"""Fair sharing of the event loop between connections.

A connection serves its requests for ``BUDGET_SECONDS`` at a time. The rest waits, in order, while
the connection reads no more, and is served from here in a later loop iteration. All waiting
connections share one budget at a time, round robin. So however many there are, a connection with a
single small request is served between two of these budgets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import Final, Protocol

BUDGET_SECONDS: Final = 0.005
"""Long enough for hundreds of sends, which are then written and answered together; short enough to
delay others very little."""

_HOPS: Final = 2
"""Loop iterations left to others in between: a send that arrives in the first is written in the
second and answered in the third."""

Steps = Generator[None, None, None]
"""Work that yields wherever it may be interrupted, about every millisecond."""


class Worker(Protocol):
    """An object with work left over."""

    def go_on(self) -> None:
        """Work for one budget; call :meth:`Turns.add` again if work is left."""
        ...


class Turns:
    """The workers with work left over. Belongs to the event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Worker, None] = {}
        self._woken: dict[Worker, None] = {}
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, worker: Worker) -> None:
        """Let ``worker`` continue in a later turn, after those already waiting."""
        self._waiting[worker] = None
        self._schedule()

    def wake(self, worker: Worker) -> None:
        """Let ``worker`` continue once in the next loop iteration, however often it is woken.

        Workers continue in the order in which they were first woken. Each works for one budget, and
        adds itself if work is left.
        """
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._run_woken)
        self._woken[worker] = None

    def remove(self, worker: Worker) -> None:
        """Remove a worker that has no work left."""
        self._waiting.pop(worker, None)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._hop, _HOPS)

    def _hop(self, left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(self._hop, left - 1)
        else:
            self._run()

    def _run_woken(self) -> None:
        woken, self._woken = self._woken, {}
        for worker in woken:
            worker.go_on()

    def _run(self) -> None:
        self._is_scheduled = False
        waiting = self._waiting
        end = time.monotonic() + BUDGET_SECONDS
        for worker in list(waiting):
            if waiting.pop(worker, self) is not self:
                worker.go_on()
                if time.monotonic() > end:
                    break
        if waiting:
            self._schedule()


class SlicedWork:
    """Work outside of requests, such as waking many pulls, done in one slice per turn."""

    def __init__(self, steps: Steps, turns: Turns) -> None:
        self._steps = steps
        self._turns = turns

    def go_on(self) -> None:
        """Do a slice."""
        if not advance(self._steps, time.monotonic() + BUDGET_SECONDS):
            self._turns.add(self)


def advance(steps: Steps, deadline: float) -> bool:
    """Work until ``deadline``; return whether everything is done."""
    return all(time.monotonic() <= deadline for _ in steps)
