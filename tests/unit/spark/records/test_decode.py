"""Every column says what the plain decoder says, however odd the records, both ways of decoding."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketpost.codec.record import Record, decode_records
from rocketpost.errors import CorruptRecord, RemoteProtocolError
from rocketpost.model.sysflag import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from rocketpost.spark.records import columns
from rocketpost.spark.records.chunk import Chunk
from rocketpost.spark.records.decode import decode

from ..made_records import laid_out, odd_properties, properties, record, records, row


def rows(data: bytes, starts: Any, **more: Any) -> list[dict[str, Any]]:
    """Return what both ways of decoding say."""
    batch = decode(Chunk(data, starts, compiled=True), columns.ALL, broker_name="b", **more)
    batch.validate(full=True)
    other = decode(Chunk(data, starts, compiled=False), columns.ALL, broker_name="b", **more)
    other.validate(full=True)
    assert batch.equals(other)
    return [{**each, "properties": dict(each["properties"])} for each in batch.to_pylist()]


@settings(deadline=None)
@given(st.lists(records(), max_size=6))
def test_regular_records_are_read_as_by_the_plain_decoder(some: list[Record]) -> None:
    data, starts = laid_out(some)
    assert rows(data, starts) == [row(each, "b") for each in decode_records(data)]


@settings(deadline=None)
@given(st.lists(records(odd_properties), min_size=1, max_size=4))
def test_odd_properties_are_read_as_by_the_plain_decoder(some: list[Record]) -> None:
    data, starts = laid_out(some)
    assert rows(data, starts) == [row(each, "b") for each in decode_records(data)]


@settings(deadline=None)
@given(st.lists(records(), min_size=1, max_size=6), st.data())
def test_some_records_among_others_can_be_read(some: list[Record], data: st.DataObject) -> None:
    raw, starts = laid_out(some)
    chosen = sorted(data.draw(st.sets(st.integers(0, len(some) - 1))))
    decoded = decode_records(raw)
    expected = [row(decoded[at], "b") for at in chosen]
    assert rows(raw, starts[np.array(chosen, np.int64)]) == expected


WAYS = pytest.mark.parametrize("compiled", [True, False])


@WAYS
@settings(deadline=None)
@given(records(properties), st.sets(st.sampled_from([each.name for each in columns.ALL])))
def test_a_projection_has_its_columns_and_no_others(
    compiled: bool, one: Record, names: set[str]
) -> None:
    wanted = tuple(each for each in columns.ALL if each.name in names)
    data, starts = laid_out([one, one])
    batch = decode(Chunk(data, starts, compiled=compiled), wanted, broker_name=None)
    assert batch.schema.names == [each.name for each in wanted]
    assert [field.type for field in batch.schema] == [each.arrow for each in wanted]
    assert [field.nullable for field in batch.schema] == [each.nullable for each in wanted]
    assert batch.num_rows == 2


@WAYS
def test_a_null_never_gets_to_where_spark_expects_none(compiled: bool) -> None:
    data, starts = laid_out([record(properties_bytes=b"")])
    wanted = tuple(each._replace(nullable=False) for each in columns.ALL if each.name == "keys")
    with pytest.raises(AssertionError):
        decode(Chunk(data, starts, compiled=compiled), wanted, broker_name=None)


@WAYS
def test_properties_as_text_are_as_stored(compiled: bool) -> None:
    some = [record(properties_bytes=text) for text in (b"a\x01b\x02", b"", b"\xff\x01b")]
    data, starts = laid_out(some)
    chunk = Chunk(data, starts, compiled=compiled)
    batch = decode(chunk, columns.all_columns("string"), broker_name=None)
    assert batch.column("properties").to_pylist() == ["a\x01b\x02", "", "\ufffd\x01b"]
    assert "properties" not in columns.ddl(columns.all_columns("none"))


def test_a_compressed_body_is_decompressed_unless_turned_off() -> None:
    packed_body = zlib.compress(b"plain" * 9)
    data, starts = laid_out([record(body=packed_body, sys_flag=COMPRESSED), record(body=b"x")])
    assert [each["body"] for each in rows(data, starts)] == [b"plain" * 9, b"x"]
    kept = rows(data, starts, decompressed=False)
    assert [each["body"] for each in kept] == [packed_body, b"x"]


def test_a_body_with_a_wrong_compression_flag_is_an_error() -> None:
    data, starts = laid_out([record(body=b"no zlib", sys_flag=COMPRESSED)])
    with pytest.raises(RemoteProtocolError, match="compressed"):
        rows(data, starts)


@pytest.mark.parametrize("ms", [2**62, -(2**62)])
def test_absurd_times_are_limited_to_the_years_that_spark_knows(ms: int) -> None:
    data, starts = laid_out([record(born_ms=ms)])
    assert rows(data, starts)[0]["bornTimestamp"].year in (1, 9999)


@WAYS
def test_no_records_make_an_empty_batch(compiled: bool) -> None:
    data, starts = laid_out([record()])
    chunk = Chunk(data, starts[:0], compiled=compiled)
    batch = decode(chunk, columns.ALL, broker_name=None)
    assert (batch.num_rows, batch.schema.names) == (0, [each.name for each in columns.ALL])


@settings(deadline=None)
@given(st.lists(records(), min_size=1, max_size=3), st.data())
def test_records_with_wrong_lengths_are_refused_by_both_decoders(
    some: list[Record], data: st.DataObject
) -> None:
    """Nothing outside a record is ever read: both ways refuse, or both say the same."""
    raw, starts = laid_out(some)
    at = data.draw(st.integers(0, len(raw) - 1))
    if any(start <= at < start + 4 for start in starts.tolist()):
        return  # the sizes are known to be true
    changed = bytearray(raw)
    changed[at] ^= data.draw(st.integers(1, 255))
    said = []
    for compiled in (True, False):
        try:
            chunk = Chunk(bytes(changed), starts, compiled=compiled)
            batch = decode(chunk, columns.ALL, broker_name="b", decompressed=False)
            batch.validate(full=True)
            said.append(batch.to_pylist())
        except CorruptRecord as error:
            said.append(str(error))
    assert said[0] == said[1]


@pytest.mark.parametrize("length", [-1, 10**6])
@WAYS
def test_a_record_with_a_wrong_body_length_is_named(compiled: bool, length: int) -> None:
    data, starts = laid_out([record(position=7), record(position=4711)])
    cut = int(starts[1]) + 84
    data = data[:cut] + length.to_bytes(4, "big", signed=True) + data[cut + 4 :]
    with pytest.raises(CorruptRecord, match="position 4711 is damaged"):
        decode(Chunk(data, starts, compiled=compiled), columns.ALL, broker_name=None)


@pytest.mark.parametrize(
    "name",
    ["storeTimestamp", "storeHost", "reconsumeTimes", "preparedTransactionOffset", "msgId"],
)
@WAYS
def test_a_record_with_wrong_host_flags_is_named(compiled: bool, name: str) -> None:
    data, starts = laid_out([record(position=7), record(position=4711, body=b"")])
    flags = int(starts[1]) + 39
    data = data[:flags] + bytes([BORN_HOST_V6 | STORE_HOST_V6]) + data[flags + 1 :]
    wanted = tuple(each for each in columns.ALL if each.name == name)
    with pytest.raises(CorruptRecord, match="position 4711 is damaged"):
        decode(Chunk(data, starts, compiled=compiled), wanted, broker_name=None)
