"""The records of a transaction in the log, and how they are read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.broker.transaction.log import (
    checks_of,
    destination,
    ended_offsets,
    first_offset,
    immunity_ms,
    op_draft,
)
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import MAGIC_V1, Record, pack_host

HOST = pack_host("10.0.0.1", 10911)
HOST_V6 = pack_host("::1", 10911)


def record(body: bytes, queue_offset: int = 3, **properties: str) -> Record:
    return Record(
        size=0,
        magic=MAGIC_V1,
        body_crc=0,
        queue_id=0,
        flag=0,
        queue_offset=queue_offset,
        position=0,
        sys_flag=0,
        born_ms=0,
        born_host_bytes=HOST,
        store_ms=0,
        store_host_bytes=HOST,
        reconsume_times=0,
        prepared_position=0,
        body=body,
        topic="t",
        properties_bytes=encode_properties(properties),
    )


@given(offsets=st.lists(st.integers(0, 2**53), min_size=1))
def test_an_op_message_is_read_as_it_was_written(offsets: list[int]) -> None:
    draft = op_draft(offsets, now_ms=7, store_host=HOST, unique_key="k")
    assert isinstance(draft.body, bytes)
    assert ended_offsets(record(draft.body, TAGS="d")) == offsets
    assert draft.keys == ("k",)


def test_an_op_message_knows_its_host() -> None:
    assert op_draft([1], now_ms=7, store_host=HOST_V6, unique_key="k").sys_flag == 0x30


@pytest.mark.parametrize(
    ("body", "offsets"),
    [
        (b"12", [12]),
        (b"12,15,", [12, 15]),
        (b"12,,x,-3,4.5, 6,\xff,7", [12, 7]),
        (b"", []),
        (b"9" * 40, []),
    ],
)
def test_malformed_op_messages_are_read_as_far_as_possible(body: bytes, offsets: list[int]) -> None:
    assert ended_offsets(record(body, TAGS="d")) == offsets


def test_only_the_tag_d_ends_halves() -> None:
    assert ended_offsets(record(b"1,", TAGS="x")) == []
    assert ended_offsets(record(b"1,")) == []


@pytest.mark.parametrize(
    ("text", "immunity", "checks"),
    [("", 6000, 0), ("-1", 6000, 0), ("x", 6000, 0), ("12", 12_000, 12), ("9" * 30, 6000, 0)],
)
def test_numbers_in_properties_are_checked(text: str, immunity: int, checks: int) -> None:
    properties = {"CHECK_IMMUNITY_TIME_IN_SECONDS": text, "TRANSACTION_CHECK_TIMES": text}
    assert immunity_ms(properties, default_ms=6000) == immunity
    assert checks_of(properties) == checks


def test_a_copy_knows_the_first_offset() -> None:
    assert first_offset(record(b"b"), {}) == 3
    assert first_offset(record(b"b"), {"TRAN_PREPARED_QUEUE_OFFSET": "1"}) == 1
    assert first_offset(record(b"b"), {"TRAN_PREPARED_QUEUE_OFFSET": "-1"}) == 3


@pytest.mark.parametrize(
    ("topic", "queue_id", "found"),
    [
        ("T", "2", ("T", 2)),
        ("", "2", None),
        ("T", "", None),
        ("T", "-2", None),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "0", None),
    ],
)
def test_a_half_names_its_destination(
    topic: str, queue_id: str, found: tuple[str, int] | None
) -> None:
    assert destination({"REAL_TOPIC": topic, "REAL_QID": queue_id}) == found
