"""Fetched messages that wait for the application to poll them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from rocketpost.client.consumer.owned_queue import OwnedQueue
from rocketpost.client.message import ReceivedMessage


class PolledMessages:
    """A consumption that handles nothing: what is polled is finished. Belongs to the event loop."""

    def __init__(self) -> None:
        self._ready: deque[tuple[OwnedQueue, Sequence[ReceivedMessage]]] = deque()
        self._some = asyncio.Event()

    def submit(self, owned: OwnedQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Keep what one pull found."""
        if messages:
            self._ready.append((owned, messages))
            self._some.set()

    async def take(self, seconds: float) -> list[ReceivedMessage]:
        """Return what one pull found, oldest first; nothing if nothing comes in time."""
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
            if not owned.dropped:  # else it was lost, or another offset was sought
                owned.finish(messages)
                return list(messages)
        return []

    def holding(self, owned: OwnedQueue) -> str:
        """Return how many messages of the queue wait for a poll; empty if none does."""
        count = owned.tracker.count if owned.tracker is not None else 0
        return f"{count} messages wait to be polled" if count else ""

    async def expire(self, queues: Sequence[OwnedQueue]) -> None:
        """Nothing takes too long here."""

    async def settle(self, owned: OwnedQueue, seconds: float) -> bool:
        """Return at once: nothing is at work."""
        return True

    async def stop(self, seconds: float) -> None:
        """Nothing is at work."""

    async def close(self) -> None:
        """Forget what nobody polled."""
        self._ready.clear()
