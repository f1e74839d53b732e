"""Delivers delayed messages: one task a level, asleep until the next message is due.

``broker.delay.service`` decides what is due. A level that has nothing waits for an arrival in its
queue; one that has sleeps until its first message is due, but looks at the clock every few seconds,
since that may be set. Progress follows the delivered copies, never the other way round.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from rocketpost.broker.delay.progress import DelayProgress
from rocketpost.broker.delay.service import DelayService, Due, Wait
from rocketpost.errors import RocketpostError
from rocketpost.model.ids import Position
from rocketpost.model.names import SCHEDULE_TOPIC
from rocketpost.store.draft import Appended, Draft

logger = logging.getLogger(__name__)

CLOCK_LOOK_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 1.0
_RETRY_SECONDS_MAX: Final = 10.0
_SKIPPED_AT_ONCE: Final = 64

Put = Callable[[list[Draft]], "asyncio.Future[list[Appended]]"]


class Delivery:
    """Runs the delay levels of one broker. Owned by the loop.

    Args:
        put: Stores messages as safely as sends are stored.
        level_count: How many levels there are.
    """

    def __init__(
        self, *, service: DelayService, progress: DelayProgress, put: Put, level_count: int
    ) -> None:
        self._service = service
        self._progress = progress
        self._put = put
        self._arrivals = [asyncio.Event() for _ in range(level_count)]
        self.delivered = 0

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with asyncio.TaskGroup() as group:
            for level in range(1, len(self._arrivals) + 1):
                group.create_task(self._serve(level), name=f"delay level {level}")

    def arrived(self, messages: Iterable[Appended]) -> None:
        """Wake the levels that any of these messages belong to."""
        for message in messages:
            if message.topic == SCHEDULE_TOPIC and message.queue_id < len(self._arrivals):
                self._arrivals[message.queue_id].set()

    def runtime_values(self) -> dict[str, str]:
        """Return, for tools, how far each level that is used has come."""
        states, waiting = {}, 0
        for level in range(1, len(self._arrivals) + 1):
            done, end = self._service.state(level)
            if end:
                states[f"scheduleMessageOffset_{level}"] = f"{done},{end}"
                waiting += max(0, end - done)
        return {"delayedMessages": str(waiting), **states}

    async def _serve(self, level: int) -> None:
        await self._resume(level)
        retry_seconds = _RETRY_SECONDS
        while True:
            arrived = self._arrivals[level - 1]
            arrived.clear()
            try:
                step = self._service.next(level)
                if isinstance(step, Wait):
                    await _sleep(step, arrived)
                    continue
                await self._deliver(level, step)
                retry_seconds = _RETRY_SECONDS
            except RocketpostError as error:
                logger.warning(
                    "delayed messages stay, will be tried again: level=%s reason=%s", level, error
                )
            except Exception:
                # One level must not take the broker down, now and after every restart.
                logger.exception("delayed messages stay, will be tried again: level=%s", level)
            else:
                continue
            await asyncio.sleep(retry_seconds)
            retry_seconds = min(2 * retry_seconds, _RETRY_SECONDS_MAX)

    async def _resume(self, level: int) -> None:
        """Pass what was delivered after the progress was last saved, before a crash."""
        passed = 0
        while self._service.skip_delivered(level):
            passed += 1
            if passed % _SKIPPED_AT_ONCE == 0:
                await asyncio.sleep(0)
        if passed:
            logger.info("delivered before the crash: level=%s count=%s", level, passed)

    async def _deliver(self, level: int, due: Due) -> None:
        position, next_offset = Position(0), due.next_offset
        if due.drafts:
            stored = await self._put(due.drafts)
            position = stored[-1].end
            if len(stored) < len(due.drafts):
                next_offset = due.offsets[len(stored)]
            self.delivered += len(stored)
        self._progress.advance(level, next_offset, position=position)


async def _sleep(wait: Wait, arrived: asyncio.Event) -> None:
    if wait.ms is None:
        await arrived.wait()
    else:
        await asyncio.sleep(min(max(wait.ms, 1) / 1000, CLOCK_LOOK_SECONDS))
