"""Delivers popped messages again when they are due, and sleeps until then."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from rocketpost.broker.pop.changes import Change
from rocketpost.errors import RocketpostError
from rocketpost.model.clock import Clock
from rocketpost.server.due_loop import DueLoop, Next
from rocketpost.server.popping.recorder import PopRecorder

logger = logging.getLogger(__name__)


class Service(Protocol):
    """The part of a popping service that the revival uses."""

    def next_due_ms(self) -> int | None:
        """Return the time at which the next message is due, None if there is none."""
        ...

    def revive(self) -> list[Change]:
        """Return the changes that deliver the due messages again."""
        ...

    def settle(self, change: Change, /) -> None:
        """Handle a change that is stored or has failed."""
        ...


class Revival:
    """Runs the revival of one broker. Owned by the loop."""

    def __init__(self, *, service: Service, recorder: PopRecorder, clock: Clock) -> None:
        self._service = service
        self._recorder = recorder
        self._clock = clock
        self._until_ms: int | None = None
        self._loop = DueLoop(self._step, failure="popped messages stay")

    def due_changed(self) -> None:
        """Wake the loop if a message is due earlier than expected."""
        due_ms = self._service.next_due_ms()
        if due_ms is not None and (self._until_ms is None or due_ms < self._until_ms):
            self._loop.wake()

    async def run(self) -> None:
        """Revive until cancelled."""
        await self._loop.run()

    async def _step(self) -> int | Next:
        self._until_ms = self._service.next_due_ms()
        if self._until_ms is None:
            return Next.WHEN_WOKEN
        wait_ms = self._until_ms - self._clock.now_ms()
        if wait_ms > 0:
            return wait_ms
        await self._revive()
        await asyncio.sleep(0)
        return Next.AT_ONCE

    async def _revive(self) -> None:
        self._recorder.settle()
        changes = self._service.revive()
        for change in changes:
            try:
                self._recorder.store(self._service, change)
            except RocketpostError as error:
                logger.warning("popped messages not delivered again yet: reason=%s", error)
        await self._recorder.wait(changes)
