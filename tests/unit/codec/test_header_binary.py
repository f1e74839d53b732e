"""The binary header, with the specification's worked example."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.header_binary import (
    _decode_any,
    _layouts,
    decode_binary_header,
    encode_binary_header,
)
from rocketpost.errors import LocalProtocolError, RemoteProtocolError

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)

JAVA_ROUTE_QUERY = bytes.fromhex(
    "0069 00 01df 00000007 00000000 00000000 00000011 0005 746f706963 00000006 546f70696341"
)


def test_a_header_of_java_is_read() -> None:
    header = decode_binary_header(JAVA_ROUTE_QUERY)
    assert header.code == 105
    assert header.language == "JAVA"
    assert header.version == 479
    assert header.opaque == 7
    assert header.remark is None
    assert header.fields == {"topic": "TopicA"}


def test_ours_differs_from_java_in_the_language_only() -> None:
    ours = encode_binary_header(105, 7, 0, None, {"topic": "TopicA"})
    assert ours == JAVA_ROUTE_QUERY[:2] + b"\x03" + JAVA_ROUTE_QUERY[3:]


@given(
    code=st.integers(-(2**15), 2**15 - 1),
    opaque=st.integers(-(2**31), 2**31 - 1),
    remark=st.none() | texts,
    fields=st.dictionaries(texts, texts, max_size=5),
)
def test_written_headers_are_read_back(
    code: int, opaque: int, remark: str | None, fields: dict[str, str]
) -> None:
    header = decode_binary_header(encode_binary_header(code, opaque, 1, remark, fields))
    assert (header.code, header.opaque, header.flag) == (code, opaque, 1)
    assert (header.remark, header.fields) == (remark, fields)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["", "a", "b", "aa", "ü", "\x01", "é" * 90])),
        max_size=8,
    ),
    st.binary(max_size=2),
)
def test_headers_of_one_size_are_read_alike_whether_their_layout_is_known_or_not(
    pairs: list[tuple[int, str]], junk: bytes
) -> None:
    names = ["a", "b", "ab", "a"]
    data = _header([(names[name], value) for name, value in pairs]) + junk
    expected = _decode_any(data)
    for _ in range(3):
        assert decode_binary_header(data) == expected
    twisted = _header([(names[name], value) for name, value in reversed(pairs)]) + junk
    assert decode_binary_header(twisted) == _decode_any(twisted)


def _header(pairs: list[tuple[str, str]]) -> bytes:
    """Return a header that may name a field twice or leave it empty."""
    fields = b""
    for name, value in pairs:
        fields += struct.pack(">h", len(name)) + name.encode()
        fields += struct.pack(">i", len(value.encode())) + value.encode()
    return JAVA_ROUTE_QUERY[:17] + struct.pack(">i", len(fields)) + fields


def test_a_client_that_changes_its_layout_is_followed() -> None:
    for names in (["one", "two"], ["two", "six"]):
        for n in range(10):
            data = _header([(name, str(n)) for name in names])
            assert decode_binary_header(data).fields == dict.fromkeys(names, str(n))
        assert _layouts[len(data)].names == tuple(names)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode_binary_header(data)


@pytest.mark.parametrize("cut", range(len(JAVA_ROUTE_QUERY)))
def test_a_cut_header_is_refused(cut: int) -> None:
    with pytest.raises(RemoteProtocolError, match="binary header"):
        decode_binary_header(JAVA_ROUTE_QUERY[:cut])


def test_empty_values_and_unknown_languages() -> None:
    data = bytearray(encode_binary_header(1, 2, 0, None, {"a": "", "b": "c"}))
    data[2] = 200
    header = decode_binary_header(bytes(data))
    assert header.fields == {"b": "c"}
    assert header.language == "OTHER"


def test_fields_that_do_not_fit_are_refused_before_they_are_sent() -> None:
    with pytest.raises(LocalProtocolError, match="200050"):
        encode_binary_header(200050, 1, 0, None, {})
    with pytest.raises(LocalProtocolError, match="field name"):
        encode_binary_header(1, 1, 0, None, {"n" * 40000: "v"})
