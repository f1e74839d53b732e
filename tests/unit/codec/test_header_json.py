"""The JSON header, as several clients write it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.command import Command
from rocketpost.codec.header_json import (
    decode_fields,
    decode_json_header,
    encode_json_header,
    language_name,
)
from rocketpost.errors import RemoteProtocolError

decoder = msgspec.json.Decoder(Command)


def decode(data: bytes) -> Command:
    return decode_json_header(data, decoder.decode)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    code=st.integers(-(2**31), 2**31 - 1),
    opaque=st.integers(-(2**31), 2**31 - 1),
    remark=st.none() | texts,
    fields=st.dictionaries(texts, texts, max_size=5),
)
def test_written_headers_are_read_back(
    code: int, opaque: int, remark: str | None, fields: dict[str, str]
) -> None:
    header = decode(encode_json_header(code, opaque, 1, remark, fields))
    assert (header.code, header.opaque, header.flag) == (code, opaque, 1)
    assert header.remark == (remark or None)
    assert decode_fields(header.raw_fields) == fields


def test_absent_members_are_left_out_and_the_text_is_compact() -> None:
    assert encode_json_header(0, 7, 1, None, {"a": "1"}) == (
        b'{"code":0,"extFields":{"a":"1"},"flag":1,"language":"PYTHON","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )


def test_numbers_and_booleans_keep_their_spelling_and_null_is_dropped() -> None:
    raw = b'{"n":5,"f":1.50,"b":true,"z":null,"s":"x","o":{"a":[1]}}'
    assert decode_fields(raw) == {"n": "5", "f": "1.50", "b": "true", "s": "x", "o": '{"a":[1]}'}
    assert decode_fields(b"null") == {}
    assert decode_fields(b"") == {}


@pytest.mark.parametrize("raw", [b"[1]", b"{", b'"x"', b'{"a":"\xff"}'])
def test_fields_that_are_no_object_are_refused(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="bad extFields"):
        decode_fields(raw)


def test_ill_formed_utf8_is_replaced() -> None:
    header = decode(b'{"code":1,"remark":"a\xffb"}')
    assert header.remark == "a\ufffdb"


def test_lone_surrogates_are_replaced_when_written() -> None:
    header = decode(encode_json_header(0, 1, 1, "\ud800", {"k": "\udfff"}))
    assert header.remark == "?"
    assert decode_fields(header.raw_fields) == {"k": "?"}


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"code":"x"}', b'{"opaque":2147483648}', b"\xff\xfe", b"null"]
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="bad JSON header"):
        decode(data)


def test_languages_come_as_names_or_numbers() -> None:
    assert language_name("GO") == "GO"
    assert language_name(9) == "GO"
    assert language_name("KLINGON") == "OTHER"
    assert language_name(99) == "OTHER"
    assert language_name(None) == "OTHER"


def test_raw_is_accepted() -> None:
    assert decode_fields(msgspec.Raw(b'{"a":"b"}')) == {"a": "b"}
