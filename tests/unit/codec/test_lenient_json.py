"""Lenient JSON: Java's texts in, Java's texts out."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.lenient_json import decode, decode_any, encode, members, standardize
from rocketpost.errors import RemoteProtocolError

TOPIC_STATS = (
    b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}:'
    b'{"lastUpdateTimestamp":0,"maxOffset":3,"minOffset":0}},"topicPutTps":0.0}'
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


def test_integer_keys_become_strings() -> None:
    assert decode_any(b'{"a":{0:"x",-12:{}},"b":[{1:2}]}') == {
        "a": {"0": "x", "-12": {}},
        "b": [{"1": 2}],
    }


def test_object_keys_become_their_text() -> None:
    table = decode_any(TOPIC_STATS)["offsetTable"]
    ((key, value),) = table.items()
    assert msgspec.json.decode(key) == {"brokerName": "broker-a", "queueId": 0, "topic": "TopicA"}
    assert value["maxOffset"] == 3


def test_keys_with_braces_and_quotes_in_strings() -> None:
    text = b'{{"topic":"a}\\"{"}:1 , {"topic":"b"} : 2}'
    assert list(decode_any(text).values()) == [1, 2]


@given(json_values)
def test_standard_json_is_unchanged_in_meaning(value: Any) -> None:
    assert decode_any(encode(value)) == value
    assert msgspec.json.decode(standardize(encode(value))) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_json_or_refused(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode_any(data)


@pytest.mark.parametrize(
    "data", [b"", b'{"a', b"{{1:2", b"[" * 100, b"{1:" * 100, b"{" + b"{" * 100, b"}", b'{"a":1}x']
)
def test_invalid_json_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_any(data)


def test_a_type_that_does_not_fit_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="bad JSON"):
        decode(b'{"a":"x"}', dict[str, int])
    assert decode(b'{7:"1"}', dict[int, int]) == {7: 1}


def test_members_writes_both_unquoted_forms() -> None:
    inner = members([(b"0", b'"a"'), (b'{"q":1}', b"2")])
    assert encode({"t": inner}) == b'{"t":{0:"a",{"q":1}:2}}'
