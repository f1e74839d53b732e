"""Checkpoints and acks as messages of the revive topic, in RocketMQ's form.

The revive topic is the log of popping: a checkpoint (tag ``ck``) is stored before its messages are
handed out, and an ack (``ack``, or ``bAck`` for several) before it is confirmed to the consumer.
Popping in order writes its own records (``order``), which RocketMQ skips: each holds the state of
a batch. All these records name this broker as sender; messages from any other sender are skipped.

A pop advances the group's offset, and its checkpoint says how far. A checkpoint that only changes
the invisible time of a message does not move it, and has ``ro`` = -1. Readers of RocketMQ set
``ro`` themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from rocketpost.broker.pop.batch import Batch, batch_of
from rocketpost.broker.pop.in_flight import Checkpoint, Key
from rocketpost.broker.pop.targets import Cursor
from rocketpost.codec.bodies.pop import (
    AckBody,
    CheckpointBody,
    decode_ack,
    decode_checkpoint,
    encode_ack,
    encode_checkpoint,
)
from rocketpost.codec.bodies.pop_order import (
    OrderRecord,
    decode_order_record,
    encode_order_record,
)
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import Record, host_bits
from rocketpost.errors import RemoteProtocolError
from rocketpost.kernel.hashing import string_hash
from rocketpost.model import properties as names
from rocketpost.store.draft import Draft
from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.store.queue.files import ENTRY, ENTRY_BYTES

logger = logging.getLogger(__name__)

CHECKPOINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
ORDER_TAG: Final = "order"
_EARLY_MS: Final = 1000
_NO_MOVE: Final = -1
_BITS: Final = 32
_READ_AT_ONCE: Final = 1024


class Store(Protocol):
    """The part of the store that reading the log uses."""

    def record_of(
        self, queue: ConsumeQueue, offset: int, position: int, size: int
    ) -> Record | None:
        """Return the record at a position."""
        ...


class CheckpointEntry(NamedTuple):
    """A checkpoint read from the log, and the group's offset after its pop, if the pop moved it."""

    checkpoint: Checkpoint
    next_offset: int | None


class BatchEntry(NamedTuple):
    """A batch handed out in order, read from the log, and the next offset of its group."""

    cursor: Cursor
    batch: Batch
    next_offset: int


class AckEntry(NamedTuple):
    """An ack read from the log."""

    key: Key
    offsets: list[int]


LogEntry = CheckpointEntry | AckEntry | BatchEntry


class PopLog:
    """Writes and reads the revive topic of one broker. Waits for nothing.

    Args:
        topic: The revive topic.
        broker_name: The broker name in checkpoints.
        store_host: The address of this broker, as sender of all records.
    """

    def __init__(self, *, topic: str, broker_name: str, store_host: bytes) -> None:
        self.topic = topic
        self._broker_name = broker_name
        self._store_host = store_host
        self._sys_flag = host_bits(0, store_host, store_host)

    def checkpoint_draft(self, checkpoint: Checkpoint, *, now_ms: int, moves_offset: bool) -> Draft:
        """Return the record of a checkpoint."""
        key = checkpoint.key
        offsets = sorted(checkpoint.left)
        body = CheckpointBody(
            bn=self._broker_name,
            c=key.group,
            d=[offset - key.start_offset for offset in offsets],
            it=checkpoint.invisible_ms,
            n=len(offsets),
            pt=key.pop_ms,
            q=key.queue_id,
            revive_time=checkpoint.due_ms,
            ro=checkpoint.revive_offset if moves_offset else _NO_MOVE,
            so=key.start_offset,
            t=key.topic,
        )
        unique = self._unique_key(key, key.start_offset, CHECKPOINT_TAG)
        due_ms = checkpoint.due_ms - _EARLY_MS
        return self._draft(
            checkpoint.revive_queue,
            CHECKPOINT_TAG,
            body=encode_checkpoint(body),
            unique=unique,
            due_ms=due_ms,
            now_ms=now_ms,
        )

    def ack_draft(self, checkpoint: Checkpoint, offsets: Sequence[int], *, now_ms: int) -> Draft:
        """Return the record that acknowledges messages of a checkpoint."""
        key = checkpoint.key
        is_one = len(offsets) == 1
        body = AckBody(
            ao=offsets[0],
            aol=[] if is_one else list(offsets),
            bn=self._broker_name,
            c=key.group,
            pt=key.pop_ms,
            q=key.queue_id,
            so=key.start_offset,
            t=key.topic,
        )
        return self._draft(
            checkpoint.revive_queue,
            ACK_TAG if is_one else BATCH_ACK_TAG,
            body=encode_ack(body),
            unique=self._unique_key(key, offsets[0], ACK_TAG),
            due_ms=checkpoint.due_ms,
            now_ms=now_ms,
        )

    def order_draft(self, cursor: Cursor, batch: Batch, revive_queue: int, now_ms: int) -> Draft:
        """Return the record of a batch's current state."""
        body = OrderRecord(
            bn=self._broker_name,
            c=cursor.group,
            info=batch.to_info(),
            n=batch.next_offset,
            q=cursor.queue_id,
            t=cursor.topic,
            x=sorted(batch.ahead),
        )
        key = Key(*cursor, batch.offsets[0], batch.pop_ms)
        return self._draft(
            revive_queue,
            ORDER_TAG,
            body=encode_order_record(body),
            unique=self._unique_key(key, batch.offsets[0], ORDER_TAG),
            due_ms=None,
            now_ms=now_ms,
        )

    def read(self, store: Store, queue: ConsumeQueue, start: int) -> Iterator[LogEntry]:
        """Yield the entries of a revive queue from an offset on, oldest first."""
        offset = max(start, int(queue.first))
        while offset < queue.end:
            data = queue.read(offset, min(_READ_AT_ONCE, queue.end - offset))
            if len(data) < ENTRY_BYTES:
                return
            for position, size, _ in ENTRY.iter_unpack(data):
                record = store.record_of(queue, offset, position, size)
                found = self._parse(record, queue.queue_id, offset) if record is not None else None
                if found is not None:
                    yield found
                offset += 1

    def _parse(self, record: Record, revive_queue: int, offset: int) -> LogEntry | None:
        if record.topic != self.topic or record.born_host_bytes != record.store_host_bytes:
            return None
        tag = record.properties.get(names.TAGS, "")
        try:
            if tag == CHECKPOINT_TAG:
                return _checkpoint_entry(decode_checkpoint(record.body), revive_queue, offset)
            if tag in (ACK_TAG, BATCH_ACK_TAG):
                body = decode_ack(record.body)
                return AckEntry(Key(body.t, body.c, body.q, body.so, body.pt), body.offsets)
            if tag == ORDER_TAG:
                return _batch_entry(decode_order_record(record.body), offset)
        except RemoteProtocolError as error:
            logger.warning(
                "revive record skipped: queue=%s offset=%s reason=%s",
                revive_queue, offset, error,
            )  # fmt: skip
        return None

    def _unique_key(self, key: Key, offset: int, tag: str) -> str:
        parts = (key.topic, key.queue_id, offset, key.group, key.pop_ms, self._broker_name, tag)
        return "@".join(map(str, parts))

    def _draft(
        self,
        revive_queue: int,
        tag: str,
        *,
        body: bytes,
        unique: str,
        due_ms: int | None,
        now_ms: int,
    ) -> Draft:
        properties = {names.TAGS: tag, names.UNIQUE_KEY: unique}
        if due_ms is not None:
            properties[names.TIMER_DELIVER_MS] = str(due_ms)
        return Draft(
            self.topic,
            revive_queue,
            0,
            self._sys_flag,
            now_ms,
            self._store_host,
            self._store_host,
            0,
            0,
            body,
            encode_properties(properties),
            string_hash(tag),
            (unique,),
        )


def _checkpoint_entry(
    body: CheckpointBody, revive_queue: int, revive_offset: int
) -> CheckpointEntry | None:
    differences = body.d or range(min(body.n, _BITS))
    offsets = [
        body.so + each
        for at, each in enumerate(differences)
        if not (at < _BITS and body.bm >> at & 1)
    ]
    if not offsets:
        return None
    checkpoint = Checkpoint(
        Key(body.t, body.c, body.q, body.so, body.pt),
        invisible_ms=body.it,
        offsets=offsets,
        revive_queue=revive_queue,
        revive_offset=revive_offset,
    )
    return CheckpointEntry(checkpoint, max(offsets) + 1 if body.ro != _NO_MOVE else None)


def _batch_entry(record: OrderRecord, revive_offset: int) -> BatchEntry | None:
    batch = batch_of(record.info)
    if batch is None:
        return None
    batch.ahead = set(record.x)
    batch.revive_offset = revive_offset
    return BatchEntry(Cursor(record.t, record.c, record.q), batch, record.n)
