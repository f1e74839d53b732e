"""Record batches of pulled records: joined, cut to their range, limited in size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketpost.client.consumer.fetch import unwrap_batch
from rocketpost.codec.record import decode_record, encode_record
from rocketpost.errors import CorruptRecord, RemoteProtocolError
from rocketpost.model.sysflag import INNER_BATCH, NEED_UNWRAP
from rocketpost.spark.records.chunk import Chunk, find_records
from rocketpost.spark.records.columns import Column
from rocketpost.spark.records.decode import decode
from rocketpost.spark.records.fields import Ints, read_numbers
from rocketpost.spark.source.plan import Range

BATCH_BYTES: Final = 4 * 1024 * 1024
BATCH_ROWS: Final = 16_384
_WRAPPED: Final = INNER_BATCH | NEED_UNWRAP
_TAGS: Final = (Column("tags", pa.string(), "string", nullable=True),)


def decode_batches(
    pulled: Iterable[bytes],
    wanted: Range,
    columns: tuple[Column, ...],
    *,
    tags: frozenset[str],
    decompressed: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one range.

    Args:
        pulled: Records of the queue, in order; some may be repeated, or outside the range.
        wanted: The range.
        columns: The columns to return.
        tags: The tags to keep, because brokers compare only hashes; empty for all.
        decompressed: Whether bodies are decompressed.

    Raises:
        RemoteProtocolError: A record cannot be read.
    """
    try:
        yield from _decode_batches(pulled, wanted, columns, tags=tags, decompressed=decompressed)
    except CorruptRecord as error:
        raise RemoteProtocolError(f"{wanted.queue}: {error}") from error


def _decode_batches(
    pulled: Iterable[bytes],
    wanted: Range,
    columns: tuple[Column, ...],
    *,
    tags: frozenset[str],
    decompressed: bool,
) -> Iterator[pa.RecordBatch]:
    seen = wanted.start - 1
    for data in _join_small(pulled):
        starts = _find_starts(data, wanted)
        if (read_numbers(data, starts + 36, 4) & _WRAPPED == _WRAPPED).any():
            data = _unwrap_batches(data, starts, wanted)
            starts = _find_starts(data, wanted)
        offsets = read_numbers(data, starts + 20, 8)
        # Answers overlap if a pull returns more than was requested.
        before = np.maximum.accumulate(np.concatenate(([seen], offsets)))
        starts = starts[(offsets > before[:-1]) & (offsets < wanted.end)]
        seen = before[-1]
        broker = wanted.queue.broker
        if tags:
            found = decode(Chunk(data, starts), _TAGS, broker_name=broker).column(0)
            matches = pc.is_in(found, pa.array(sorted(tags), pa.string()))
            starts = starts[np.asarray(matches)]
        for at in range(0, len(starts), BATCH_ROWS):
            chunk = Chunk(data, starts[at : at + BATCH_ROWS])
            yield decode(chunk, columns, broker_name=broker, decompressed=decompressed)


def _join_small(pulled: Iterable[bytes]) -> Iterator[bytes]:
    """Join small answers, because Spark's cost of a batch does not depend on its size."""
    parts: list[bytes] = []
    size = 0
    for data in pulled:
        if not data:
            continue
        if parts and size + len(data) > BATCH_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
        parts.append(data)
        size += len(data)
    if parts:
        yield b"".join(parts)


def _find_starts(data: bytes, wanted: Range) -> Ints:
    starts, end = find_records(data)
    if end < len(data):
        after = (
            decode_record(data, int(starts[-1])).queue_offset if len(starts) else wanted.start - 1
        )
        raise RemoteProtocolError(
            f"the record after offset {after} of {wanted.queue} is unreadable"
        )
    return starts


def _unwrap_batches(data: bytes, starts: Ints, wanted: Range) -> bytes:
    """Return a record for every message of batches that are stored as one record."""
    parts: list[bytes | memoryview] = []
    for start in starts.tolist():
        for record in unwrap_batch(decode_record(data, start), first=wanted.start):
            parts += encode_record(record)
    return b"".join(parts)
