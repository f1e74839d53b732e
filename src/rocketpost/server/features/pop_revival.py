"""Hands popped messages out again when they are due: asleep until the next one is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final, Protocol

from rocketpost.broker.pop.changes import Change
from rocketpost.errors import RocketpostError
from rocketpost.model.clock import Clock
from rocketpost.server.features.pop_recorder import PopRecorder

logger = logging.getLogger(__name__)

CLOCK_LOOK_SECONDS: Final = 5.0
"""The clock is looked at so often, since it may be set."""
_RETRY_SECONDS: Final = 1.0


class Service(Protocol):
    """What decides, as far as waiting for it goes."""

    def next_due_ms(self) -> int | None:
        """Return when the next message is due, None if none is."""
        ...  # pragma: no cover

    def revive(self) -> list[Change]:
        """Return the changes that hand out what is due."""
        ...  # pragma: no cover

    def settled(self, change: Change, /) -> None:
        """Take note that a change is stored, or is not."""
        ...  # pragma: no cover


class Revival:
    """Runs the revival of one broker. Owned by the loop."""

    def __init__(self, *, service: Service, recorder: PopRecorder, clock: Clock) -> None:
        self._service = service
        self._recorder = recorder
        self._clock = clock
        self._woken = asyncio.Event()
        self._until_ms: int | None = None

    def due_changed(self) -> None:
        """Look again if something is due earlier than what is waited for."""
        due_ms = self._service.next_due_ms()
        if due_ms is not None and (self._until_ms is None or due_ms < self._until_ms):
            self._woken.set()

    async def run(self) -> None:
        """Revive until cancelled."""
        while True:
            self._woken.clear()
            self._until_ms = self._service.next_due_ms()
            if self._until_ms is None:
                await self._woken.wait()
                continue
            wait_ms = self._until_ms - self._clock.now_ms()
            if wait_ms > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(wait_ms / 1000, CLOCK_LOOK_SECONDS)):
                        await self._woken.wait()
                continue
            try:
                await self._revive()
            except Exception:
                # One bad message must not take the broker down, now and after every restart.
                logger.exception("popped messages stay, will be tried again")
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            await asyncio.sleep(0)

    async def _revive(self) -> None:
        self._recorder.settle()
        changes = self._service.revive()
        for change in changes:
            try:
                self._recorder.store(self._service, change)
            except RocketpostError as error:
                logger.warning("popped messages not handed out again yet: reason=%s", error)
        await self._recorder.wait(changes)
