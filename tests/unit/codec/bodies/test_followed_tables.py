"""Tables that a slave follows, as one body."""

from __future__ import annotations

import pytest

from rocketpost.codec.bodies.followed_tables import (
    TableText,
    decode_known,
    decode_tables,
    encode_known,
    encode_tables,
)
from rocketpost.errors import RemoteProtocolError

TABLES = [
    TableText("topics", "ab.7", b'{"a":1}'),
    TableText("offsets", "ab.12.p", b'{"offsetTable":{"T@G":{0:5}}}', is_whole=False),
    TableText("delays", "ab.0", b""),
]


def test_tables_are_read_back() -> None:
    assert decode_tables(encode_tables(TABLES)) == TABLES
    assert decode_tables(encode_tables([])) == []


def test_the_form_is_fixed() -> None:
    index = b'[{"name":"topics","version":"ab.7","size":7,"whole":true}]'
    assert encode_tables(TABLES[:1]) == len(index).to_bytes(4, "big") + index + b'{"a":1}'


def test_malformed_bodies_are_refused() -> None:
    data = encode_tables(TABLES)
    for size in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decode_tables(data[:size])
    with pytest.raises(RemoteProtocolError):
        decode_tables(b"\xff\xff\xff\xff" + data[4:])
    with pytest.raises(RemoteProtocolError):
        decode_tables(b"\0\0\0\x2f" + b'[{"name":"topics","version":"v","size":-1}]    ')


def test_known_versions_are_read_back() -> None:
    known = {"topics": "ab.7", "offsets": "*"}
    assert encode_known(known) == "topics=ab.7;offsets=*"
    assert decode_known(encode_known(known)) == known
    assert decode_known("") == {}
    assert decode_known("nonsense;a=b") == {"a": "b"}
