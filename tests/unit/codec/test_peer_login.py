"""Frames of logins between brokers: exact, bounded, and refused with a reason."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.peer_login import (
    MAGIC,
    TEXT_BYTES_MAX,
    Challenge,
    Frame,
    Introduction,
    Proof,
    Verdict,
    encode_login,
    take_login,
)
from rocketpost.errors import RemoteProtocolError

FRAMES: list[Frame] = [
    Introduction(user="servers", purpose="the log", nonce=b"n" * 32),
    Challenge(nonce=b"c" * 32),
    Challenge(problem="not today"),
    Proof(proof=b"p" * 32),
    Verdict(proof=b"v" * 32),
    Verdict(problem="wrong"),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_frames_come_back_byte_by_byte(frame: Frame) -> None:
    received = bytearray()
    encoded = encode_login(frame)
    for number in encoded[:-1]:
        received.append(number)
        assert take_login(type(frame), received) is None
    received += encoded[-1:] + b"rest"
    assert take_login(type(frame), received) == frame
    assert received == b"rest"


def test_a_master_of_rocketmq_takes_the_magic_for_a_negative_position() -> None:
    assert struct.unpack(">q", MAGIC)[0] < 0
    assert MAGIC[:1] not in (b"\x16", b"\x00"), "neither TLS nor a position"


@pytest.mark.parametrize(
    ("received", "reason"),
    [
        (b"\x00" * 8, "does not log in"),
        (b"\xf2R\x00", "does not log in"),
        (MAGIC + (TEXT_BYTES_MAX + 1).to_bytes(2, "big"), "has 1025 bytes"),
        (MAGIC + b"\x00\x02{]", "cannot be read"),
        (MAGIC + b"\x00\x02{}", "cannot be read"),
    ],
)
def test_other_bytes_are_refused(received: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        take_login(Proof, bytearray(received))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Proof, b'{"proof":"AAAA"}'),
        (Verdict, b"{}"),
        (Challenge, b'{"nonce":"AAAA"}'),
        (Introduction, b'{"user":"u","purpose":"p","nonce":""}'),
    ],
)
def test_values_of_another_size_are_refused(kind: type[Frame], text: bytes) -> None:
    frame = bytearray(MAGIC + len(text).to_bytes(2, "big") + text)
    with pytest.raises(RemoteProtocolError, match="must have 32 bytes"):
        take_login(kind, frame)


@given(st.binary(max_size=200))
def test_any_bytes_are_taken_or_refused(data: bytes) -> None:
    for received in (bytearray(data), bytearray(MAGIC + data)):
        if not received:
            continue
        with contextlib.suppress(RemoteProtocolError):
            take_login(Introduction, received)
