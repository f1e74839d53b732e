"""New topics: until the name servers know one, who made it is not told that it is done.

Who creates a topic, by a tool or by the first send to it, asks for its route next. RocketMQ answers
after it has registered the topic, and clients count on that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Announcing:
    """The topics whose news are under way. Owned by the loop.

    Args:
        told: Returns once the name servers know all changes so far, or will not soon.
    """

    def __init__(self, *, told: Callable[[], Awaitable[None]]) -> None:
        self._told = told
        self._after: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self.topics: set[str] = set()
        """Changed, and perhaps not known yet."""

    def add(self, topic: str) -> None:
        """Note that a topic changed."""
        self.topics.add(topic)
        self._start()

    def then(self, callback: Callable[[], None]) -> None:
        """Call back once what has changed so far is known."""
        self._after.append(callback)
        self._start()

    async def close(self) -> None:
        """Stop waiting; who waits is called at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._call(self._take())

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="announcing")

    async def _run(self) -> None:
        try:
            while self.topics or self._after:
                topics, after = set(self.topics), self._take()
                try:
                    await self._told()
                finally:
                    self.topics -= topics
                    self._call(after)
        finally:
            self._task = None

    def _take(self) -> list[Callable[[], None]]:
        after, self._after = self._after, []
        return after

    def _call(self, after: list[Callable[[], None]]) -> None:
        for callback in after:
            callback()
