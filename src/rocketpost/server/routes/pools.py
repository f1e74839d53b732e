"""Pools of waiting tasks, one for each kind of thing that tasks wait for.

A full pool does not affect the others. Each pool limits its tasks and the bytes of their requests.
A connection never gets more of a pool than is still free, so a greedy connection leaves half of
the pool to others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from enum import Enum
from typing import Final, NamedTuple

from rocketpost.codec.faults import SystemBusy
from rocketpost.server.settings.limits import share
from rocketpost.transport.connection import Connection

MIB: Final = 1024 * 1024


class Bounds(NamedTuple):
    """Limits on all tasks of a pool together."""

    count_max: int
    bytes_max: int


class PoolKind(Enum):
    """Kind of thing that a task waits for."""

    MESSAGES = "the disk, for messages and receipts"
    ADMIN = "the disk, for tables and files"
    ROUTES = "name servers"
    CLIENTS = "an answer of another client"
    REPLIES = "another client to take a reply"
    SLAVES = "a change of a table, for slaves"
    LEADER = "the leader of this broker's group"


BOUNDS: Final = {
    # As many as the unanswered requests of two connections.
    PoolKind.MESSAGES: Bounds(16_384, 64 * MIB),
    PoolKind.REPLIES: Bounds(16_384, 64 * MIB),
    PoolKind.ADMIN: Bounds(16_384, 64 * MIB),
    # Small requests that people make at a screen, or clients make rarely.
    PoolKind.ROUTES: Bounds(4096, 16 * MIB),
    PoolKind.CLIENTS: Bounds(4096, 16 * MIB),
    # One request of each slave; a group has few of them.
    PoolKind.SLAVES: Bounds(256, MIB),
    # Requests of clients that do not know of a change of leader yet.
    PoolKind.LEADER: Bounds(8192, 64 * MIB),
}


class Pool:
    """Tasks that wait for the same thing. Belongs to the event loop."""

    def __init__(self, kind: PoolKind, bounds: Bounds) -> None:
        self._kind = kind
        self._bounds = bounds
        self._taken: dict[Connection, tuple[int, int]] = {}
        self.is_dear = kind is PoolKind.ADMIN
        """Whether one of its tasks may keep the loop busy for milliseconds."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.task_bytes = 0

    def check(self, connection: Connection, size: int) -> None:
        """Check that there is room for a request of ``size`` bytes.

        Raises:
            SystemBusy: Too many requests wait already, in all or of this connection.
        """
        count_max, bytes_max = self._bounds
        count, used = self._taken.get(connection, (0, 0))
        if count >= share(len(self.tasks), count_max, count_max) or used + size > share(
            self.task_bytes, bytes_max, bytes_max
        ):
            raise SystemBusy(
                f"[OVERLOAD]{len(self.tasks)} requests wait for {self._kind.value} already, "
                f"{count} of them from this connection; try again later"
            )

    def start(self, connection: Connection, size: int, work: Coroutine[None, None, None]) -> None:
        """Run ``work`` for a request of ``size`` bytes."""
        count, used = self._taken.get(connection, (0, 0))
        self._taken[connection] = count + 1, used + size
        self.task_bytes += size
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(lambda done: self._on_end(done, connection, size))

    def _on_end(self, task: asyncio.Task[None], connection: Connection, size: int) -> None:
        self.tasks.discard(task)
        self.task_bytes -= size
        count, used = self._taken[connection]
        if count > 1:
            self._taken[connection] = count - 1, used - size
        else:
            del self._taken[connection]
