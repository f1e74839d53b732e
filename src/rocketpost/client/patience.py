"""Time limits of several steps together, and repetition of calls while a broker is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from rocketpost.errors import ConnectionLost

PAUSE_SECONDS_MIN: Final = 0.02
PAUSE_SECONDS_MAX: Final = 0.25

T = TypeVar("T")


class TimeLimit:
    """A time limit for several steps together; it begins when this object is made.

    Args:
        seconds: That time.
    """

    __slots__ = ("_end_at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end_at = asyncio.get_running_loop().time() + seconds

    @property
    def left(self) -> float:
        """The seconds that are left; 0 if the time is over."""
        return max(0.0, self._end_at - asyncio.get_running_loop().time())


def pause_seconds(pauses: int) -> float:
    """Return the length of the next pause after ``pauses`` earlier ones."""
    return min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN * (1 << min(pauses, 10)))


async def patiently(
    attempt: Callable[[], Awaitable[T]],
    *,
    seconds: float,
    refresh: Callable[[], Awaitable[None]],
    after: type[ConnectionLost] = ConnectionLost,
) -> T:
    """Repeat ``attempt`` while its broker cannot be reached; return its result.

    Args:
        attempt: Makes one call.
        seconds: Time limit for all attempts.
        refresh: Updates the broker's address; called before every further attempt.
        after: The failure to repeat after. A call that must not happen twice is repeated only
            after ``NotConnected``.

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
