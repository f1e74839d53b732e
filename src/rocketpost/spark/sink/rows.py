"""Conversion of rows into numbered messages."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from rocketpost.client import Message, MessageQueue
from rocketpost.client.message import check_topic
from rocketpost.errors import MessageRefused
from rocketpost.spark.sink.options import COLUMNS, SinkOptions


class OutgoingMessage(NamedTuple):
    """A message with its queue and its number."""

    message: Message
    queue: MessageQueue | None
    producer_id: str | None
    sequence: int | None

    @property
    def may_share(self) -> bool:
        """Whether the message may share a request with others."""
        return self.message.sharding_key is None and not self.message.is_delayed

    def follows(self, other: OutgoingMessage) -> bool:
        """Return whether the message may follow ``other`` in the same request."""
        return (
            self.may_share
            and other.may_share
            and self.queue == other.queue
            and self.message.topic == other.message.topic
            and self.message.priority == other.message.priority
            and self.producer_id == other.producer_id
            and (self.sequence is None) == (other.sequence is None)
            and (self.sequence is None or self.sequence == (other.sequence or 0) + 1)
        )


class _Row(NamedTuple):
    """The values of the sink's columns, in their order."""

    body: bytes | None
    topic: str | None
    tags: str | None
    keys: str | None
    properties: list[tuple[str, str]] | None
    sharding_key: str | None
    broker_name: str | None
    queue_id: int | None
    flag: int | None
    delay_level: int | None
    deliver_time_ms: int | None
    priority: int | None
    producer_id: str | None
    sequence: int | None


class Rows:
    """Converts the rows of one task into messages.

    Args:
        options: The options of the sink.
        own_id: The producer id for rows without their own numbers; None for no numbers.
    """

    def __init__(self, options: SinkOptions, own_id: str | None) -> None:
        self._options = options
        self._own_id = own_id
        self._row = 0
        self.skipped = 0

    def messages(self, rows: pa.RecordBatch) -> Iterator[OutgoingMessage]:
        """Yield the messages of rows.

        Raises:
            MessageRefused: A row is not a valid message; the text has its number in the task.
        """
        options, own_id = self._options, self._own_id
        is_numbered = "sequence" in map(str.lower, rows.schema.names)
        for row in map(_Row, *_list_columns(rows)):
            number, self._row = self._row, self._row + 1
            try:
                message, queue = _make_message(row, options), _find_queue(row, options)
                producer_id, sequence = _read_number(row) if is_numbered else (own_id, number)
            except MessageRefused as error:
                if options.on_too_large == "skip" and _is_too_large(row, options):
                    self.skipped += 1
                    continue
                raise MessageRefused(f"row {number} of the task: {error}") from None
            yield OutgoingMessage(
                message, queue, producer_id, None if producer_id is None else sequence
            )


def _list_columns(rows: pa.RecordBatch) -> list[Iterable[Any]]:
    """Return the values of all columns of the sink; nulls for missing columns."""
    given = dict(zip(map(str.lower, rows.schema.names), rows.columns, strict=True))
    columns: list[Iterable[Any]] = []
    for name in COLUMNS:
        column = given.get(name.lower())
        if column is None:
            columns.append(itertools.repeat(None))
        else:
            columns.append((column.cast(pa.binary()) if name == "body" else column).to_pylist())
    return columns


def _make_message(row: _Row, options: SinkOptions) -> Message:
    """Return the message of a row.

    Raises:
        MessageRefused: The row is not a valid message.
    """
    body, topic = row.body, options.topic or row.topic
    if not body:
        raise MessageRefused(
            "its body is null" if body is None else "its body is empty, which brokers refuse"
        )
    if len(body) > options.message_bytes_max:
        raise MessageRefused(
            f"its body has {len(body)} bytes; at most {options.message_bytes_max} (maxMessageBytes)"
        )
    if not topic:
        raise MessageRefused("its topic is null or empty")
    check_topic(topic)
    message = Message(
        topic,
        body,
        tags=row.tags,
        keys=row.keys or "",
        properties=dict(row.properties) if row.properties else None,
        flag=row.flag or 0,
        sharding_key=row.sharding_key,
        delay_level=row.delay_level or 0,
        deliver_at_ms=row.deliver_time_ms,
        priority=row.priority,
    )
    if row.properties or row.keys:
        message.property_text("")  # raises if they are too long
    return message


def _find_queue(row: _Row, options: SinkOptions) -> MessageQueue | None:
    if row.queue_id is None and row.broker_name is None:
        return None
    if row.queue_id is None or row.broker_name is None:
        raise MessageRefused("only one of its brokerName and queueId is null")
    return MessageQueue(row.broker_name, row.queue_id, options.topic or row.topic or "")


def _read_number(row: _Row) -> tuple[str, int]:
    if row.producer_id is None or row.sequence is None:
        raise MessageRefused("its producerId or sequence is null")
    return row.producer_id, row.sequence


def _is_too_large(row: _Row, options: SinkOptions) -> bool:
    return row.body is not None and len(row.body) > options.message_bytes_max
