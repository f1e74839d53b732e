"""Queue locks that most members of a group agree to (``lockInStrictMode``).

The master, or the slave that acts for it, locks queues at itself and asks the other members to lock
them as well. A client holds the queues that more than half of ``totalReplicas`` have locked for it.
So a slave that begins to act knows who holds which queue, and no two members let different clients
consume one. Fewer members than that lock nothing: orderly consumers wait then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from rocketpost.codec.bodies.client import LockRequest, LockResponse, decode_lock_request
from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.lenient_json import encode
from rocketpost.errors import RocketpostError
from rocketpost.model.route import MessageQueue
from rocketpost.server.handlers.client import LockHandlers
from rocketpost.server.handlers.replies import json_reply, read_body
from rocketpost.server.peers import Peers
from rocketpost.server.routes.body_access import LOCKS
from rocketpost.server.routes.route import NO_HEADER, Reply, Route, finish_in_turns, waiting
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

_ANSWER_SECONDS: Final = 1.0


class StrictLocks:
    """Serves locks of orderly groups for several members. Owned by the loop.

    Args:
        own: Serves the locks of this broker.
        others: Returns the addresses of the other members.
        replicas: Number of members that the group has when all are there.
        peers: Makes the connections.
    """

    def __init__(
        self,
        own: LockHandlers,
        *,
        others: Callable[[], Sequence[str]],
        replicas: int,
        peers: Peers | None = None,
    ) -> None:
        self._own = own
        self._others = others
        self._quorum = replicas // 2 + 1
        self._connector = (peers or Peers()).connector(connect_seconds=_ANSWER_SECONDS)

    def routes(self) -> Sequence[Route]:
        """Return the routes of locks."""
        return [
            waiting(RequestCode.LOCK_BATCH_MQ, NO_HEADER, LOCKS, self.lock),
            waiting(RequestCode.UNLOCK_BATCH_MQ, NO_HEADER, LOCKS, self.unlock),
        ]

    async def lock(self, connection: Connection, command: Command, header: None) -> Reply:
        """Lock queues for one client of a group; the answer lists those that it holds now."""
        request = read_body(command, decode_lock_request)
        reply = await finish_in_turns(self._own.lock(connection, command, header))
        if request.only_this_broker or self._quorum <= 1:
            return reply
        assert isinstance(reply.body, bytes)
        held = _queues_in(reply.body)
        answers = await self._ask(RequestCode.LOCK_BATCH_MQ, replace(request, mq_set=held))
        votes = Counter(queue for answer in answers for queue in set(answer))
        return json_reply(
            LockResponse([queue for queue in held if 1 + votes[queue] >= self._quorum])
        )

    async def unlock(self, connection: Connection, command: Command, header: None) -> Reply:
        """Unlock queues that the client holds."""
        request = read_body(command, decode_lock_request)
        reply = await finish_in_turns(self._own.unlock(connection, command, header))
        if not request.only_this_broker:
            await self._ask(RequestCode.UNLOCK_BATCH_MQ, request)
        return reply

    async def close(self) -> None:
        """Close the connections to other members."""
        await self._connector.close()

    async def _ask(self, code: RequestCode, request: LockRequest) -> list[list[MessageQueue]]:
        """Return the queues that each member that answers has locked."""
        if not request.mq_set:
            return []
        body = encode(replace(request, only_this_broker=True))
        asked = [self._ask_one(address, code, body) for address in self._others()]
        return await asyncio.gather(*asked)

    async def _ask_one(self, address: str, code: RequestCode, body: bytes) -> list[MessageQueue]:
        try:
            connection = await self._connector.connect(address)
            answer = await connection.request(code, body=body, timeout=_ANSWER_SECONDS)
            answer.raise_for_code()
            return _queues_in(answer.body)
        except RocketpostError as error:
            logger.info("no vote for locks: member=%s reason=%s", address, error)
            return []


def _queues_in(body: bytes | memoryview) -> list[MessageQueue]:
    return decode_body(body, LockResponse).lockOKMQSet if body else []
