"""Messages as clients receive them."""

from __future__ import annotations

import hashlib
import time
from typing import Any, Final

from rocketpost.client.message import ReceivedMessage
from rocketpost.model import properties as names
from rocketpost.proxy.message_types import type_of
from rocketpost.proxy.outgoing import BORN_HOST, TRACE_CONTEXT
from rocketpost.proxy.validation import RESERVED
from rocketpost.proxy.wire.enums import DigestType, Encoding
from rocketpost.proxy.wire.messages import Message, set_ms
from rocketpost.transport.host import address_text

_DLQ_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
_DLQ_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"


def delivered_message(received: ReceivedMessage, topic: Any, handle: str | None = None) -> Any:
    """Return a message in the form of the protocol.

    The body is decompressed: clients differ in the compressions that they know.

    Args:
        received: The message.
        topic: The topic as the client named it, also if the message is from a retry topic: clients
            acknowledge messages by the topic in them.
        handle: The receipt handle, if it was popped.
    """
    record, properties, body = received.record, received.properties, received.body
    message = Message(body=body)
    message.topic.CopyFrom(topic)
    user = message.user_properties
    for name, value in properties.items():
        if name not in RESERVED:
            user[name] = value
    system = message.system_properties
    _fill_from_properties(system, properties)
    system.message_id = received.message_id
    system.body_digest.type = DigestType.MD5
    # Clients compare text: the digits must be capital letters.
    digest = hashlib.md5(body, usedforsecurity=False).hexdigest()
    system.body_digest.checksum = digest.upper()
    system.body_encoding = Encoding.IDENTITY
    system.message_type = type_of(properties)
    set_ms(system.born_timestamp, record.born_ms)
    if not system.born_host:
        system.born_host = address_text(record.born_host)
    set_ms(system.store_timestamp, record.store_ms)
    system.store_host = address_text(record.store_host)
    system.queue_id = record.queue_id
    system.queue_offset = record.queue_offset
    system.delivery_attempt = received.reconsume_times + 1
    if handle is not None:
        system.receipt_handle = handle
    return message


def _fill_from_properties(system: Any, properties: dict[str, str]) -> None:
    tag = properties.get(names.TAGS)
    if tag:
        system.tag = tag
    system.keys.extend(names.split_keys(properties.get(names.KEYS, "")))
    system.born_host = properties.get(BORN_HOST, "")
    due = properties.get(names.TIMER_DELIVER_MS, "")
    delay = properties.get(names.TIMER_DELAY_SEC, "")
    if _is_number(due):
        set_ms(system.delivery_timestamp, int(due))
    elif _is_number(delay):
        set_ms(system.delivery_timestamp, time.time_ns() // 1_000_000 + int(delay) * 1000)
    if names.SHARDING_KEY in properties:
        system.message_group = properties[names.SHARDING_KEY]
    if TRACE_CONTEXT in properties:
        system.trace_context = properties[TRACE_CONTEXT]
    priority = properties.get(names.PRIORITY, "")
    if _is_number(priority) and int(priority) < 2**31:
        system.priority = int(priority)
    if _DLQ_TOPIC in properties and _DLQ_MESSAGE_ID in properties:
        system.dead_letter_queue.topic = properties[_DLQ_TOPIC]
        system.dead_letter_queue.message_id = properties[_DLQ_MESSAGE_ID]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 15
