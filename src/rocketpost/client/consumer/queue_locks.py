"""Locks of the queues that are handled in order.

A broker grants each queue to one member of a group for 60 s at a time, in memory only. By default
we renew every 20 s and trust a lock for 30 s. A lost connection may mean that the broker restarted
and lost its locks: every lock of that broker counts as lost until it is granted again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from rocketpost.client.consumer.owned_queue import OwnedQueue
from rocketpost.client.session import Session
from rocketpost.codec.bodies.client import LockRequest, LockResponse
from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.lenient_json import encode
from rocketpost.errors import ConnectionLost, RocketpostError, ServiceNotAvailable
from rocketpost.model.route import MessageQueue

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 0.5
_LOCK_TIMEOUT: Final = 1.0

Regained = Callable[[OwnedQueue], Awaitable[bool]]
"""Called with a lock that was lost and is granted again; returns whether to continue."""


class ConsumerLocks:
    """The locks of one consumer. Belongs to the event loop.

    Args:
        session: The connections to brokers.
        group: The consumer group.
        renew_seconds: Interval of renewals.
        trust_seconds: Validity of a lock without renewal.
        queues: Lists the queues whose locks we hold.
        regained: Called before a lost lock counts as held again; returns whether it does.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        renew_seconds: float,
        trust_seconds: float,
        queues: Callable[[], list[OwnedQueue]],
        regained: Regained,
    ) -> None:
        self._session = session
        self._group = group
        self._renew_seconds = renew_seconds
        self._trust_seconds = trust_seconds
        self._queues = queues
        self._regained = regained
        self._wake = asyncio.Event()
        self._complained: set[str] = set()
        session.on_lost(self._broker_lost)

    async def acquire(self, owned: OwnedQueue) -> None:
        """Wait until the lock of a queue is ours, or the queue no longer is."""
        assert owned.lock is not None
        while not owned.dropped:
            since = time.monotonic()
            try:
                granted = await self._ask(owned.queue.broker_name, [owned.queue])
            except RocketpostError as error:
                logger.info("no lock: queue=%s reason=%s", owned.queue, error)
                granted = set()
            if owned.queue in granted:
                owned.lock.take(since + self._trust_seconds)
                return
            await owned.wait_until_gone(AGAIN_SECONDS)

    async def run(self) -> None:
        """Renew all locks periodically, until cancelled."""
        well = True
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._renew_seconds if well else AGAIN_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            well = await self.renew()

    async def renew(self) -> bool:
        """Renew all locks, one request per broker; return whether all are held."""
        brokers: dict[str, list[OwnedQueue]] = {}
        for owned in self._started_queues():
            brokers.setdefault(owned.queue.broker_name, []).append(owned)
        done = await asyncio.gather(*(self._renew(*item) for item in brokers.items()))
        return all(done)

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Release locks, so that others need not wait until they expire."""
        brokers: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            brokers.setdefault(queue.broker_name, []).append(queue)
        for name, mine in brokers.items():
            try:
                body = self._body(mine)
                address = self._session.routes.master(name)
                await self._session.call(address, RequestCode.UNLOCK_BATCH_MQ, body=body)
            except RocketpostError as error:
                logger.info("lock not released: broker=%s reason=%s", name, error)

    def _started_queues(self) -> list[OwnedQueue]:
        # A queue without a start offset is still waiting in acquire().
        return [owned for owned in self._queues() if owned.lock and owned.tracker is not None]

    async def _renew(self, broker_name: str, queues: list[OwnedQueue]) -> bool:
        since = time.monotonic()
        losses = {owned: owned.lock.losses for owned in queues if owned.lock is not None}
        try:
            granted = await self._ask(broker_name, [owned.queue for owned in queues])
        except RocketpostError as error:
            # The broker keeps locks for longer than we trust them, so nothing is lost yet.
            if broker_name not in self._complained:
                logger.warning("locks not renewed: broker=%s reason=%s", broker_name, error)
            self._complained.add(broker_name)
            return False
        self._complained.discard(broker_name)
        for owned in queues:
            assert owned.lock is not None
            if owned.queue not in granted:
                if owned.lock.held:
                    logger.warning("lock lost: queue=%s", owned.queue)
                owned.lock.lose()
                continue
            is_ours = owned.lock.held or await self._regained(owned)
            # If it was lost meanwhile, the broker may have restarted since it granted the lock.
            if is_ours and owned.lock.losses == losses[owned]:
                owned.lock.take(since + self._trust_seconds)
        return all(owned.lock is not None and owned.lock.held for owned in queues)

    async def _ask(self, broker_name: str, queues: list[MessageQueue]) -> set[MessageQueue]:
        """Lock queues at the master, or at the slave that acts for it.

        A broker that cannot be reached, or does not grant locks, may no longer be the one to ask:
        name servers are asked at once, and the request is made again if they show another one.
        """
        routes = self._session.routes
        address = routes.master(broker_name)
        try:
            return await self._ask_at(address, queues)
        except (ConnectionLost, ServiceNotAvailable):
            for topic in {queue.topic for queue in queues}:
                await routes.refresh(topic)
            other = routes.master(broker_name)
            if other == address:
                raise
        return await self._ask_at(other, queues)

    async def _ask_at(self, address: str, queues: list[MessageQueue]) -> set[MessageQueue]:
        response = await self._session.call(
            address, RequestCode.LOCK_BATCH_MQ, body=self._body(queues), timeout=_LOCK_TIMEOUT
        )
        return set(decode_body(response.body, LockResponse).lockOKMQSet)

    def _body(self, queues: list[MessageQueue]) -> bytes:
        return encode(
            LockRequest(
                client_id=self._session.client_id, consumer_group=self._group, mq_set=queues
            )
        )

    def _broker_lost(self, address: str) -> None:
        for owned in self._queues():
            at_risk = self._session.routes.is_master(owned.queue.broker_name, address)
            if owned.lock is not None and at_risk:
                owned.lock.lose()
        self._wake.set()
