"""A loop that does the work that is due, then sleeps until more is due.

A step does the work that is due now and returns when to call it again. The loop reads the clock
every few seconds while it sleeps, because the clock may be set. A failed step is tried again after
a pause: one bad message must not stop the broker, now and after every restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

from rocketpost.errors import RocketpostError

logger = logging.getLogger(__name__)

CLOCK_LOOK_SECONDS: Final = 5.0
"""The longest sleep while work is scheduled."""
RETRY_SECONDS: Final = 1.0


class Next(Enum):
    """Time of the next step, if it is not a number of milliseconds."""

    AT_ONCE = "at once"
    WHEN_WOKEN = "when woken"


Step = Callable[[], Awaitable[int | Next]]
"""Does the work that is due; returns the milliseconds until the next step, or a :class:`Next`.

A step that returns ``AT_ONCE`` has waited for something, so that other tasks run in between.
"""


class DueLoop:
    """Repeats a step until cancelled. Owned by the event loop.

    Args:
        step: Does the work that is due.
        failure: Text to log when a step fails, such as "delayed messages stay".
        on_failure: Called after a step that failed.
        retry_seconds_max: The longest pause after failures; the pause doubles up to it.
    """

    def __init__(
        self,
        step: Step,
        *,
        failure: str,
        on_failure: Callable[[], None] = lambda: None,
        retry_seconds_max: float = RETRY_SECONDS,
    ) -> None:
        self._step = step
        self._failure = failure
        self._on_failure = on_failure
        self._retry_seconds_max = retry_seconds_max
        self._woken = asyncio.Event()
        self.is_idle = False
        """Whether it sleeps until it is woken, because nothing is scheduled."""

    @property
    def is_woken(self) -> bool:
        """Whether the next sleep ends at once."""
        return self._woken.is_set()

    def wake(self) -> None:
        """End the current sleep, or else the next one."""
        self._woken.set()

    async def run(self) -> None:
        """Repeat the step until cancelled."""
        retry_seconds = RETRY_SECONDS
        while True:
            self._woken.clear()
            try:
                after = await self._step()
            except (RocketpostError, OSError) as error:
                logger.warning("%s, will be tried again: reason=%s", self._failure, error)
            except Exception:
                logger.exception("%s, will be tried again", self._failure)
            else:
                retry_seconds = RETRY_SECONDS
                await self._sleep(after)
                continue
            self._on_failure()
            await asyncio.sleep(retry_seconds)
            retry_seconds = min(2 * retry_seconds, self._retry_seconds_max)

    async def _sleep(self, after: int | Next) -> None:
        if after is Next.AT_ONCE:
            return
        if after is Next.WHEN_WOKEN:
            self.is_idle = True
            try:
                await self._woken.wait()
            finally:
                self.is_idle = False
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(max(after, 1) / 1000, CLOCK_LOOK_SECONDS)):
                await self._woken.wait()
