"""Batches: which messages may travel together, how many fit one request, what each came to.

Messages of a batch agree in topic, sharding key and ``wait_store``, and none is delayed. A request
holds at most ``bytes_max`` and ``count_max`` of them: brokers answer with an id for each, and serve
nobody else while they store them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rocketpost.client.message import Message, SendResult, check_message
from rocketpost.client.message_id import unique_id
from rocketpost.codec.batch import ENTRY_BYTES_MIN, BatchItem
from rocketpost.errors import MessageRefused
from rocketpost.model.names import RETRY_PREFIX


class Packed(NamedTuple):
    """The messages of one request."""

    messages: list[Message]
    ids: list[str]
    items: list[BatchItem]


def check_batch(messages: Sequence[Message]) -> None:
    """Check that messages may travel together.

    Raises:
        MessageRefused: They may not; the text says why.
    """
    first = messages[0]
    if first.topic.startswith(RETRY_PREFIX):
        raise MessageRefused("a batch cannot go to a retry topic")
    for message in messages:
        if message.topic != first.topic or message.wait_store != first.wait_store:
            raise MessageRefused("messages of a batch must agree in topic and wait_store")
        if message.sharding_key != first.sharding_key:
            raise MessageRefused("messages of a batch must agree in their sharding key")
        if message.is_delayed:
            raise MessageRefused("a delayed message cannot be in a batch")


def pack(messages: Sequence[Message], *, bytes_max: int, count_max: int) -> list[Packed]:
    """Return the messages in as few requests as they need, in their order.

    Raises:
        MessageRefused: A message breaks a rule, or does not fit a request at all.
    """
    packs: list[Packed] = []
    size = bytes_max + 1
    for message in messages:
        check_message(message, body_bytes_max=bytes_max)
        message_id = unique_id()
        properties = message.property_text(message_id).encode("utf-8", "replace")
        item_bytes = ENTRY_BYTES_MIN + len(message.body) + len(properties)
        if item_bytes > bytes_max:
            raise MessageRefused(f"{message!r} does not fit a batch; send it alone")
        if size + item_bytes > bytes_max or len(packs[-1].items) == count_max:
            packs.append(Packed([], [], []))
            size = 0
        last = packs[-1]
        last.messages.append(message)
        last.ids.append(message_id)
        last.items.append(BatchItem(message.flag, message.body, properties))
        size += item_bytes
    return packs


def split_result(result: SendResult) -> list[SendResult]:
    """Return what a batch came to, message by message."""
    ids = result.message_id.split(",")
    offset_ids = result.offset_id.split(",")
    if len(offset_ids) != len(ids):  # a topic that keeps a batch in one record
        offset_ids = [result.offset_id] * len(ids)
    return [
        result._replace(message_id=one, offset_id=other, queue_offset=result.queue_offset + at)
        for at, (one, other) in enumerate(zip(ids, offset_ids, strict=True))
    ]
