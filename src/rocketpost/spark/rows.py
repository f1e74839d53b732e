"""Rows to messages: what each column says, and the number of each row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rocketpost.client import Message, MessageQueue
from rocketpost.errors import MessageRefused
from rocketpost.spark.sink_options import COLUMNS, SinkOptions

_NAMES: Final = {name.lower(): name for name in COLUMNS}


class Outgoing(NamedTuple):
    """A message, and where and as what it goes."""

    message: Message
    queue: MessageQueue | None
    producer_id: str | None
    sequence: int | None

    @property
    def may_share(self) -> bool:
        """Whether it may go together with its neighbours."""
        return self.message.sharding_key is None and not self.message.is_delayed

    def follows(self, other: Outgoing) -> bool:
        """Whether it may be in one request with ``other``, right behind it."""
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


class Rows:
    """Makes messages of the rows of one task.

    Args:
        options: The sink's.
        own_id: The producer of rows that bring no numbers along; None if rows have no numbers.
    """

    def __init__(self, options: SinkOptions, own_id: str | None) -> None:
        self._options = options
        self._own_id = own_id
        self._row = 0
        self.skipped = 0

    def messages(self, rows: pa.RecordBatch) -> Iterator[Outgoing]:
        """Yield the messages of rows.

        Raises:
            MessageRefused: A row means none; its number in the task is named.
        """
        options = self._options
        names = [_NAMES[name.lower()] for name in rows.schema.names]
        columns = [column.to_pylist() for column in rows.columns]
        for values in zip(*columns, strict=True):
            row = dict(zip(names, values, strict=True))
            number, self._row = self._row, self._row + 1
            try:
                made = _made(row, options)
            except MessageRefused as error:
                if options.on_too_large == "skip" and _is_too_large(row, options):
                    self.skipped += 1
                    continue
                raise MessageRefused(f"row {number} of the task: {error}") from None
            if self._own_id is None or made.producer_id is not None:
                yield made
            else:
                yield made._replace(producer_id=self._own_id, sequence=number)


def _made(row: dict[str, Any], options: SinkOptions) -> Outgoing:
    """Return the message that a row means.

    Raises:
        MessageRefused: It means none.
    """
    body = row["body"]
    topic = options.topic or row.get("topic")
    if not topic or body is None:
        raise MessageRefused("it has no topic" if body is not None else "its body is null")
    if isinstance(body, str):
        body = body.encode()
    if len(body) > options.message_bytes_max:
        raise MessageRefused(
            f"its body has {len(body)} bytes; at most {options.message_bytes_max} (maxMessageBytes)"
        )
    message = Message(
        topic,
        body,
        tags=row.get("tags"),
        keys=row.get("keys") or "",
        properties=dict(row.get("properties") or ()),
        flag=row.get("flag") or 0,
        sharding_key=row.get("shardingKey"),
        delay_level=row.get("delayLevel") or 0,
        deliver_at_ms=row.get("deliverTimeMs"),
        priority=row.get("priority"),
    )
    queue = None
    if row.get("queueId") is not None and row.get("brokerName") is not None:
        queue = MessageQueue(row["brokerName"], row["queueId"], topic)
    producer_id, sequence = row.get("producerId"), row.get("sequence")
    if "sequence" in row and (producer_id is None or sequence is None):
        raise MessageRefused("its producerId or sequence is null")
    return Outgoing(message, queue, producer_id, sequence)


def _is_too_large(row: dict[str, Any], options: SinkOptions) -> bool:
    body = row["body"]
    if isinstance(body, str):
        body = body.encode()
    return body is not None and len(body) > options.message_bytes_max
