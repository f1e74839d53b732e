"""Strings as Java spells them: any text survives, in both forms."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.bodies.java_text import array, encode_number_keys, encode_text_table, quote

well_formed = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    ("text", "plain", "ascii_only"),
    [
        ("TopicA", b'"TopicA"', b'"TopicA"'),
        ('a"b\\c/d', b'"a\\"b\\\\c/d"', b'"a\\"b\\\\c\\/d"'),
        ("\b\t\n\f\r\v", b'"\\b\\t\\n\\f\\r\\u000B"', b'"\\b\\t\\n\\f\\r\\u000B"'),
        ("\x7f\x9f\u2028", b'"\\u007F\\u009F\\u2028"', b'"\\u007F\\u009F\\u2028"'),
        ("\xe9\u521b", '"\xe9\u521b"'.encode(), b'"\\u00E9\\u521B"'),
        ("\U0001f680", '"\U0001f680"'.encode(), b'"\\uD83D\\uDE80"'),
        ("a\ud800b", b'"a?b"', b'"a?b"'),
    ],
)
def test_both_forms(text: str, plain: bytes, ascii_only: bytes) -> None:
    assert quote(text) == plain
    assert quote(text, ascii_only=True) == ascii_only


@given(well_formed, st.booleans())
def test_any_text_survives(text: str, ascii_only: bool) -> None:
    quoted = quote(text, ascii_only=ascii_only)
    assert msgspec.json.decode(quoted, type=str) == text
    assert quoted.isascii() or not ascii_only


def test_integer_keys_with_and_without_quotes() -> None:
    values = {1: b'"b"', 0: b'"a"', -3: b"{}"}
    assert encode_number_keys(values, quoted=False) == b'{-3:{},0:"a",1:"b"}'
    assert encode_number_keys(values, quoted=True) == b'{"-3":{},"0":"a","1":"b"}'


def test_arrays_and_tables_are_compact() -> None:
    assert array([b"1", b'"x"']) == b'[1,"x"]'
    assert array([]) == b"[]"
    assert encode_text_table({"b": "2", "a": "1"}) == b'{"a":"1","b":"2"}'
