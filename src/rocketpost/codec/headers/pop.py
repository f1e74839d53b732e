"""Header fields of popping, and the texts in them that identify popped messages.

A *receipt* (``extraInfo``, the property POP_CK) has eight parts separated by single spaces:

    checkpoint offset, pop time, invisible time, revive queue, retry, broker, queue, message offset

``retry`` says where the message is stored: 0 its topic, 1 the retry topic ``%RETRY%group_topic``, 2
the newer ``%RETRY%group+topic``. ``startOffsetInfo`` and ``msgOffsetInfo`` list, per queue of a
response, the checkpoint's offset and the offsets of its messages: ``0 1 100;1 0 7`` and
``0 1 100,101,102;1 0 7``. ``orderCountInfo`` gives the number of earlier deliveries of messages
that are popped in order, ``0 qo1%100 2;0 1 0``: one part per redelivered message, and the minimum
per queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from rocketpost.codec.numbers import Int32, Int64
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.names import RETRY_PREFIX

IN_TOPIC: Final = 0
IN_RETRY_TOPIC: Final = 1
IN_RETRY_TOPIC_V2: Final = 2
ORDER_QUEUE: Final = 999
"""The revive queue that marks the receipt of an orderly pop."""

_is_number = re.compile(r"-?[0-9]{1,18}").fullmatch
_order_count = re.compile(
    r"([0-9]{1,2}) (?:qo)?([0-9]{1,9})(?:%([0-9]{1,18}))? ([0-9]{1,9})"
).fullmatch
_OFFSET_MARK: Final = "qo"
_PARTS: Final = 8


class PopMessage(msgspec.Struct, rename="camel", kw_only=True):
    """POP_MESSAGE (200050)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64 = 0
    init_mode: Int32 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopResponse(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to POP_MESSAGE; the messages are in the body."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessage(msgspec.Struct, rename="camel", kw_only=True):
    """ACK_MESSAGE (200051); the topic is the one that stores the message."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64


class ChangeInvisibleTime(AckMessage, kw_only=True):
    """CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    invisible_time: Int64


class ChangeInvisibleTimeResponse(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to CHANGE_MESSAGE_INVISIBLETIME: the parts of the new receipt."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class PeekMessage(msgspec.Struct, rename="camel", kw_only=True):
    """PEEK_MESSAGE (200052). RocketMQ's has no filter: every message counts."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32


class Notification(msgspec.Struct, rename="camel", kw_only=True):
    """NOTIFICATION (200054). RocketMQ's has no filter: every message counts."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64 = 0
    order: bool = False
    attempt_id: str | None = None


class NotificationResponse(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to NOTIFICATION: whether a pop might find a message."""

    has_msg: bool = False
    polling_full: bool = False


class PollingInfo(msgspec.Struct, rename="camel", kw_only=True):
    """POLLING_INFO (200055)."""

    consumer_group: str
    topic: str
    queue_id: Int32


class GetPopState(msgspec.Struct, rename="camel", kw_only=True):
    """GET_POP_STATE (29011): until when a message is invisible, by the topic that stores it."""

    consumer_group: str
    topic: str
    queue_id: Int32
    offset: Int64


class PopState(msgspec.Struct, rename="camel", kw_only=True):
    """Time at which a popped message becomes visible again; 0 if it is visible."""

    until_timestamp: Int64 = 0


class Receipt(NamedTuple):
    """The handle of one delivery of one message."""

    start_offset: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    retry: int
    broker: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return " ".join(map(str, self))


def parse_receipt(text: str) -> Receipt:
    """Read a receipt.

    Raises:
        RemoteProtocolError: The text is malformed.
    """
    parts = text.split(" ")
    numbers = parts[:5] + parts[6:]
    if len(parts) != _PARTS or not all(map(_is_number, numbers)):
        raise RemoteProtocolError(f"{text[:200]!r} is not the receipt of a popped message")
    start, pop_ms, invisible_ms, revive, retry, queue_id, offset = map(int, numbers)
    return Receipt(start, pop_ms, invisible_ms, revive, retry, parts[5], queue_id, offset)


def start_offsets_text(parts: Iterable[tuple[int, int, int]]) -> str:
    """Return ``startOffsetInfo`` for (retry, queue, offset of the checkpoint)."""
    return ";".join(f"{retry} {queue_id} {start}" for retry, queue_id, start in parts)


def offsets_text(parts: Iterable[tuple[int, int, Sequence[int]]]) -> str:
    """Return ``msgOffsetInfo`` for (retry, queue, offsets of the messages)."""
    return ";".join(
        f"{retry} {queue_id} {','.join(map(str, offsets))}" for retry, queue_id, offsets in parts
    )


def parse_start_offsets(text: str) -> dict[tuple[int, int], int]:
    """Read ``startOffsetInfo``: the checkpoint's offset by (retry, queue).

    Raises:
        RemoteProtocolError: The text is malformed.
    """
    found: dict[tuple[int, int], int] = {}
    for part in text.split(";") if text else ():
        numbers = part.split(" ")
        if len(numbers) != 3 or not all(map(_is_number, numbers)):
            raise RemoteProtocolError(f"{part[:200]!r} is not a start offset")
        retry, queue_id, start = map(int, numbers)
        found[retry, queue_id] = start
    return found


def order_counts_text(
    parts: Iterable[tuple[int, int, Sequence[int], Mapping[int, int]]],
) -> str:
    """Return ``orderCountInfo`` for (retry, queue, offsets, earlier deliveries of each)."""
    texts = []
    for retry, queue_id, offsets, counts in parts:
        texts += [
            f"{retry} {_OFFSET_MARK}{queue_id}%{offset} {counts[offset]}"
            for offset in offsets
            if offset in counts
        ]
        # Older clients read one count for all messages of a queue.
        texts.append(f"{retry} {queue_id} {min(counts.get(offset, 0) for offset in offsets)}")
    return ";".join(texts)


def parse_order_counts(text: str) -> dict[tuple[int, int, int], int]:
    """Read ``orderCountInfo``: the number of earlier deliveries by (retry, queue, offset).

    Raises:
        RemoteProtocolError: The text is malformed.
    """
    found: dict[tuple[int, int, int], int] = {}
    for part in text.split(";") if text else ():
        match = _order_count(part)
        if match is None:
            raise RemoteProtocolError(f"{part[:200]!r} is not an order count")
        retry, queue_id, offset, count = match.groups()
        if offset is not None:
            found[int(retry), int(queue_id), int(offset)] = int(count)
    return found


def pop_retry_topic(group: str, topic: str) -> str:
    """Return the retry topic for messages of ``topic`` that ``group`` popped and did not ack."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def real_topic(retry: int, group: str, topic: str) -> str:
    """Return the topic that stores a message of ``topic``, by the ``retry`` of its receipt."""
    if retry == IN_RETRY_TOPIC_V2:
        return f"{RETRY_PREFIX}{group}+{topic}"
    return pop_retry_topic(group, topic) if retry == IN_RETRY_TOPIC else topic
