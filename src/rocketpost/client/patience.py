"""Repeats calls while a broker cannot be reached, with pauses, within a time budget."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from rocketpost.errors import ConnectionLost

PAUSE_SECONDS_MIN: Final = 0.02
PAUSE_SECONDS_MAX: Final = 0.25

T = TypeVar("T")


def pause_seconds(pauses: int) -> float:
    """Return how long to rest after ``pauses`` earlier rests."""
    return min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN * (1 << min(pauses, 10)))


async def patiently(
    attempt: Callable[[], Awaitable[T]],
    *,
    seconds: float,
    refresh: Callable[[], Awaitable[None]],
    after: type[ConnectionLost] = ConnectionLost,
) -> T:
    """Return what ``attempt`` returns, tried again while its broker cannot be reached.

    Args:
        attempt: Makes one call.
        seconds: How long to go on.
        refresh: Learns where the broker is now; called before every further attempt.
        after: Which failure is worth another attempt. A call that must not happen twice is
            repeated after ``NotConnected`` only.

    Raises:
        ConnectionLost: The broker could not be reached in time.
    """
    loop = asyncio.get_running_loop()
    deadline, pauses = loop.time() + seconds, 0
    while True:
        try:
            return await attempt()
        except after:
            pause = pause_seconds(pauses)
            if loop.time() + pause >= deadline:
                raise
        await asyncio.sleep(pause)
        pauses += 1
        await refresh()
