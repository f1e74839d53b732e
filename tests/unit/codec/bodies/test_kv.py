"""Key-value tables on the wire and on disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.bodies.kv import (
    decode_kv_file,
    decode_kv_table,
    encode_kv_file,
    encode_kv_table,
)
from rocketpost.errors import RemoteProtocolError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
tables = st.dictionaries(texts, texts, max_size=4)


def test_the_text_on_the_wire() -> None:
    assert encode_kv_table({"TopicA": "broker-a:4"}) == b'{"table":{"TopicA":"broker-a:4"}}'
    assert decode_kv_table(b"{}") == {}


def test_the_text_on_disk() -> None:
    text = b'{"configTable":{"ORDER_TOPIC_CONFIG":{"TopicA":"broker-a:4"},"x":{}}}'
    assert encode_kv_file(decode_kv_file(text)) == text
    assert decode_kv_file(b"{}") == {}


@given(tables)
def test_every_table_survives(table: dict[str, str]) -> None:
    assert decode_kv_table(encode_kv_table(table)) == table


@given(st.dictionaries(texts, tables, max_size=3))
def test_every_file_survives(namespaces: dict[str, dict[str, str]]) -> None:
    assert decode_kv_file(encode_kv_file(namespaces)) == namespaces


@pytest.mark.parametrize("text", [b"", b"[]", b'{"table":[]}', b'{"table":{"a":{}}}'])
def test_invalid_tables_are_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_kv_table(text)


@pytest.mark.parametrize("text", [b"", b'{"configTable":{"a":1}}'])
def test_invalid_files_are_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_kv_file(text)
