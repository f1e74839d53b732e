"""A loop that does what is due and sleeps until more is: the one for everything that waits.

A step does what is due now and tells when to go on. The loop looks at the clock every few seconds
while it sleeps, since that may be set. A step that fails is tried again after a pause: one bad
message must not take the broker down, now and after every restart.
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
"""The longest sleep while something is to become due."""
RETRY_SECONDS: Final = 1.0


class Next(Enum):
    """When a step is called again, if not after a number of milliseconds."""

    AT_ONCE = "at once"
    WHEN_WOKEN = "when woken"


Step = Callable[[], Awaitable[int | Next]]
"""Does what is due; returns after how many milliseconds to go on, or a :class:`Next`.

A step that returns ``AT_ONCE`` has waited for something, so that others are served in between.
"""


class DueLoop:
    """Repeats a step until cancelled. Owned by the loop of events.

    Args:
        step: Does what is due.
        failure: What is logged of a failed step, such as "delayed messages stay".
        on_failure: Called after a step that failed in a way that nobody expects.
        retry_seconds_max: The longest pause after failures; it doubles up to that.
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
        """Whether it sleeps until it is woken, because nothing is to become due."""

    @property
    def is_woken(self) -> bool:
        """Whether the next sleep ends at once."""
        return self._woken.is_set()

    def wake(self) -> None:
        """End the sleep, this one or the next."""
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
                self._on_failure()
            else:
                retry_seconds = RETRY_SECONDS
                await self._sleep(after)
                continue
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
