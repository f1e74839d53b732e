from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.record import (
    MAGIC_V1,
    MAGIC_V2,
    Record,
    decode_record,
    decode_records,
    encode_record,
    message_id,
    pack_host,
    parse_message_id,
    topic_field,
    unpack_host,
)
from rocketpost.errors import CorruptRecord, RemoteProtocolError

# Written by Java: topic TopicA, body hello, TAGS=TagA, queue 1, offset 5, position 123456.
SAMPLE = bytes.fromhex(
    "00000070daa320a73610a68600000001000000000000000000000005000000000001e24000000000"
    "0000018bcfe568000a00000200009c400000018bcfe568010a00000100002a9f000000000000000000000000"
    "0000000568656c6c6f06546f70696341000a54414753015461674102"
)


def test_the_record_that_java_wrote_is_understood() -> None:
    record = decode_record(SAMPLE)
    assert record.size == len(SAMPLE) == 112
    assert (record.topic, record.queue_id, record.queue_offset) == ("TopicA", 1, 5)
    assert (record.position, record.body, record.body_crc) == (123456, b"hello", 907060870)
    assert record.properties == {"TAGS": "TagA"}
    assert (record.born_ms, record.store_ms) == (1700000000000, 1700000000001)
    assert record.born_host == ("10.0.0.2", 40000)
    assert record.store_host == ("10.0.0.1", 10911)
    assert record.message_id == "0A00000100002A9F000000000001E240"


def test_the_record_that_java_wrote_is_written_the_same() -> None:
    assert b"".join(encode_record(decode_record(SAMPLE))) == SAMPLE


int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(0, 2**63 - 1)
hosts = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)
records = st.builds(
    Record,
    size=st.just(0),
    magic=st.just(0),
    body_crc=st.just(0),
    queue_id=int32,
    flag=int32,
    queue_offset=int64,
    position=int64,
    sys_flag=st.integers(0, 0x7FF),
    born_ms=int64,
    born_host_bytes=hosts.map(lambda ip: ip + b"\0\0\x2a\x9f"),
    store_ms=int64,
    store_host_bytes=hosts.map(lambda ip: ip + b"\0\0\x2a\x9f"),
    reconsume_times=int32,
    prepared_position=int64,
    body=st.binary(max_size=60),
    topic=st.text(st.characters(codec="utf-8"), max_size=20) | st.just("t" * 200),
    properties_bytes=st.binary(max_size=60),
)


@given(st.lists(records, max_size=4))
def test_records_come_back(sent: list[Record]) -> None:
    data = b"".join(buffer for record in sent for buffer in encode_record(record))
    got = decode_records(memoryview(data))
    assert b"".join(buffer for record in got for buffer in encode_record(record)) == data
    for before, after in zip(sent, got, strict=True):
        assert (after.topic, bytes(after.body)) == (before.topic, before.body)
        assert after.properties_bytes == before.properties_bytes
        assert after.magic == (MAGIC_V2 if len(before.topic) > 127 else MAGIC_V1)
        assert (after.born_host_bytes, after.store_host_bytes) == (
            before.born_host_bytes,
            before.store_host_bytes,
        )


@given(st.integers(0, len(SAMPLE) - 1))
def test_a_cut_record_is_refused_and_ends_a_body(cut: int) -> None:
    with pytest.raises(CorruptRecord):
        decode_record(SAMPLE[:cut])
    assert len(decode_records(SAMPLE + SAMPLE[:cut])) == 1


def _changed(at: int, data: bytes) -> bytes:
    return SAMPLE[:at] + data + SAMPLE[at + len(data) :]


@pytest.mark.parametrize(
    "wrong",
    [
        _changed(4, b"\0\0\0\0"),
        _changed(0, struct.pack(">i", 111)),
        _changed(84, struct.pack(">i", -1)),
        _changed(84, struct.pack(">i", 2**31 - 1)),
        _changed(93, b"\xff"),
        _changed(94, b"\xff"),
        _changed(100, b"\xff\xff"),
        _changed(88, b"j"),
        _changed(4, struct.pack(">I", 0xDAA320AB)),
    ],
)
def test_a_record_that_does_not_add_up_is_refused(wrong: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode_record(wrong)


def test_the_crc_is_only_checked_if_asked() -> None:
    assert decode_record(_changed(88, b"j"), verify_crc=False).body == b"jello"


def test_a_long_topic_needs_the_second_version() -> None:
    assert topic_field("t" * 127) == (MAGIC_V1, b"\x7f" + b"t" * 127)
    assert topic_field("t" * 128) == (MAGIC_V2, b"\0\x80" + b"t" * 128)
    assert topic_field("t" * 128, long_topics=False) == (MAGIC_V1, b"\x80" + b"t" * 128)


def test_hosts() -> None:
    assert pack_host("10.0.0.1", 10911).hex() == "0a00000100002a9f"
    assert pack_host("::ffff:10.0.0.1", 10911).hex() == "0a00000100002a9f"
    assert pack_host("fe80::1%eth0", 1).hex() == "fe80000000000000000000000000000100000001"
    assert unpack_host(pack_host("2001:db8::1", 80)) == ("2001:db8::1", 80)


def test_message_ids() -> None:
    host = pack_host("10.0.0.1", 10911)
    assert message_id(host, 123456) == "0A00000100002A9F000000000001E240"
    assert parse_message_id("0A00000100002A9F000000000001E240") == (host, 123456)
    six = pack_host("::1", 10911)
    assert len(message_id(six, 0)) == 56
    assert parse_message_id(message_id(six, 7)) == (six, 7)


@pytest.mark.parametrize("wrong", ["", "0A", "x" * 32, "0A 0" + "0" * 30])
def test_other_texts_are_no_message_ids(wrong: str) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_message_id(wrong)
