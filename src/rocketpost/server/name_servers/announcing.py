"""New topics: requests that create one are answered once the name servers know it.

A client that creates a topic, by a tool or by the first send to it, asks for its route next.
RocketMQ answers after it has registered the topic, and clients rely on that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet


class Announcing:
    """The new topics that wait to be announced to the name servers. Owned by the loop.

    Args:
        wait_registered: Returns once the name servers know all changes so far, or after some time.
    """

    def __init__(self, *, wait_registered: Callable[[], Awaitable[None]]) -> None:
        self._wait_registered = wait_registered
        self._announced: set[str] = set()
        self._round: set[str] = set()
        self._round_after: list[Callable[[], None]] = []
        self._after: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self.topics: set[str] = set()
        """New topics that the name servers may not know yet."""

    def add(self, topic: str) -> None:
        """Add a topic that was created or changed, unless it was announced before."""
        if topic not in self._announced:
            self.topics.add(topic)
            self._start()

    def forget(self, topic: str) -> None:
        """Forget a deleted topic; if it is created again, it is announced again."""
        self._announced.discard(topic)
        self.topics.discard(topic)

    def when_announced(self, topics: AbstractSet[str], callback: Callable[[], None]) -> None:
        """Call ``callback`` once the name servers know ``topics``."""
        if topics <= self._round:
            self._round_after.append(callback)
        else:
            self._after.append(callback)
            self._start()

    async def close(self) -> None:
        """Stop waiting, and call every waiting callback now."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._end_round()
        self._begin_round()
        self._end_round()

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="announcing")

    async def _run(self) -> None:
        try:
            while self.topics or self._after:
                self._begin_round()
                try:
                    await self._wait_registered()
                finally:
                    self._end_round()
        finally:
            self._task = None

    def _begin_round(self) -> None:
        self._round = set(self.topics)
        self._round_after, self._after = self._after, []

    def _end_round(self) -> None:
        after, self._round_after = self._round_after, []
        self._announced |= self._round & self.topics
        self.topics -= self._round
        self._round = set()
        for callback in after:
            callback()
