"""Replies: sent to the client that made the request, and also stored if so configured.

    requester accepts it     success; the id is that of the stored copy, 0 without one
    requester not connected  SYSTEM_ERROR, the replier may try another broker
    requester disconnects, refuses, or is silent for 10 s: the same

The stored copy is a record for people. It is written whether or not the push succeeds, and a failed
write does not fail a reply that was delivered.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, cast

from rocketpost.broker.reply import AcceptedReply, ReplyService
from rocketpost.broker.send import SendHeader
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import ServerError
from rocketpost.codec.headers.message import SendMessage, SendMessageV2
from rocketpost.codec.record import message_id, unpack_host
from rocketpost.errors import ConnectionLost, RequestTimeout, StoreError
from rocketpost.server.context import LeaderContext
from rocketpost.server.feature import Feature
from rocketpost.server.routes.access import PUB, of_topic
from rocketpost.server.routes.pools import PoolKind
from rocketpost.server.routes.route import Reply, Route, waiting
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.writer.internal_sends import Stored
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Appended, Draft
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

PUSH_SECONDS: Final = 10.0
PUSHES_MAX: Final = 1024
"""Most unanswered replies that one requester may have."""
NOT_STORED: Final = "0"


class ReplyFeature(Feature):
    """Serves repliers. Owned by the loop."""

    def __init__(self, context: LeaderContext) -> None:
        self._store_host = context.store_host
        address, port = unpack_host(self._store_host)
        self._service = ReplyService(
            sends=context.sends,
            producers=context.membership,
            clock=context.clock,
            store_host=f"{address}:{port}",
        )
        self._put = context.writer.put
        self._stores = True
        self._region = context.broker_config.region

    def routes(self) -> Sequence[Route]:
        """Return the routes of both forms of a reply."""
        return [
            waiting(
                RequestCode.SEND_REPLY_MESSAGE,
                SendMessage,
                of_topic(PUB),
                self.reply,
                PoolKind.REPLIES,
            ),
            waiting(
                RequestCode.SEND_REPLY_MESSAGE_V2,
                SendMessageV2,
                of_topic(PUB),
                self.reply,
                PoolKind.REPLIES,
            ),
        ]

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Set whether replies are stored."""
        self._stores = broker.store_replies

    async def reply(self, connection: Connection, command: Command, header: SendHeader) -> Reply:
        """Send a reply to the requester, and store it."""
        accepted = self._service.accept(
            header,
            command.body,
            born_host=connection.peer_host,
            peer=connection.peer_text,
            client_version=command.version,
        )
        storing = self._store(accepted.draft)
        refusal = await _push(accepted, command.body)
        stored = await _outcome(storing)
        if refusal is not None:
            logger.warning(
                "reply not delivered: peer=%s requester=%s reason=%s",
                connection.peer_text,
                accepted.requester_id,
                refusal,
            )
            raise ServerError(refusal)
        return Reply(fields=self._fields(accepted.draft, stored))

    def _store(self, draft: Draft) -> Stored | None:
        if not self._stores:
            return None
        try:
            return self._put([draft])
        except StoreError as error:
            logger.warning("reply not stored: reason=%s", error)
            return None

    def _fields(self, draft: Draft, stored: Appended | None) -> dict[str, str]:
        offset_id = message_id(self._store_host, stored.position) if stored else NOT_STORED
        return {
            "msgId": offset_id,
            "queueId": str(draft.queue_id),
            "queueOffset": str(stored.queue_offset if stored else 0),
            "MSG_REGION": self._region,
        }


async def _push(accepted: AcceptedReply, body: bytes) -> str | None:
    """Send a reply to its requester; return the reason of a failure, or None."""
    who = f"the requester {accepted.requester_id}"
    if accepted.requester is None:
        return f"{who} is not connected to this broker"
    target = cast(Connection, accepted.requester.connection)
    if target.unanswered_count >= PUSHES_MAX:
        return f"{who} has not answered {PUSHES_MAX} replies yet"
    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    try:
        response = await target.request(
            code, fields=accepted.fields, body=body, timeout=PUSH_SECONDS
        )
    except RequestTimeout:
        return f"{who} did not answer in {PUSH_SECONDS:g} s"
    except ConnectionLost as error:
        return f"{who} went away: {error}"
    if response.code != ResponseCode.SUCCESS:
        return f"{who} refused the reply: code {response.code} {response.remark or ''}".rstrip()
    return None


async def _outcome(storing: Stored | None) -> Appended | None:
    if storing is None:
        return None
    try:
        return (await storing)[0]
    except StoreError as error:
        logger.warning("reply not stored: reason=%s", error)
        return None
