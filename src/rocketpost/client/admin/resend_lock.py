"""A lock on a dead-letter queue, held by its broker, so that one resend runs at a time.

The broker grants the lock for 60 s at a time, as it does to orderly consumers. It is renewed before
every message, so the lock of a killed call expires at most a minute after its last message, when
none of its sends can be in flight any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rocketpost.client.session import Session
from rocketpost.codec.bodies.client import LockRequest, LockResponse
from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.lenient_json import encode
from rocketpost.errors import ClientError, RocketpostError
from rocketpost.model.route import MessageQueue

logger = logging.getLogger(__name__)

LOCK_GROUP: Final = "TOOLS_DEAD_LETTERS"
WAIT_SECONDS: Final = 70.0
"""Longer than a broker keeps a lock without renewal."""
SETTLE_SECONDS: Final = 3.0
"""Time in which the last request of a killed process may still be stored."""
_AGAIN_SECONDS: Final = 1.0


class ResendLock:
    """The lock on one dead-letter queue. Belongs to the event loop.

    Leaving the context releases the lock, unless the outcome of a send is unknown: then the lock
    expires by itself, so that no other call searches for the copy before it can have arrived.
    """

    def __init__(self, session: Session, queue: MessageQueue) -> None:
        self._session = session
        self._queue = queue
        self._held = False
        self.in_doubt = False
        """Whether a send is in flight, or ended without an answer."""

    async def acquire(
        self, *, after: str | None = None, on_wait: Callable[[], None] = lambda: None
    ) -> None:
        """Wait until the lock is ours.

        Args:
            after: The client id of a holder that is known to be dead.
            on_wait: Called once if there is another holder.

        Raises:
            ClientError: Another holder does not release it.
        """
        if after is not None:
            await self._unlock(after)
            await asyncio.sleep(SETTLE_SECONDS)
        deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
        told = False
        while not await self._lock():
            if asyncio.get_running_loop().time() > deadline:
                raise ClientError(f"another call is resending the dead letters of {self._queue}")
            if not told:
                on_wait()
                told = True
            await asyncio.sleep(_AGAIN_SECONDS)
        self._held = True

    async def renew(self) -> None:
        """Ensure that the lock is ours now and for the next 60 s.

        Raises:
            ClientError: Another call holds it.
        """
        if not await self._lock():
            self._held = False
            raise ClientError(f"the lock on {self._queue} was lost to another call; try again")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._held or self.in_doubt:
            return
        try:
            await self._unlock(self._session.client_id)
        except RocketpostError as failure:
            logger.info("lock not released: queue=%s reason=%s", self._queue, failure)

    async def _lock(self) -> bool:
        response = await self._call(RequestCode.LOCK_BATCH_MQ, self._session.client_id)
        return self._queue in decode_body(response, LockResponse).lockOKMQSet

    async def _unlock(self, client_id: str) -> None:
        await self._call(RequestCode.UNLOCK_BATCH_MQ, client_id)

    async def _call(self, code: int, client_id: str) -> bytes:
        address = self._session.routes.master(self._queue.broker_name)
        body = encode(
            LockRequest(client_id=client_id, consumer_group=LOCK_GROUP, mq_set=[self._queue])
        )
        return (await self._session.call(address, code, body=body)).body
