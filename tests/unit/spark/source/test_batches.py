"""Pulled records become batches: cut to their range, filtered by tag, bounded in rows."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from rocketpost.codec.batch import BatchItem, encode_batch
from rocketpost.codec.record import Record
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.sysflag import COMPRESSED, COMPRESSION_ZLIB, INNER_BATCH, NEED_UNWRAP
from rocketpost.spark.records.columns import select_columns
from rocketpost.spark.source import batches as module
from rocketpost.spark.source.batches import decode_batches
from rocketpost.spark.source.plan import QueueKey, Range

from ..made_records import packed, record

QUEUE = QueueKey("T", "broker-a", 0)
COLUMNS = select_columns([("queueOffset", "bigint"), ("body", "binary"), ("brokerName", "string")])


def numbered(start: int, end: int, tag: str = "A") -> list[Record]:
    text = f"TAGS\x01{tag}\x02".encode()
    return [
        record(queue_offset=at, body=b"%d" % at, properties_bytes=text) for at in range(start, end)
    ]


def read(
    pulled: Sequence[Sequence[Record]], start: int, end: int, tags: frozenset[str] = frozenset()
) -> list[dict[str, Any]]:
    data = [b"".join(map(packed, some)) for some in pulled]
    wanted = Range(QUEUE, start, end)
    found = decode_batches(data, wanted, COLUMNS, tags=tags, decompressed=True)
    return [row for batch in found for row in batch.to_pylist()]


def test_answers_are_joined_and_cut_to_the_range() -> None:
    rows = read([numbered(0, 3), [], numbered(3, 9)], 2, 7)
    assert [row["queueOffset"] for row in rows] == [2, 3, 4, 5, 6]
    assert {row["brokerName"] for row in rows} == {"broker-a"}


def test_messages_in_overlapping_answers_are_returned_once() -> None:
    rows = read([numbered(0, 6), numbered(2, 8), numbered(4, 5), numbered(7, 9)], 1, 9)
    assert [row["queueOffset"] for row in rows] == list(range(1, 9))


def test_messages_repeated_in_another_batch_are_returned_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 1)
    rows = read([numbered(0, 6), numbered(2, 8)], 0, 8)
    assert [row["queueOffset"] for row in rows] == list(range(8))


def test_tags_are_compared_themselves_not_by_their_hash() -> None:
    rows = read([numbered(0, 2, "Aa") + numbered(2, 4, "BB")], 0, 9, frozenset({"BB"}))
    assert [row["queueOffset"] for row in rows] == [2, 3]


def test_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_ROWS", 4)
    data = [b"".join(map(packed, numbered(0, 10)))]
    found = decode_batches(data, Range(QUEUE, 0, 10), COLUMNS, tags=frozenset(), decompressed=True)
    assert [batch.num_rows for batch in found] == [4, 4, 2]


def test_a_batch_that_is_stored_as_one_record_is_many_messages() -> None:
    body = encode_batch(
        [BatchItem(0, b"one", b""), BatchItem(0, b"two", b""), BatchItem(0, b"3", b"")]
    )
    wrapped = record(queue_offset=5, body=body, sys_flag=INNER_BATCH | NEED_UNWRAP)
    rows = read([[wrapped, *numbered(8, 9)]], 6, 20)
    assert [(row["queueOffset"], row["body"]) for row in rows] == [
        (6, b"two"),
        (7, b"3"),
        (8, b"8"),
    ]


def test_a_batch_stored_as_one_record_may_be_compressed() -> None:
    body = zlib.compress(encode_batch([BatchItem(0, b"one", b""), BatchItem(0, b"two", b"")]))
    flags = INNER_BATCH | NEED_UNWRAP | COMPRESSED | COMPRESSION_ZLIB
    rows = read([[record(queue_offset=5, body=body, sys_flag=flags)]], 5, 20)
    assert [(row["queueOffset"], row["body"]) for row in rows] == [(5, b"one"), (6, b"two")]


def test_bytes_that_are_no_record_are_an_error_with_the_position() -> None:
    data = [packed(msgspec.structs.replace(record(), queue_offset=7)) + b"?" * 100]
    with pytest.raises(RemoteProtocolError, match="after offset 7 of queue 0 of T on broker-a"):
        list(decode_batches(data, Range(QUEUE, 0, 9), COLUMNS, tags=frozenset(), decompressed=True))


def test_a_record_with_wrong_lengths_is_an_error_with_its_position() -> None:
    data = bytearray(packed(record(position=7)))
    data[84] = 0x7F
    with pytest.raises(RemoteProtocolError, match=r"queue 0 of T on broker-a: .*position 7"):
        list(
            decode_batches(
                [bytes(data)], Range(QUEUE, 0, 9), COLUMNS, tags=frozenset(), decompressed=True
            )
        )
