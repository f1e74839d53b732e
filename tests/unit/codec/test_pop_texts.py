"""Receipts, offset lists and JSON bodies of popping, as Java writes and reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.bodies.pop import (
    ACKS_MAX,
    AckBody,
    AckSet,
    CheckpointBody,
    decode_ack,
    decode_batch_ack,
    decode_checkpoint,
    encode_ack,
    encode_bits,
    encode_checkpoint,
)
from rocketpost.codec.headers.pop import (
    Receipt,
    offsets_text,
    order_counts_text,
    parse_order_counts,
    parse_receipt,
    parse_start_offsets,
    real_topic,
    start_offsets_text,
)
from rocketpost.errors import RemoteProtocolError


def test_a_receipt_is_eight_parts() -> None:
    receipt = Receipt(100, 1_700_000_000_000, 60_000, 3, 0, "broker-a", 1, 102)
    assert str(receipt) == "100 1700000000000 60000 3 0 broker-a 1 102"
    assert parse_receipt(str(receipt)) == receipt


@pytest.mark.parametrize("text", ["", "1 2 3", "1 2 3 4 5 b 7 x", "1 2 3 4 5 b 7 " + "9" * 30])
def test_other_texts_are_no_receipts(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_receipt(text)


def test_offset_lists() -> None:
    assert start_offsets_text([(0, 1, 100), (1, 0, 7)]) == "0 1 100;1 0 7"
    assert offsets_text([(0, 1, [100, 101, 102]), (1, 0, [7])]) == "0 1 100,101,102;1 0 7"
    assert parse_start_offsets("0 1 100;1 0 7") == {(0, 1): 100, (1, 0): 7}
    assert parse_start_offsets("") == {}
    for text in ("0 1", "a b c"):
        with pytest.raises(RemoteProtocolError):
            parse_start_offsets(text)


def test_topics_by_retry() -> None:
    assert [real_topic(retry, "G", "T") for retry in range(3)] == ["T", "%RETRY%G_T", "%RETRY%G+T"]


def test_bits_are_javas() -> None:
    assert encode_bits(100, [100, 103, 109]) == "CQI="
    bits = AckSet(b="CQI=", c="C", pt=1, q=1, so=100, t="T").offsets
    assert [offset for offset in range(90, 130) if offset in bits] == [100, 103, 109]
    assert bits
    assert "100" not in bits
    with pytest.raises(RemoteProtocolError):
        _ = AckSet(b="?", c="C", pt=1, q=1, so=0, t="T").offsets


@given(st.sets(st.integers(0, 200), min_size=1))
def test_bits_survive(offsets: set[int]) -> None:
    bits = AckSet(b=encode_bits(0, list(offsets)), c="C", pt=1, q=1, so=0, t="T").offsets
    assert {offset for offset in range(300) if offset in bits} == offsets


def test_batches_have_short_and_long_names() -> None:
    short = decode_batch_ack(
        b'{"acks":[{"b":"CQI=","c":"C","it":60000,"pt":17,"q":1,"r":"0","rq":2,"so":100,"t":"A"}],'
        b'"brokerName":"broker-a"}'
    )
    long = decode_batch_ack(
        b'{"acks":[{"bitSet":"CQI=","consumerGroup":"C","invisibleTime":60000,"popTime":17,'
        b'"queueId":1,"retry":"0","reviveQueueId":2,"startOffset":100,"topic":"A"}],'
        b'"brokerName":"broker-a"}'
    )
    assert short == long
    assert short.acks[0].rq == 2
    for bad in (b"[]", b'{"acks":[1]}', b'{"acks":[' + b"{}," * ACKS_MAX + b"{}]}"):
        with pytest.raises(RemoteProtocolError):
            decode_batch_ack(bad)
    assert decode_batch_ack(b"{}").acks == []


def test_records_of_the_revive_topic() -> None:
    checkpoint = CheckpointBody(
        bn="b", c="g", d=[0, 2], it=5, n=2, pt=1, q=0, revive_time=6, ro=9, so=7, t="T"
    )
    text = encode_checkpoint(checkpoint)
    assert text == (
        b'{"bm":0,"bn":"b","c":"g","d":[0,2],"it":5,"n":2,"pt":1,"q":0,"reviveTime":6,'
        b'"ro":9,"so":7,"t":"T"}'
    )
    assert decode_checkpoint(text) == checkpoint
    ack = AckBody(ao=7, bn="b", c="g", pt=1, q=0, so=7, t="T")
    assert encode_ack(ack) == b'{"ao":7,"bn":"b","c":"g","pt":1,"q":0,"so":7,"t":"T"}'
    assert decode_ack(encode_ack(ack)).offsets == [7]
    assert decode_ack(b'{"aol":[7,9],"c":"g","pt":1,"q":0,"so":7,"t":"T"}').offsets == [7, 9]
    for decode in (decode_ack, decode_checkpoint):
        with pytest.raises(RemoteProtocolError):
            decode(b"{}")


def test_order_counts_are_written_and_read() -> None:
    text = order_counts_text([(0, 1, [100, 101], {100: 2}), (1, 0, [7], {7: 3}), (2, 4, [5], {})])
    assert text == "0 qo1%100 2;0 1 0;1 qo0%7 3;1 0 3;2 4 0"
    assert parse_order_counts(text) == {(0, 1, 100): 2, (1, 0, 7): 3}
    assert parse_order_counts("") == {}
    for wrong in ("0 1", "0 qo1%x 2", "a 1 2", "0 1 2;"):
        with pytest.raises(RemoteProtocolError):
            parse_order_counts(wrong)
