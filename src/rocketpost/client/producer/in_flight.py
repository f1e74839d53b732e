"""A bound on messages in flight; senders beyond it wait in order."""

from __future__ import annotations

import asyncio
from collections import deque


class InFlight:
    """Counts messages and bytes in flight. Belongs to the event loop.

    A send that is larger than a bound is admitted alone, since it could never pass otherwise.
    """

    def __init__(self, *, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[int, int, asyncio.Future[None]]] = deque()
        self._admitted = 0
        """Senders that have been admitted and have not resumed yet."""
        self._idle: asyncio.Event | None = None
        self.count = 0
        self.bytes_held = 0

    def try_enter(self, size: int, count: int = 1) -> bool:
        """Reserve ``count`` messages of ``size`` bytes, if they fit and no sender waits."""
        held, size_held = self.count + count, self.bytes_held + size
        is_full = self.count and (held > self._count_max or size_held > self._bytes_max)
        if is_full or self._waiting or self._admitted:
            return False
        self.count, self.bytes_held = held, size_held
        return True

    async def enter(self, size: int, count: int = 1) -> None:
        """Reserve ``count`` messages of ``size`` bytes, waiting in the order of the calls."""
        if self.try_enter(size, count):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = size, count, future
        self._waiting.append(entry)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._admitted -= 1
                self.leave(size, count)  # we were admitted at the very moment we gave up
            else:
                if entry in self._waiting:  # it is gone if others were admitted meanwhile
                    self._waiting.remove(entry)
                self._admit()
            raise
        self._admitted -= 1
        self._admit()  # later callers had to wait for us

    def leave(self, size: int, count: int = 1) -> None:
        """Release a reservation."""
        self.count -= count
        self.bytes_held -= size
        if self._waiting:
            self._admit()
        if not self.count and self._idle is not None:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until nothing is in flight and no sender waits."""
        while self.count or self._waiting:
            self._idle = asyncio.Event()
            await self._idle.wait()

    def _has_room(self, size: int, count: int) -> bool:
        if not self.count:
            return True
        return self.count + count <= self._count_max and self.bytes_held + size <= self._bytes_max

    def _admit(self) -> None:
        while self._waiting and self._has_room(*self._waiting[0][:2]):
            size, count, future = self._waiting.popleft()
            if not future.done():
                self.count += count
                self.bytes_held += size
                self._admitted += 1
                future.set_result(None)
