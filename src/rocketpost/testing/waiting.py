"""Waiting for code on an event loop, for tests that must not guess a time.

``until`` waits for a condition, ``settle`` until nothing is left to do but wait for timers. Neither
sleeps: on a busy machine a sleep is too short, on an idle one it is wasted. A test of timers runs
in virtual time (``testing.virtual_time``), where a sleep costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from rocketpost.testing.virtual_time import VirtualLoop

_SECONDS_MAX: Final = 30.0
_ROUNDS_MAX: Final = 100_000
_VIRTUAL_STEP_SECONDS: Final = 0.001


async def until(condition: Callable[[], object], *, seconds: float = _SECONDS_MAX) -> None:
    """Let the loop work until ``condition`` returns something true.

    Raises:
        TimeoutError: It did not in ``seconds`` of the loop's time.
    """
    # Only a sleep lets virtual time go on. Real time goes on by itself.
    virtual = isinstance(asyncio.get_running_loop(), VirtualLoop)
    pause = _VIRTUAL_STEP_SECONDS if virtual else 0
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - any condition, not one with an event
            await asyncio.sleep(pause)


async def settle() -> None:
    """Let the loop work until only timers, threads and silent sockets could give it more to do."""
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    for _ in range(_ROUNDS_MAX):
        await asyncio.sleep(0)
        # This task was first in its round, so what sockets had for the loop stands behind it.
        if not ready:
            return
    raise AssertionError("the loop always has something to do: wait for a condition instead")
