"""Requests and replies: messages whose senders wait for a reply.

A request is an ordinary message with three properties: a correlation id, the client id of the
requester, and its timeout. Its consumer sends the reply to the reply topic of the cluster; a broker
to which the requester is connected delivers it on that connection.

    reply in time            returned
    reply late or unknown    accepted and logged; the replier gets a success
    requester gone           the replier gets an error from every broker that it tries
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import Final

from rocketpost.client.message import ReceivedMessage
from rocketpost.client.route_cache import PublishRoute
from rocketpost.client.session import Answer, Session
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.reply import PushReply
from rocketpost.codec.properties import decode_properties, encode_properties
from rocketpost.codec.record import Record, pack_host
from rocketpost.errors import ClientError, ConnectionLost, MessageRefused, RouteNotFound
from rocketpost.model import properties as names
from rocketpost.model.names import reply_topic
from rocketpost.model.route import MessageQueue
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

REQUESTS_MAX: Final = 65_536
"""Maximum of requests that wait for replies."""
_NO_HOST: Final = bytes(8)


class Requests:
    """Requests that wait for their replies. Belongs to the event loop."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}
        self._introduced: set[str] = set()
        session.on(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._receive_reply, takes=self._waits_for
        )
        session.on_lost(self._lost)

    def open(self) -> tuple[str, asyncio.Future[ReceivedMessage]]:
        """Return a new correlation id and the future of its reply.

        Raises:
            ClientError: Too many requests wait already.
        """
        if len(self._waiting) >= REQUESTS_MAX:
            raise ClientError(f"{REQUESTS_MAX} requests wait for their replies already")
        correlation_id = str(uuid.uuid4())
        reply = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        return correlation_id, reply

    def forget(self, correlation_id: str) -> None:
        """Stop waiting; a later reply is dropped."""
        self._waiting.pop(correlation_id, None)

    def close(self) -> None:
        """Fail every waiting request."""
        waiting, self._waiting = self._waiting, {}
        for reply in waiting.values():
            if not reply.done():
                reply.set_exception(ConnectionLost("the client was closed before a reply came"))

    async def introduce(self, route: PublishRoute) -> None:
        """Ensure that the brokers of a topic know us, since any of them may get the reply."""
        strangers = self._masters(route) - self._introduced
        if strangers:
            await asyncio.gather(*map(self._session.heartbeat_at, strangers))
            self._introduced |= strangers

    def _masters(self, route: PublishRoute) -> set[str]:
        masters: set[str] = set()
        for broker in {queue.broker_name for queue in route.queues}:
            try:
                masters.add(self._session.routes.master(broker))
            except RouteNotFound:
                logger.info("broker without a master: broker=%s", broker)
        return masters

    def _lost(self, address: str) -> None:
        if address in self._introduced:
            self._introduced.discard(address)
            if self._waiting:  # a reply may come through this broker at any moment
                work = self._session.heartbeat_at(address)
                self._session.tasks.start(work, name=f"reconnect to {address}")

    def _waits_for(self, command: Command) -> bool:
        message = _reply_message(command.read(PushReply), command.body)
        return message.properties.get(names.CORRELATION_ID, "") in self._waiting

    def _receive_reply(self, connection: Connection, command: Command) -> Answer:
        message = _reply_message(command.read(PushReply), command.body)
        correlation_id = message.properties.get(names.CORRELATION_ID, "")
        reply = self._waiting.pop(correlation_id, None)
        if reply is None or reply.done():
            logger.warning(
                "reply dropped: correlation_id=%s reason=nobody waits for it, broker=%s",
                correlation_id,
                connection.peer_text,
            )
        else:
            reply.set_result(message)
        return Answer()


def request_properties(correlation_id: str, client_id: str, seconds: float) -> str:
    """Return the properties that make a message a request."""
    return (
        f"{names.CORRELATION_ID}\x01{correlation_id}\x02"
        f"{names.REPLY_TO_CLIENT}\x01{client_id}\x02"
        f"{names.TTL}\x01{round(seconds * 1000)}\x02"
    )


def reply_properties(request: ReceivedMessage) -> str:
    """Return the properties that make a message the reply to ``request``.

    Raises:
        MessageRefused: Its sender expects no reply.
    """
    if not request.wants_reply:
        raise MessageRefused(f"{request!r} is not a request: its sender expects no reply")
    kept = (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TTL)
    properties = {name: request.properties[name] for name in kept if name in request.properties}
    return encode_properties({names.MESSAGE_TYPE: names.REPLY, **properties}).decode()


def topic_for_reply(request: ReceivedMessage) -> str:
    """Return the topic of the reply to ``request``.

    Raises:
        MessageRefused: The request does not say in which cluster it was stored.
    """
    cluster = request.properties.get(names.CLUSTER)
    if not cluster:
        raise MessageRefused(f"{request!r} does not say its cluster, so no reply can be sent")
    return reply_topic(cluster)


def queue_for_reply(request: ReceivedMessage, route: PublishRoute) -> MessageQueue | None:
    """Return a queue of the request's broker, to which the requester is connected."""
    broker = request.queue.broker_name
    return next((queue for queue in route.queues if queue.broker_name == broker), None)


def _reply_message(head: PushReply, body: bytes) -> ReceivedMessage:
    properties = decode_properties(head.properties.encode("utf-8", "replace"))
    properties[names.ARRIVE_TIME] = str(time.time_ns() // 1_000_000)
    record = Record(
        size=0,
        magic=0,
        body_crc=0,
        queue_id=head.queue_id,
        flag=head.flag,
        queue_offset=0,
        position=0,
        sys_flag=head.sys_flag,
        born_ms=head.born_timestamp,
        born_host_bytes=_pack_address(head.born_host),
        store_ms=head.store_timestamp,
        store_host_bytes=_pack_address(head.store_host),
        reconsume_times=head.reconsume_times,
        prepared_position=0,
        body=body,
        topic=head.topic,
        properties_bytes=encode_properties(properties),
    )
    return ReceivedMessage(record, MessageQueue("", head.queue_id, head.topic))


def _pack_address(host: str) -> bytes:
    address, _, port = host.lstrip("/").rpartition(":")
    try:
        return pack_host(address.strip("[]"), int(port))
    except ValueError:
        return _NO_HOST
