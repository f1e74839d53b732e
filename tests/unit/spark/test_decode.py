"""Every column says what the plain decoder says, however odd the records."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketpost.codec.record import Record, decode_records
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.sysflag import COMPRESSED
from rocketpost.spark import columns
from rocketpost.spark.decode import decode

from .records import odd_properties, packed, properties, record, records, row


def laid_out(some: list[Record]) -> tuple[bytes, Any]:
    parts = [packed(each) for each in some]
    ends = np.cumsum([0, *map(len, parts)])
    return b"".join(parts), ends[:-1].astype(np.int64)


def rows(data: bytes, starts: Any, **more: Any) -> list[dict[str, Any]]:
    batch = decode(data, starts, columns.ALL, broker_name="b", **more)
    batch.validate(full=True)
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


@settings(deadline=None)
@given(records(properties), st.sets(st.sampled_from([each.name for each in columns.ALL])))
def test_a_projection_has_its_columns_and_no_others(one: Record, names: set[str]) -> None:
    wanted = tuple(each for each in columns.ALL if each.name in names)
    data, starts = laid_out([one, one])
    batch = decode(data, starts, wanted, broker_name=None)
    assert batch.schema.names == [each.name for each in wanted]
    assert [field.type for field in batch.schema] == [each.arrow for each in wanted]
    assert batch.num_rows == 2


def test_properties_as_text_are_as_stored() -> None:
    data, starts = laid_out([record(properties_bytes=b"a\x01b\x02")])
    batch = decode(data, starts, columns.full("string"), broker_name=None)
    assert batch.to_pylist()[0]["properties"] == "a\x01b\x02"
    assert "properties" not in columns.ddl(columns.full("none"))


def test_a_compressed_body_is_unpacked_unless_that_is_not_wanted() -> None:
    packed_body = zlib.compress(b"plain" * 9)
    data, starts = laid_out([record(body=packed_body, sys_flag=COMPRESSED), record(body=b"x")])
    assert [each["body"] for each in rows(data, starts)] == [b"plain" * 9, b"x"]
    kept = rows(data, starts, decompressed=False)
    assert [each["body"] for each in kept] == [packed_body, b"x"]


def test_a_body_that_lies_about_its_compression_is_an_error() -> None:
    data, starts = laid_out([record(body=b"no zlib", sys_flag=COMPRESSED)])
    with pytest.raises(RemoteProtocolError, match="compressed"):
        rows(data, starts)


@pytest.mark.parametrize("ms", [2**62, -(2**62)])
def test_a_mad_clock_is_cut_to_the_years_that_spark_knows(ms: int) -> None:
    data, starts = laid_out([record(born_ms=ms)])
    assert rows(data, starts)[0]["bornTimestamp"].year in (1, 9999)
