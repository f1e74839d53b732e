"""Delivery of delayed messages: one task for each level, asleep until the next message is due.

``broker.delay.service`` decides which messages are due. An empty level waits for an arrival in its
queue; another sleeps until its first message is due (``server.due_loop``). Progress advances after
the copies are delivered, never before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from rocketpost.broker.delay.progress import DelayProgress
from rocketpost.broker.delay.service import DelayService, DueBatch
from rocketpost.broker.delivery import Wait
from rocketpost.model.ids import Position
from rocketpost.model.names import SCHEDULE_TOPIC
from rocketpost.server.due_loop import DueLoop, Next
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.store.draft import Appended, Draft

logger = logging.getLogger(__name__)

_RETRY_SECONDS_MAX: Final = 10.0
_SKIPPED_AT_ONCE: Final = 64

Put = Callable[[list[Draft]], "asyncio.Future[list[Appended]]"]


class Delivery:
    """Runs the delay levels of one broker. Owned by the loop.

    Args:
        put: Stores messages as safely as sends are stored.
        level_count: The number of levels.
    """

    def __init__(
        self, *, service: DelayService, progress: DelayProgress, put: Put, level_count: int
    ) -> None:
        self._service = service
        self._progress = progress
        self._put = put
        self._loops = [
            DueLoop(
                partial(self._step, level),
                failure=f"delayed messages of level {level} stay",
                retry_seconds_max=_RETRY_SECONDS_MAX,
            )
            for level in range(1, level_count + 1)
        ]
        self._to_resume = set(range(1, level_count + 1))
        self.delivered = 0

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with asyncio.TaskGroup() as group:
            for level, loop in enumerate(self._loops, 1):
                group.create_task(loop.run(), name=f"delay level {level}")

    def note_arrivals(self, arrivals: Iterable[Arrival]) -> None:
        """Wake the levels that were empty before these messages; others wake when due."""
        for arrival in arrivals:
            if arrival.topic == SCHEDULE_TOPIC and arrival.queue_id < len(self._loops):
                loop = self._loops[arrival.queue_id]
                if loop.is_idle:
                    loop.wake()

    def runtime_values(self) -> dict[str, str]:
        """Return, for tools, the progress of each level in use."""
        states, waiting = {}, 0
        for level in range(1, len(self._loops) + 1):
            done, end = self._service.state(level)
            if end:
                states[f"scheduleMessageOffset_{level}"] = f"{done},{end}"
                waiting += max(0, end - done)
        return {"delayedMessages": str(waiting), **states}

    async def _step(self, level: int) -> int | Next:
        if level in self._to_resume:
            await self._resume(level)
            self._to_resume.remove(level)
        step = self._service.next(level)
        if isinstance(step, Wait):
            return Next.WHEN_WOKEN if step.ms is None else step.ms
        await self._deliver(level, step)
        return Next.AT_ONCE

    async def _resume(self, level: int) -> None:
        """Skip messages that were delivered before a crash, after progress was last saved."""
        passed = 0
        while self._service.skip_delivered(level):
            passed += 1
            if passed % _SKIPPED_AT_ONCE == 0:
                await asyncio.sleep(0)
        if passed:
            logger.info("delivered before the crash: level=%s count=%s", level, passed)

    async def _deliver(self, level: int, due: DueBatch) -> None:
        position, next_offset = Position(0), due.next_offset
        if due.drafts:
            stored = await self._put(due.drafts)
            position = stored[-1].end
            if len(stored) < len(due.drafts):
                next_offset = due.offsets[len(stored)]
            self.delivered += len(stored)
        self._progress.advance(level, next_offset, position=position)
