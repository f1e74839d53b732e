"""The introduction of one member to another: bytes, and who is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.group.hello import (
    MAGIC,
    TEXT_BYTES_MAX,
    Answer,
    Hello,
    encode_hello,
    take_hello,
    why_refuse,
)
from rocketpost.errors import RemoteProtocolError

HELLO = Hello(group="g", sender="n1", receiver="n0", settings={"size": "1"}, address="h:1")


def judge(hello: Hello) -> str:
    return why_refuse(
        hello, group="g", receiver="n0", peers=frozenset(("n1", "n2")), settings={"size": "1"}
    )


def test_a_hello_comes_back_however_it_is_cut() -> None:
    for value in (HELLO, Answer(problem="no", address="h:2"), Answer()):
        data = encode_hello(value) + b"rest"
        received = bytearray()
        found = None
        for at, byte in enumerate(data):
            assert found is None or at >= len(data) - 4
            received.append(byte)
            if found is None:
                found = take_hello(type(value), received)  # type: ignore[type-var]
        assert found == value
        assert received == b"rest"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0\0\1\x35\0\0\0\x31", "DLedger peer"),
        (b"\0\0\1\x35\1\0\0\x31", "DLedger peer"),
        (bytes(8), "a slave that asks for the log"),
        ((2**40).to_bytes(8, "big"), "a slave that asks for the log"),
        (bytes.fromhex("00000001000000000000000000000002"), "a slave that asks for the log"),
        (b"\xff" * 8, "only brokers of Rocketpost"),
        (b"GET / HTTP/1.1", "does not speak"),
        (MAGIC + (TEXT_BYTES_MAX + 1).to_bytes(4, "big"), "has 4097 bytes"),
        (MAGIC + (2).to_bytes(4, "big") + b"{}", "cannot be read"),
        (MAGIC + (1).to_bytes(4, "big") + b"\xff", "cannot be read"),
    ],
)
def test_other_bytes_are_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        take_hello(Hello, bytearray(data))


def test_a_stranger_is_named_although_its_first_bytes_come_one_by_one() -> None:
    received = bytearray()
    for byte in bytes(7):
        received.append(byte)
        assert take_hello(Hello, received) is None
    received.append(0)
    with pytest.raises(RemoteProtocolError, match="a slave"):
        take_hello(Hello, received)


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_understood_or_refused(data: bytes, is_ours: bool) -> None:
    received = bytearray(MAGIC + data if is_ours else data)
    with contextlib.suppress(RemoteProtocolError):
        take_hello(Hello, received)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"version": 2}, "version 1 of the protocol, not 2"),
        ({"group": "h"}, "the group 'g', not to 'h'"),
        ({"receiver": "n2"}, "this is member n0, not n2; dLegerPeers of n1"),
        ({"sender": "n7"}, "'n7' is not a peer of member n0; its peers are n1, n2"),
        ({"sender": "n0"}, "'n0' is not a peer"),
        ({"settings": {"size": "2"}}, "size is 2 on n1 and 1 on n0"),
        ({"settings": {}}, "size is not set on n1"),
    ],
)
def test_a_peer_is_told_why_it_is_refused(change: dict[str, object], reason: str) -> None:
    fields = {name: getattr(HELLO, name) for name in HELLO.__struct_fields__}
    problem = judge(Hello(**fields | change))
    assert reason in problem
    assert bool(problem) == bool(reason)
