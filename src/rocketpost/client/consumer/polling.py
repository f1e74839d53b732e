"""Fetched messages that wait for a poll of the application."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from rocketpost.client.consumer.owned_queue import OwnedQueue
from rocketpost.client.message import ReceivedMessage


class PolledMessages:
    """A consumption without handlers: polled messages are finished. Belongs to the event loop."""

    def __init__(self) -> None:
        self._ready: deque[tuple[OwnedQueue, Sequence[ReceivedMessage]]] = deque()
        self._some = asyncio.Event()

    def submit(self, owned: OwnedQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Keep the messages of one pull."""
        if messages:
            self._ready.append((owned, messages))
            self._some.set()

    async def take(self, seconds: float) -> list[ReceivedMessage]:
        """Return the messages of one pull, oldest first; none if none arrive in time."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    found = self._next()
                    if found:
                        return found
                    self._some.clear()
                    await self._some.wait()
        except TimeoutError:
            return []

    def _next(self) -> list[ReceivedMessage]:
        while self._ready:
            owned, messages = self._ready.popleft()
            if not owned.dropped:  # otherwise it was lost, or the application sought another offset
                owned.finish(messages)
                return list(messages)
        return []

    def holding(self, owned: OwnedQueue) -> str:
        """Describe the messages of the queue that wait for a poll; empty if there are none."""
        count = owned.tracker.count if owned.tracker is not None else 0
        return f"{count} messages wait to be polled" if count else ""

    async def expire(self, queues: Sequence[OwnedQueue]) -> None:
        """Do nothing: no handler can take too long."""

    async def settle(self, owned: OwnedQueue, seconds: float) -> bool:
        """Return at once: no handler is running."""
        return True

    async def stop(self, seconds: float) -> None:
        """Do nothing: no handler is running."""

    async def close(self) -> None:
        """Drop the messages that were not polled."""
        self._ready.clear()
