"""Recall handles: Java's text, and nothing else."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.recall_handle import RecallHandle, decode_recall_handle
from rocketpost.errors import RemoteProtocolError

WORDS = st.text(st.characters(codec="ascii", exclude_characters=" "), min_size=1, max_size=40)


@given(topic=WORDS, broker=WORDS, due_ms=st.integers(0, 10**18 - 1), key=WORDS)
def test_handles_survive_the_way(topic: str, broker: str, due_ms: int, key: str) -> None:
    handle = RecallHandle(topic, broker, due_ms, key)
    assert decode_recall_handle(handle.encode()) == handle
    assert decode_recall_handle(handle.encode().rstrip("=")) == handle


def test_a_handle_as_java_makes_it() -> None:
    text = base64.urlsafe_b64encode(b"v1 Orders broker-a 1700000000001 7F0001").decode()
    assert decode_recall_handle(text) == RecallHandle(
        "Orders", "broker-a", 1_700_000_000_001, "7F0001"
    )
    assert RecallHandle("Orders", "broker-a", 1_700_000_000_001, "7F0001").encode() == text


@pytest.mark.parametrize(
    "inside", [b"v2 T b 1 k", b"v1 T b 1", b"v1 T b x k", b"v1 T b -1 k", b"v1  b 1 k", b"\xff\xfe"]
)
def test_other_texts_are_no_handles(inside: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="recall handle"):
        decode_recall_handle(base64.urlsafe_b64encode(inside).decode())


@given(text=st.text(max_size=60))
def test_any_text_is_understood_or_refused(text: str) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode_recall_handle(text)


def test_a_handle_has_a_bound() -> None:
    with pytest.raises(RemoteProtocolError, match="too long"):
        decode_recall_handle("A" * 5000)
