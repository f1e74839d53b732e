"""Parks acknowledgements until the commit log is durable up to them.

Group commit: everything that was written while one ``fdatasync`` ran waits for the next, which
covers all of it. Positions only grow, so the waiting ones form a queue, not a heap.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from rocketpost.model.ids import Position

logger = logging.getLogger(__name__)

T = TypeVar("T")


class DurabilityGate(Generic[T]):
    """Parks tickets until the log is durable up to them. Owned by the loop.

    Args:
        on_durable: Called with the tickets that became durable, oldest first.
        on_timeout: Called with the tickets that have waited too long; they are parked no more.
        on_position: Called with every new durable position, before ``on_durable``.
        timeout_ms: How long a ticket may wait.
    """

    def __init__(
        self,
        *,
        on_durable: Callable[[list[T]], None],
        on_timeout: Callable[[list[T]], None],
        on_position: Callable[[Position], None],
        timeout_ms: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_durable = on_durable
        self._on_timeout = on_timeout
        self._on_position = on_position
        self._timeout = timeout_ms / 1000
        self._waiting: deque[tuple[Position, float, T]] = deque()
        self._durable = Position(0)
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def park(self, position: Position, ticket: T) -> None:
        """Keep ``ticket`` until every byte before ``position`` is durable."""
        deadline = self._loop.time() + self._timeout
        self._waiting.append((position, deadline, ticket))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)

    def advance_from_thread(self, durable: Position) -> None:
        """Report, from the flusher's thread, that bytes before ``durable`` are on disk."""
        try:
            self._loop.call_soon_threadsafe(self.advance, durable)
        except RuntimeError:
            # The loop is closed: the process is stopping and nobody waits any more.
            logger.debug("durable position after the loop closed: position=%s", durable)

    def advance(self, durable: Position) -> None:
        """Release what is durable now."""
        if durable <= self._durable or self._closed:
            return
        self._durable = durable
        self._on_position(durable)
        released = []
        waiting = self._waiting
        while waiting and waiting[0][0] <= durable:
            released.append(waiting.popleft()[2])
        if released:
            self._on_durable(released)

    def drain(self) -> list[T]:
        """Give up on everything that waits, and return it."""
        tickets = [ticket for _, _, ticket in self._waiting]
        self._waiting.clear()
        return tickets

    def close(self) -> None:
        """Release nothing any more: the store is closed by a thread now, and is all its own."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        late = []
        while self._waiting and self._waiting[0][1] <= now:
            late.append(self._waiting.popleft()[2])
        if self._waiting:
            self._timer = self._loop.call_at(self._waiting[0][1], self._expire)
        if late:
            logger.warning("disk flush is slow: answered_with_timeout=%s", len(late))
            self._on_timeout(late)
