"""A workload of locks on queues, as orderly consumers take them, for groups of brokers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Final

from rocketpost.errors import RocketpostError
from rocketpost.testing.link import BrokerLink
from rocketpost.testing.workloads.base import RETRY_SECONDS, Workload

GROUP: Final = "locked"
TRUST_SECONDS: Final = 30.0
"""Time for which clients take a lock for theirs without asking again."""
_CLIENTS: Final = 3
_UNLOCK_SHARE: Final = 0.3
_PAUSE_SECONDS: Final = 0.1


@dataclass(slots=True)
class LockHistory:
    """The locks that clients were granted, by queue: the holder, and until when it trusts that."""

    held: dict[int, tuple[str, float]] = field(default_factory=dict)

    def grant(self, queue_id: int, client: str, *, asked_at: float, now: float) -> str | None:
        """Record a lock; return the client that holds it at the same time, if there is one."""
        holder, until = self.held.get(queue_id, (client, now))
        self.held[queue_id] = client, asked_at + TRUST_SECONDS
        return holder if holder != client and now < until else None

    def release(self, queue_id: int, client: str) -> None:
        """Record that a client gives its lock back: call it before that is sent."""
        if self.held.get(queue_id, ("", 0.0))[0] == client:
            del self.held[queue_id]


class LockedWorkload(Workload):
    """Locks queues for several clients: whatever happens, a queue has one holder at a time.

    A single broker forgets its locks with its process; the members of a group must not.
    """

    topic = "Locked"
    needs_true_clocks = True

    async def run(self) -> None:
        """Lock, renew and unlock with all clients at once."""
        self._history = LockHistory()
        self._names = 0
        async with asyncio.TaskGroup() as group:
            for _ in range(_CLIENTS):
                group.create_task(self._run_client())

    async def settle(self) -> None:
        """Do nothing: every lock was judged when it was granted."""

    async def _run_client(self) -> None:
        while True:
            with contextlib.suppress(RocketpostError):
                link = await BrokerLink.connect(self.place.address)
                # What the last connection sent may still arrive, and must not unlock what this one
                # has locked. So each has another name.
                self._names += 1
                try:
                    await self._lock_and_unlock(link, f"client-{self._names}")
                finally:
                    link.close()
            await asyncio.sleep(RETRY_SECONDS)

    async def _lock_and_unlock(self, link: BrokerLink, client: str) -> None:
        while link.is_open:
            queue_id = self.rng.randrange(self.queue_count)
            asked_at = time.monotonic()
            self.attempted += 1
            if await link.lock(GROUP, client, self.topic, queue_id):
                self.acknowledged.add(f"{queue_id} for {client}")
                other = self._history.grant(
                    queue_id, client, asked_at=asked_at, now=time.monotonic()
                )
                if other is not None:
                    self.place.complain(f"queue {queue_id} has two holders: {other} and {client}")
            await self.rest(_PAUSE_SECONDS)
            if self.rng.random() < _UNLOCK_SHARE:
                self._history.release(queue_id, client)
                await link.unlock(GROUP, client, self.topic, queue_id)
