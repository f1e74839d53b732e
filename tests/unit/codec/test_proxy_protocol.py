from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.proxy_protocol import (
    HEADER_BYTES_MAX,
    SIGNATURE,
    ProxyHeader,
    parse_proxy_header,
)
from rocketpost.errors import RemoteProtocolError

LINE = b"PROXY TCP4 10.1.2.3 192.0.2.1 5555 10911\r\n"


def binary(command: int, family: int, addresses: bytes) -> bytes:
    return SIGNATURE + struct.pack(">BBH", command, family, len(addresses)) + addresses


IPV4 = binary(0x21, 0x11, bytes([10, 1, 2, 3, 192, 0, 2, 1]) + struct.pack(">HH", 5555, 10911))
IPV6 = binary(0x21, 0x21, bytes(15) + b"\x01" + bytes(16) + struct.pack(">HH", 7, 8) + b"extra")


@pytest.mark.parametrize(
    ("data", "source"),
    [
        (LINE, ("10.1.2.3", 5555)),
        (b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n", ("2001:db8::1", 1)),
        (b"PROXY TCP6 ::ffff:10.1.2.3 ::1 1 2\r\n", ("10.1.2.3", 1)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN whatever there is\r\n", None),
        (IPV4, ("10.1.2.3", 5555)),
        (IPV6, ("::1", 7)),
        (binary(0x20, 0x11, bytes(12)), None),
        (binary(0x21, 0x00, b""), None),
    ],
)
def test_headers_of_both_versions(data: bytes, source: tuple[str, int] | None) -> None:
    assert parse_proxy_header(data + b"\x00\x00rest") == ProxyHeader(len(data), source)


@pytest.mark.parametrize("data", [LINE, IPV4, IPV6])
def test_an_incomplete_header_waits(data: bytes) -> None:
    for cut in range(1, len(data)):
        assert parse_proxy_header(data[:cut]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x70",
        b"\x16\x03\x01",
        b"PROXI",
        b"PROXY TCP4 10.1.2.3\r\n",
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP4 10.1.2.3 10.1.2.4 70000 2\r\n",
        b"PROXY TCP4 10.1.2.3 10.1.2.4 +1 2\r\n",
        b"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n",
        b"PROXY UDP4 10.1.2.3 10.1.2.4 1 2\r\n",
        b"PROXY TCP4 " + b"1" * 100,
        binary(0x11, 0x11, bytes(12)),
        binary(0x21, 0x31, bytes(216)),
        binary(0x21, 0x11, bytes(11)),
        binary(0x21, 0x11, bytes(HEADER_BYTES_MAX)),
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="PROXY header"):
        parse_proxy_header(data)


@given(st.binary(max_size=600), st.sampled_from([b"", b"PROXY TCP4 ", SIGNATURE + b"\x21\x11"]))
def test_any_bytes_are_understood_or_refused(data: bytes, front: bytes) -> None:
    try:
        header = parse_proxy_header(front + data)
    except RemoteProtocolError:
        return
    assert header is None or 0 < header.size <= HEADER_BYTES_MAX
