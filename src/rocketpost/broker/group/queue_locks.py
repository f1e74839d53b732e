"""Queue locks: the right of one client of an orderly group to consume a queue.

By default a lock expires a minute after its last renewal; then any member of the group may take it.
Locks are in memory only: after a restart the clients take them again within their next round.

In a group of brokers that elects its leader, every member knows which client holds which queue
(:meth:`QueueLocks.follow`), but not the renewals. So a new leader lets each holder keep its queues
for a whole period (:meth:`QueueLocks.hold_followed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from rocketpost.model.clock import Clock
from rocketpost.model.route import MessageQueue

LOCK_MS: Final = 60_000
LOCKS_MAX: Final = 500_000
"""Locks of all groups; beyond it new ones are refused."""


class Lock(NamedTuple):
    """The client that may consume a queue, and the end of that right."""

    client_id: str
    expires_ms: int


class HeldQueues(NamedTuple):
    """The queues that one client holds."""

    client: str
    queues: list[MessageQueue]


class QueueLocks:
    """The lock table of one broker. Owned by the event loop."""

    def __init__(self, *, clock: Clock, lock_ms: int = LOCK_MS) -> None:
        self._clock = clock
        self._lock_ms = lock_ms
        self._groups: dict[str, dict[MessageQueue, Lock]] = {}
        self._count = 0
        self.revision = 0
        """A number that grows whenever a queue gets another holder, or none."""
        self.changed: set[str] | None = None
        """Groups in which that happened, for a reader that clears the set; None without one."""
        self._followed: dict[str, dict[MessageQueue, str]] = {}

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> list[MessageQueue]:
        """Take or renew locks; return the queues that the client now holds."""
        now_ms = self._clock.now_ms()
        mine = Lock(client_id, now_ms + self._lock_ms)
        locks = self._groups.setdefault(group, {})
        held = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None:
                if self._count >= LOCKS_MAX:
                    continue
                self._count += 1
            if lock is None or lock.client_id == client_id or lock.expires_ms <= now_ms:
                locks[queue] = mine
                held.append(queue)
                if lock is None or lock.client_id != client_id:
                    self._note_change(group)
        if not locks:
            del self._groups[group]
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release the queues among ``queues`` that the client holds."""
        locks = self._groups.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
                self._count -= 1
                self._note_change(group)
        if not locks:
            self._groups.pop(group, None)

    def holder(self, group: str, queue: MessageQueue) -> Lock | None:
        """Return the lock on a queue; None if no client holds it."""
        lock = self._groups.get(group, {}).get(queue)
        return lock if lock is not None and lock.expires_ms > self._clock.now_ms() else None

    def holds_locks(self, group: str) -> bool:
        """Tell whether the group currently consumes in order."""
        locks = self._groups.get(group)
        if locks is None:
            return False
        now_ms = self._clock.now_ms()
        return any(lock.expires_ms > now_ms for lock in locks.values())

    def expire(self) -> None:
        """Remove expired locks."""
        now_ms = self._clock.now_ms()
        for group, locks in list(self._groups.items()):
            for queue in [queue for queue, lock in locks.items() if lock.expires_ms <= now_ms]:
                del locks[queue]
                self._count -= 1
                self._note_change(group)
            if not locks:
                del self._groups[group]

    # -- members of a group of brokers

    def holders(self, groups: Iterable[str] | None = None) -> dict[str, list[HeldQueues]]:
        """Return the holders of queues; an empty list for a group that holds none.

        Args:
            groups: The groups to return; None for all.
        """
        found: dict[str, list[HeldQueues]] = {}
        for group in list(self._groups) if groups is None else groups:
            clients: dict[str, list[MessageQueue]] = {}
            for queue, lock in self._groups.get(group, {}).items():
                clients.setdefault(lock.client_id, []).append(queue)
            found[group] = [HeldQueues(client, queues) for client, queues in clients.items()]
        return found

    def follow(self, holders: Mapping[str, Sequence[HeldQueues]], *, is_whole: bool) -> None:
        """Note the holders of queues at the leader, without effect until this broker leads.

        Args:
            holders: As :meth:`holders` returned them there.
            is_whole: Whether they are all of them.
        """
        if is_whole:
            self._followed.clear()
        for group, held in holders.items():
            self._followed.pop(group, None)
            if held:
                self._followed[group] = {
                    queue: each.client for each in held for queue in each.queues
                }

    def hold_followed(self) -> None:
        """Let the noted holders hold their queues for a whole period: this broker leads now."""
        expires_ms = self._clock.now_ms() + self._lock_ms
        self._groups = {
            group: {queue: Lock(client, expires_ms) for queue, client in held.items()}
            for group, held in self._followed.items()
        }
        self._count = sum(map(len, self._groups.values()))

    def _note_change(self, group: str) -> None:
        self.revision += 1
        if self.changed is not None:
            self.changed.add(group)
