"""Records judged where they lie."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.broker.filter.matching import BODY_BYTES_MAX, RecordFilter, RetryFilter
from rocketpost.client.compression import decompress
from rocketpost.codec.properties import decode_properties, encode_properties, find_property
from rocketpost.codec.record import Record, encode_record, locate, pack_host
from rocketpost.errors import CorruptRecord
from rocketpost.filter import compile_filter
from rocketpost.model.sysflag import COMPRESSED, COMPRESSION_ZLIB


def record(
    properties: dict[str, str] | bytes = b"",
    body: bytes = b"body",
    *,
    topic: str = "T",
    sys_flag: int = 0,
    born: str = "10.0.0.1",
    stored: str = "10.0.0.2",
) -> memoryview:
    data = properties if isinstance(properties, bytes) else encode_properties(properties)
    whole = Record(
        size=0,
        magic=0,
        body_crc=0,
        queue_id=0,
        flag=0,
        queue_offset=0,
        position=0,
        sys_flag=sys_flag,
        born_ms=0,
        born_host_bytes=pack_host(born, 1),
        store_ms=0,
        store_host_bytes=pack_host(stored, 2),
        reconsume_times=0,
        prepared_position=0,
        body=body,
        topic=topic,
        properties_bytes=data,
    )
    return memoryview(b"".join(encode_record(whole)))


def matcher(text: str, given: memoryview, *, paths: bool = False) -> bool:
    return RecordFilter(compile_filter(text, paths=paths), unpack=decompress).matches(given)[0]


@pytest.mark.parametrize("born", ["10.0.0.1", "::5"])
@pytest.mark.parametrize("stored", ["10.0.0.1", "::5"])
@pytest.mark.parametrize("topic", ["T", "T" * 200])
def test_properties_are_found_in_every_kind_of_record(born: str, stored: str, topic: str) -> None:
    given = record({"a": "6", "TAGS": "x"}, topic=topic, born=born, stored=stored)
    assert matcher("a > 5 AND TAGS = 'x'", given)
    assert not matcher("a > 6", given)
    assert not matcher("a > 5", record(topic=topic, born=born, stored=stored))


@given(data=st.lists(st.sampled_from([b"a", b"b", b"\x01", b"\x02", b"\xff", b"5"]), max_size=24))
def test_finding_one_property_agrees_with_decoding_all(data: list[bytes]) -> None:
    text = b"".join(data)
    properties = decode_properties(text)
    for name in (b"a", b"b", b"5"):
        found = find_property(b"\x02" + text, b"\x02" + name + b"\x01")
        assert found == properties.get(name.decode())


def test_an_unreadable_record_passes_so_that_the_later_check_reports_it() -> None:
    for cut in (0, 30, 90, 95):
        assert matcher("a IS NULL", record({"a": "1"})[:cut])
    with pytest.raises(CorruptRecord):
        locate(record({"a": "1"}, b"x" * 100)[:120])


def test_plain_and_compressed_bodies_are_examined() -> None:
    body = b'{"total": 120}'
    small = zlib.compress(body)
    flag = COMPRESSED | COMPRESSION_ZLIB
    assert matcher("body.total > 100", record(body=body), paths=True)
    assert matcher("body.total > 100", record(body=small, sys_flag=flag), paths=True)
    assert not matcher("body.total > 100", record(body=b"xx" + small, sys_flag=flag), paths=True)
    assert not matcher("body.total > 100", record(body=b"no json"), paths=True)


def test_a_body_that_unpacks_too_large_is_unknown_and_costs_the_maximum() -> None:
    bomb = zlib.compress(b'{"total": 120, "x": "' + b" " * BODY_BYTES_MAX + b'"}')
    given = record(body=bomb, sys_flag=COMPRESSED | COMPRESSION_ZLIB)
    matches, work = RecordFilter(
        compile_filter("body.total > 100", paths=True), unpack=decompress
    ).matches(given)
    assert not matches
    assert work > 10_000
    large = record(body=b'{"total": 120, "x": "' + b" " * BODY_BYTES_MAX + b'"}')
    assert not matcher("body.total > 100", large, paths=True)


def test_retries_are_matched_by_the_filter_of_their_topic() -> None:
    found = RecordFilter(compile_filter("a > 5"), unpack=decompress)
    retries = RetryFilter("G", lambda topic, group: found if (topic, group) == ("T", "G") else None)
    assert retries.matches(record({"RETRY_TOPIC": "T", "a": "6"}))[0]
    assert not retries.matches(record({"RETRY_TOPIC": "T", "a": "5"}))[0]
    assert retries.matches(record({"RETRY_TOPIC": "U", "a": "5"}))[0]
    assert retries.matches(record({"a": "5"}))[0]
    assert retries.matches(record({"a": "5"})[:20])[0]
