"""An event loop whose time does not pass while its process stands still.

A campaign takes an hour, and its machine may be suspended, or all of its processes be stopped for a
while. The members stand still as well then, so no time of theirs should count against a limit.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from typing import Final

STILL_SECONDS: Final = 1.0
"""Time without a step, beyond the time that the loop wanted to wait, which is left out."""


class _Clock:
    """A monotonic clock without the time in which nobody could look at it."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.still_seconds = 0.0

    def look(self, waited: float = 0.0) -> float:
        """Return the time; ``waited`` is the part since the last look that was wanted."""
        now = time.monotonic()
        excess = now - self._last - waited
        if excess > STILL_SECONDS:
            self.still_seconds += excess
            print(f"the campaign stood still for {excess:.1f} s")
        self._last = now
        return now - self.still_seconds


class _WatchedSelector(selectors.DefaultSelector):
    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._clock.look()
        found = super().select(timeout)
        self._clock.look(float("inf") if timeout is None else max(0.0, timeout))
        return found


class SteadyLoop(asyncio.SelectorEventLoop):
    """The loop of a campaign."""

    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(_WatchedSelector(self._clock))

    @property
    def still_seconds(self) -> float:
        """Time in which the process stood still."""
        return self._clock.still_seconds

    def time(self) -> float:
        """Return seconds in which the process ran."""
        return self._clock.look()
