"""Locks that are lost while the answer to their renewal is being processed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketpost.client.consumer.owned_queue import CacheBounds, OwnedQueue, QueueLock
from rocketpost.client.consumer.queue_locks import ConsumerLocks
from rocketpost.client.session import Session
from rocketpost.codec.bodies.client import LockResponse, decode_lock_request
from rocketpost.codec.lenient_json import encode
from rocketpost.model.route import MessageQueue

A = "a:1"


class Broker:
    """A session with one broker, which grants every lock."""

    client_id = "C"

    def __init__(self) -> None:
        self.routes = SimpleNamespace(master=lambda name: A, is_master=lambda name, at: True)
        self.lost: list[Callable[[str], None]] = []

    def on_lost(self, callback: Callable[[str], None]) -> None:
        self.lost.append(callback)

    async def call(self, address: str, code: int, *, body: bytes, timeout: float) -> Any:
        granted = list(decode_lock_request(body).mq_set)
        return SimpleNamespace(body=encode(LockResponse(granted)))

    def restart(self) -> None:
        for callback in self.lost:
            callback(A)


def queue(number: int) -> OwnedQueue:
    bounds = CacheBounds(1, 1, 1)
    owned = OwnedQueue(MessageQueue("a", number, "T"), lambda: bounds, lock=QueueLock())
    owned.start_at(0)
    return owned


@pytest.mark.parametrize("restarts_at", [0, 1, None])
async def test_a_lock_of_a_broker_that_was_lost_meanwhile_stays_lost(
    restarts_at: int | None,
) -> None:
    session, queues = Broker(), [queue(0), queue(1)]

    async def regained(owned: OwnedQueue) -> bool:
        """Ask for the group's offset, at the new connection if the broker has restarted."""
        if owned.queue.queue_id == restarts_at:
            session.restart()
        return True

    locks = ConsumerLocks(
        cast(Session, session),
        "G",
        renew_seconds=20,
        trust_seconds=30,
        queues=lambda: queues,
        regained=regained,
    )
    assert await locks.renew() == (restarts_at is None)
    held = [owned.lock is not None and owned.lock.held for owned in queues]
    assert held == [restarts_at is None] * 2
