"""Resets of consumer offsets, and the offsets that the members of a group report.

With ``useServerSideResetOffset`` the broker sets the offsets, and the next pull uses them. Without
it, the broker asks the members to set them. If no member is online then, the reset is refused, and
tools store the offsets themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, cast

from rocketpost.broker.group.membership import Client, Membership
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.group.reset import ResetService
from rocketpost.broker.steps import QUEUES_AT_A_STEP
from rocketpost.codec.bodies.offset import (
    decode_client_offsets,
    encode_member_offsets,
    encode_queue_offset_list,
    encode_queue_offsets,
)
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.faults import ConsumerNotOnline, ServerError
from rocketpost.codec.headers.offset import ConsumerStatus, ResetOffset
from rocketpost.errors import ClientError, ConnectionLost, RemoteProtocolError
from rocketpost.model.route import MessageQueue
from rocketpost.server.handlers.relay import RELAYS_MAX
from rocketpost.server.handlers.replies import json_reply
from rocketpost.server.routes.access import GET, UPDATE, of_group, of_topic
from rocketpost.server.routes.pools import PoolKind
from rocketpost.server.routes.route import Reply, Route, waiting
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

_LOGGED_MAX: Final = 64
"""Most queues of a reset that the log lists; for more it gives their number."""

_ASK_SECONDS: Final = 5.0
_VERSION_RESET: Final = 28  # 3.0.7: older clients know neither request.
_CPP: Final = "CPP"


class ResetHandlers:
    """Serves resets.

    Args:
        server_side: Returns whether the broker sets the offsets itself, by its settings.
        save: Returns once the offsets are on disk; no reset is acknowledged before.
        on_reset: Called with the topic and queue whose consumers get another offset.
    """

    def __init__(
        self,
        *,
        service: ResetService,
        offsets: OffsetTable,
        membership: Membership,
        broker_name: str,
        save: Callable[[], Awaitable[None]],
        server_side: Callable[[], bool] = lambda: True,
        on_reset: Callable[[str, int], None] = lambda topic, queue_id: None,
    ) -> None:
        self._service = service
        self._offsets = offsets
        self._membership = membership
        self._broker_name = broker_name
        self._save = save
        self._server_side = server_side
        self._on_reset = on_reset

    def routes(self) -> Sequence[Route]:
        """Return the routes of this family."""
        return [
            waiting(
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                ResetOffset,
                of_topic(UPDATE) + of_group(UPDATE),
                self.reset,
            ),
            waiting(
                RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
                ConsumerStatus,
                of_topic(GET) + of_group(GET),
                self.status,
                PoolKind.CLIENTS,
            ),
        ]

    async def reset(self, connection: Connection, command: Command, request: ResetOffset) -> Reply:
        """Set a group's offsets, by time or by offset; answer once they are on disk."""
        if self._server_side():
            offsets = await self._reset_here(request)
        else:
            offsets = self._tell_members(request)
        logger.info(
            "offsets reset: topic=%s group=%s peer=%s to=%s",
            request.topic,
            request.group,
            connection.peer_text,
            offsets if len(offsets) <= _LOGGED_MAX else f"{len(offsets)} queues",
        )
        await self._save()
        return json_reply(encode_queue_offsets(self._named(request.topic, offsets)))

    async def status(
        self, connection: Connection, command: Command, asked: ConsumerStatus
    ) -> Reply:
        """Collect the offsets that the members of a group hold in memory."""
        members = [
            client
            for client in self._members(asked.group)
            if asked.client_addr in ("", client.client_id)
        ]
        if not members:
            who = f"consumer {asked.client_addr}" if asked.client_addr else "consumer"
            raise ServerError(f"no {who} of the group {asked.group} is online")
        fields = to_fields(asked)
        answers = await asyncio.gather(*(_ask(client, fields) for client in members))
        told = {
            client.client_id: offsets
            for client, offsets in zip(members, answers, strict=True)
            if offsets is not None
        }
        return json_reply(encode_member_offsets(told))

    async def _reset_here(self, request: ResetOffset) -> dict[int, int]:
        plan = self._service.plan(request, by_members=False)
        for number, (queue_id, offset) in enumerate(plan.moved.items(), 1):
            if number % QUEUES_AT_A_STEP == 0:
                await asyncio.sleep(0)  # serves other requests in between
            self._offsets.reset(request.topic, request.group, queue_id, offset)
            self._on_reset(request.topic, queue_id)
        return plan.stand

    def _tell_members(self, request: ResetOffset) -> dict[int, int]:
        stand, moved = self._service.plan(request, by_members=True)
        members = self._members(request.group)
        if not members:
            raise ConsumerNotOnline(f"no consumer of the group {request.group} is online")
        if not moved:
            return stand
        named, fields = self._named(request.topic, moved), to_fields(request)
        for client in members:
            encode = encode_queue_offset_list if client.language == _CPP else encode_queue_offsets
            try:
                cast(Connection, client.connection).send_oneway(
                    RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields=fields, body=encode(named)
                )
            except ConnectionLost as error:
                logger.warning(
                    "member not told of a reset: client=%s reason=%s", client.client_id, error
                )
        return stand

    def _members(self, group: str) -> list[Client]:
        members = self._membership.consumer_group(group)
        clients = [] if members is None else [each.client for each in members.members.values()]
        for client in clients:
            if client.version < _VERSION_RESET:
                raise ServerError(f"the consumer {client.client_id} is too old to be asked")
        return clients

    def _named(self, topic: str, offsets: Mapping[int, int]) -> dict[MessageQueue, int]:
        return {
            MessageQueue(self._broker_name, queue_id, topic): offset
            for queue_id, offset in offsets.items()
        }


async def _ask(client: Client, fields: dict[str, str]) -> dict[MessageQueue, int] | None:
    target = cast(Connection, client.connection)
    if target.unanswered_count >= RELAYS_MAX:
        logger.warning(
            "member not asked: client=%s reason=it has not answered %s requests yet",
            client.client_id,
            RELAYS_MAX,
        )
        return None
    try:
        response = await target.request(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
            fields=fields,
            body=b"",
            timeout=_ASK_SECONDS,
        )
        if response.code == ResponseCode.SUCCESS:
            return decode_client_offsets(response.body)
        reason: object = response.remark
    except (ClientError, RemoteProtocolError) as error:
        reason = error
    logger.warning("member reported no offsets: client=%s reason=%s", client.client_id, reason)
    return None
