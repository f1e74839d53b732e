"""SendMessage and RecallMessage."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any, Final

from rocketpost.client.route_cache import publish_queues
from rocketpost.codec.batch import BatchItem, encode_batch
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.message import SendMessageV2, SendResponse
from rocketpost.codec.headers.timer import RecallHeader, RecallResponse
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.recall_handle import decode_recall_handle
from rocketpost.codec.record import parse_message_id
from rocketpost.errors import LocalProtocolError, RemoteProtocolError, RouteNotFound
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.names import AUTO_CREATE_TOPIC
from rocketpost.model.route import MessageQueue, TopicRoute
from rocketpost.model.sysflag import TRANSACTION_PREPARED
from rocketpost.proxy.backend import Backend
from rocketpost.proxy.calls import Call
from rocketpost.proxy.clients import ClientTable, GrpcClient
from rocketpost.proxy.handles import TransactionId
from rocketpost.proxy.message_types import accepted_types, check_type, type_of
from rocketpost.proxy.outgoing import stored_body, stored_properties
from rocketpost.proxy.refusals import OK, Refusal, common_status, refusal_of, status
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.proxy.validation import check_message, topic_name
from rocketpost.proxy.wire.enums import Code, MessageType
from rocketpost.proxy.wire.messages import (
    RecallMessageResponse,
    SendMessageResponse,
    SendResultEntry,
    ms_of,
)
from rocketpost.transport.host import address_text

_STORED: Final = {
    int(ResponseCode.SUCCESS): Code.OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): Code.MASTER_PERSISTENCE_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): Code.SLAVE_PERSISTENCE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): Code.HA_NOT_AVAILABLE,
}
"""Answers of brokers that have stored the message, more or less safely."""
_ACCEPTED: Final = frozenset(_STORED)
_JUMP: Final = 2862933555777941757
_MASK: Final = 2**64 - 1


class SendMethods:
    """Serves producers. Belongs to the event loop."""

    def __init__(self, backend: Backend, clients: ClientTable, config: ProxyConfig) -> None:
        self._backend = backend
        self._clients = clients
        self._config = config
        self._turn = random.randrange(2**16)
        self._queues: dict[str, tuple[TopicRoute, list[MessageQueue]]] = {}

    async def send(self, call: Call, request: Any) -> Any:
        """Store messages of one topic; the answer has an entry for each."""
        messages = request.messages
        if not messages:
            raise Refusal(Code.MESSAGE_CORRUPTED, "the call has no message")
        topic = topic_name(messages[0].topic)
        if any(message.topic != messages[0].topic for message in messages):
            raise Refusal(Code.MESSAGE_CORRUPTED, "the messages of one call must have one topic")
        config = await self._backend.topic(topic)
        properties = []
        now_ms = time.time_ns() // 1_000_000
        peer = address_text(call.client.identity.address)
        for message in messages:
            check_message(message, self._config)
            stored = stored_properties(
                message, topic, peer=peer, now_ms=now_ms, config=self._config
            )
            if self._config.checks_types:
                check_type(topic, config, stored)
            properties.append(stored)
        if call.client.note_topic(topic) and MessageType.TRANSACTION in accepted_types(config):
            await self._clients.renew(call.client)
        queues = await self._writable(topic)
        if len(messages) > 1 and _is_plain(messages, properties):
            return await self._send_batch(call, queues, messages, properties)
        if len(messages) == 1:
            entry = await self._send_one(call.client, queues, messages[0], properties[0])
            return SendMessageResponse(status=entry.status, entries=(entry,))
        response = SendMessageResponse()
        for message, stored in zip(messages, properties, strict=True):
            try:
                entry = await self._send_one(call.client, queues, message, stored)
            except Exception as error:
                refused = refusal_of(error, "SendMessage")
                entry = SendResultEntry(
                    status=status(refused.code, refused.text),
                    message_id=message.system_properties.message_id,
                )
            response.entries.append(entry)
        codes = {entry.status.code for entry in response.entries}
        response.status.CopyFrom(common_status(codes))
        return response

    async def recall(self, call: Call, request: Any) -> Any:
        """Cancel a message that waits for its delivery time."""
        topic = topic_name(request.topic)
        config = await self._backend.topic(topic)
        if config is None:
            raise Refusal(Code.TOPIC_NOT_FOUND, f"the topic {topic} does not exist")
        if self._config.checks_types and MessageType.DELAY not in accepted_types(config):
            raise Refusal(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"the topic {topic} accepts no delayed messages, so none can be recalled",
            )
        try:
            handle = decode_recall_handle(request.recall_handle)
        except RemoteProtocolError as error:
            raise Refusal(Code.INTERNAL_SERVER_ERROR, str(error)) from None
        header = RecallHeader(
            topic=topic, recall_handle=request.recall_handle, producer_group=topic
        )
        answer = await call.client.link.call(handle.broker_name, RequestCode.RECALL_MESSAGE, header)
        recalled = answer.read(RecallResponse)
        return RecallMessageResponse(status=status(Code.OK), message_id=recalled.msg_id)

    async def _send_one(
        self,
        client: GrpcClient,
        queues: Sequence[MessageQueue],
        message: Any,
        properties: dict[str, str],
    ) -> Any:
        system = message.system_properties
        queue = self._choose(queues, system.message_group)
        is_half = system.message_type == MessageType.TRANSACTION
        header = self._header(queue, message, TRANSACTION_PREPARED if is_half else 0)
        header.properties = _encode(properties).decode()
        answer = await client.link.call(
            queue.broker_name,
            RequestCode.SEND_MESSAGE_V2,
            header,
            body=stored_body(message, self._config),
            accept=_ACCEPTED,
        )
        return _entry(answer, queue, message)

    async def _send_batch(
        self,
        call: Call,
        queues: Sequence[MessageQueue],
        messages: Sequence[Any],
        properties: Sequence[dict[str, str]],
    ) -> Any:
        """Store plain messages in one queue by one request."""
        first = messages[0]
        queue = self._choose(queues, first.system_properties.message_group)
        items = [
            BatchItem(0, stored_body(message, self._config), _encode(stored))
            for message, stored in zip(messages, properties, strict=True)
        ]
        header = self._header(queue, first, 0)
        header.batch = True
        answer = await call.client.link.call(
            queue.broker_name,
            RequestCode.SEND_BATCH_MESSAGE,
            header,
            body=encode_batch(items),
            accept=_ACCEPTED,
        )
        stored = answer.read(SendResponse)
        code = _STORED[answer.code]
        response = SendMessageResponse(status=status(code, answer.remark or ""))
        for number, message in enumerate(messages):
            message_id = message.system_properties.message_id
            response.entries.add(
                status=response.status,
                message_id=message_id,
                transaction_id=message_id,
                offset=stored.queue_offset + number,
            )
        return response

    def _header(self, queue: MessageQueue, message: Any, sys_flag: int) -> SendMessageV2:
        system = message.system_properties
        born_ms = ms_of(system.born_timestamp) if system.HasField("born_timestamp") else 0
        if not 0 < born_ms < 2**62:
            born_ms = time.time_ns() // 1_000_000
        return SendMessageV2(
            producer_group=queue.topic,
            topic=queue.topic,
            default_topic=AUTO_CREATE_TOPIC,
            queue_id=queue.queue_id,
            sys_flag=sys_flag,
            born_timestamp=born_ms,
            reconsume_times=max(system.delivery_attempt, 0),
            broker_name=queue.broker_name,
        )

    async def _writable(self, topic: str) -> list[MessageQueue]:
        try:
            route = await self._backend.route(topic)
        except RouteNotFound as error:
            raise Refusal(Code.TOPIC_NOT_FOUND, str(error)) from None
        known = self._queues.get(topic)
        if known is None or known[0] is not route:
            if len(self._queues) > 10_000:
                self._queues.clear()
            known = self._queues[topic] = route, publish_queues(topic, route)
        if not known[1]:
            raise Refusal(Code.FORBIDDEN, f"no queue of the topic {topic} is writable")
        return known[1]

    def _choose(self, queues: Sequence[MessageQueue], message_group: str) -> MessageQueue:
        """Return the queue of a message: always the same for one message group."""
        if message_group:
            return queues[jump_hash(string_hash(message_group), len(queues))]
        self._turn += 1
        return queues[self._turn % len(queues)]


def jump_hash(key: int, count: int) -> int:
    """Return one of ``count`` places for a key; few keys move when the count changes."""
    at, place = 0, -1
    key &= _MASK
    while at < count:
        place = at
        key = (key * _JUMP + 1) & _MASK
        at = int((place + 1) * (2**31 / ((key >> 33) + 1)))
    return place


def _is_plain(messages: Sequence[Any], properties: Sequence[dict[str, str]]) -> bool:
    """Tell whether messages may be stored by one request, in one queue."""
    first = messages[0].system_properties.message_group
    return all(
        type_of(stored) in (MessageType.NORMAL, MessageType.FIFO)
        and message.system_properties.message_group == first
        for message, stored in zip(messages, properties, strict=True)
    )


def _encode(properties: dict[str, str]) -> bytes:
    try:
        return encode_properties(properties)
    except LocalProtocolError as error:
        raise Refusal(Code.MESSAGE_PROPERTIES_TOO_LARGE, str(error)) from None


def _entry(answer: Command, queue: MessageQueue, message: Any) -> Any:
    stored = answer.read(SendResponse)
    system = message.system_properties
    entry = SendResultEntry(
        status=OK if answer.code == 0 else status(_STORED[answer.code], answer.remark or ""),
        message_id=system.message_id,
        transaction_id=stored.transaction_id or system.message_id,
        offset=stored.queue_offset,
        recall_handle=stored.recall_handle or "",
    )
    if system.message_type == MessageType.TRANSACTION:
        _, position = parse_message_id(stored.msg_id)
        half = TransactionId(queue.broker_name, stored.queue_offset, position, system.message_id)
        entry.transaction_id = str(half)
    return entry
