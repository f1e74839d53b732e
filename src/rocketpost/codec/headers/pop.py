"""Header fields of popping, and the texts inside them that name popped messages.

A *receipt* (``extraInfo``, the property POP_CK) is eight parts with single spaces between:

    checkpoint offset, pop time, invisible time, revive queue, retry, broker, queue, message offset

``retry`` says where the message lies: 0 its topic, 1 the retry topic ``%RETRY%group_topic``, 2 the
newer ``%RETRY%group+topic``. ``startOffsetInfo`` and ``msgOffsetInfo`` list, per queue of a
response, the checkpoint's offset and the offsets of its messages: ``0 1 100;1 0 7`` and
``0 1 100,101,102;1 0 7``. ``orderCountInfo`` says how often messages that are popped in order came
before: ``0 qo1%100 2;0 1 0``, each that did, and the least of a queue.
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
"""The revive queue that marks a receipt of popping in order."""

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
    """What comes with popped messages."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessage(msgspec.Struct, rename="camel", kw_only=True):
    """ACK_MESSAGE (200051); the topic is the one that the message lies in."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64


class ChangeInvisibleTime(AckMessage, kw_only=True):
    """CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    invisible_time: Int64


class ChangedInvisibleTime(msgspec.Struct, rename="camel", kw_only=True):
    """What the new receipt is made of."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class PeekMessage(msgspec.Struct, rename="camel", kw_only=True):
    """PEEK_MESSAGE (200052). RocketMQ's names no filter: every message counts."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32


class Notification(msgspec.Struct, rename="camel", kw_only=True):
    """NOTIFICATION (200054). RocketMQ's names no filter: every message counts."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64 = 0
    order: bool = False
    attempt_id: str | None = None


class NotificationResponse(msgspec.Struct, rename="camel", kw_only=True):
    """Whether a pop might find something."""

    has_msg: bool = False
    polling_full: bool = False


class PollingInfo(msgspec.Struct, rename="camel", kw_only=True):
    """POLLING_INFO (200055)."""

    consumer_group: str
    topic: str
    queue_id: Int32


class GetPopState(msgspec.Struct, rename="camel", kw_only=True):
    """GET_POP_STATE (29011): in whose hands a message is; the topic is the one that it lies in."""

    consumer_group: str
    topic: str
    queue_id: Int32
    offset: Int64


class PopState(msgspec.Struct, rename="camel", kw_only=True):
    """Until when a message is in somebody's hands, by the broker's clock; 0 if it is in none."""

    until_timestamp: Int64 = 0


class Receipt(NamedTuple):
    """What names one delivery of one message."""

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
        RemoteProtocolError: It is none.
    """
    parts = text.split(" ")
    numbers = parts[:5] + parts[6:]
    if len(parts) != _PARTS or not all(map(_is_number, numbers)):
        raise RemoteProtocolError(f"{text[:200]!r} is no receipt of a popped message")
    start, pop_ms, invisible_ms, revive, retry, queue_id, offset = map(int, numbers)
    return Receipt(start, pop_ms, invisible_ms, revive, retry, parts[5], queue_id, offset)


def start_offsets_text(parts: Iterable[tuple[int, int, int]]) -> str:
    """Return ``startOffsetInfo`` of (retry, queue, offset of the checkpoint)."""
    return ";".join(f"{retry} {queue_id} {start}" for retry, queue_id, start in parts)


def offsets_text(parts: Iterable[tuple[int, int, Sequence[int]]]) -> str:
    """Return ``msgOffsetInfo`` of (retry, queue, offsets of the messages)."""
    return ";".join(
        f"{retry} {queue_id} {','.join(map(str, offsets))}" for retry, queue_id, offsets in parts
    )


def parse_start_offsets(text: str) -> dict[tuple[int, int], int]:
    """Read ``startOffsetInfo``: (retry, queue) to the offset of the checkpoint.

    Raises:
        RemoteProtocolError: It is none.
    """
    found: dict[tuple[int, int], int] = {}
    for part in text.split(";") if text else ():
        numbers = part.split(" ")
        if len(numbers) != 3 or not all(map(_is_number, numbers)):
            raise RemoteProtocolError(f"{part[:200]!r} is no start offset")
        retry, queue_id, start = map(int, numbers)
        found[retry, queue_id] = start
    return found


def order_counts_text(
    parts: Iterable[tuple[int, int, Sequence[int], Mapping[int, int]]],
) -> str:
    """Return ``orderCountInfo`` of (retry, queue, offsets, how often each came before)."""
    texts = []
    for retry, queue_id, offsets, counts in parts:
        texts += [
            f"{retry} {_OFFSET_MARK}{queue_id}%{offset} {counts[offset]}"
            for offset in offsets
            if offset in counts
        ]
        # Older clients know one count for all messages of a queue.
        texts.append(f"{retry} {queue_id} {min(counts.get(offset, 0) for offset in offsets)}")
    return ";".join(texts)


def parse_order_counts(text: str) -> dict[tuple[int, int, int], int]:
    """Read ``orderCountInfo``: (retry, queue, offset) to how often the message came before.

    Raises:
        RemoteProtocolError: It is none.
    """
    found: dict[tuple[int, int, int], int] = {}
    for part in text.split(";") if text else ():
        match = _order_count(part)
        if match is None:
            raise RemoteProtocolError(f"{part[:200]!r} is no order count")
        retry, queue_id, offset, count = match.groups()
        if offset is not None:
            found[int(retry), int(queue_id), int(offset)] = int(count)
    return found


def pop_retry_topic(group: str, topic: str) -> str:
    """Return where messages of ``topic`` come again that ``group`` popped and did not finish."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def real_topic(retry: int, group: str, topic: str) -> str:
    """Return the topic that a message of ``topic`` lies in, as its receipt says."""
    if retry == IN_RETRY_TOPIC_V2:
        return f"{RETRY_PREFIX}{group}+{topic}"
    return pop_retry_topic(group, topic) if retry == IN_RETRY_TOPIC else topic
