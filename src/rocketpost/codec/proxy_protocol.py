"""The header that a load balancer sends before the bytes of its client (PROXY protocol, 1 and 2).

Version 1 is a line of text of at most 107 bytes:

    PROXY TCP4 10.1.2.3 192.0.2.1 5555 10911\\r\\n

Version 2 is binary, with big-endian integers:

    signature    12 bytes
    command      uint8   version 2 in the high half; 0 for LOCAL, 1 for PROXY in the low half
    family       uint8   0x11 for TCP over IPv4, 0x21 for TCP over IPv6, 0x00 for unknown
    length       uint16  bytes that follow
    addresses    source and destination address, source and destination port
    extensions   ignored

A header without an address (UNKNOWN, LOCAL) is that of the load balancer's own connection, such as
a check of health: the address of the socket stays.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import Final, NamedTuple

from rocketpost.errors import RemoteProtocolError

LINE_BYTES_MAX: Final = 107
HEADER_BYTES_MAX: Final = 536
"""Most bytes of a header that are accepted; the extensions of large ones are of no use here."""
SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_WORD: Final = b"PROXY "
_PREFIX: Final = struct.Struct(
    ">12s"  # signature
    "B"  # command
    "B"  # family
    "H"  # length
)
_LOCAL: Final = 0x20
_PROXY: Final = 0x21
_ADDRESS_BYTES: Final = {0x11: 4, 0x21: 16}
_FAMILIES: Final = {b"TCP4": 4, b"TCP6": 6}


class ProxyHeader(NamedTuple):
    """A header that is complete.

    Attributes:
        size: Its bytes.
        source: Host and port of the client; None if the header names none.
    """

    size: int
    source: tuple[str, int] | None


def parse_proxy_header(data: bytes) -> ProxyHeader | None:
    """Read the header at the front of a connection's bytes; None if it is not complete yet.

    Raises:
        RemoteProtocolError: The bytes do not begin with a header.
    """
    if data.startswith(_WORD[: len(data)]):
        return _parse_line(data)
    if data.startswith(SIGNATURE[: len(data)]):
        return _parse_binary(data)
    raise RemoteProtocolError("no PROXY header, which this network must send")


def _parse_line(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, LINE_BYTES_MAX)
    if end < 0:
        if len(data) >= LINE_BYTES_MAX:
            raise RemoteProtocolError("malformed PROXY header: the line does not end")
        return None
    size, words = end + 2, data[:end].split(b" ")
    if words[1] == b"UNKNOWN":
        return ProxyHeader(size, None)
    version = _FAMILIES.get(words[1])
    if version is None or len(words) != 6:
        raise RemoteProtocolError(
            "malformed PROXY header: it needs TCP4 or TCP6, and two addresses"
        )
    host, _ = (_address(word, version) for word in words[2:4])
    port, _ = (_port(word) for word in words[4:6])
    return ProxyHeader(size, (host, port))


def _address(word: bytes, version: int) -> str:
    try:
        address = ipaddress.ip_address(word.decode("ascii"))
    except ValueError:
        raise RemoteProtocolError("malformed PROXY header: not an address") from None
    if address.version != version or getattr(address, "scope_id", None):
        raise RemoteProtocolError("malformed PROXY header: an address of another family")
    return _plain(address)


def _port(word: bytes) -> int:
    if not word.isdigit() or len(word) > 5 or int(word) > 65_535:
        raise RemoteProtocolError("malformed PROXY header: not a port")
    return int(word)


def _parse_binary(data: bytes) -> ProxyHeader | None:
    if len(data) < _PREFIX.size:
        return None
    _, command, family, length = _PREFIX.unpack_from(data)
    size = _PREFIX.size + length
    if command not in (_LOCAL, _PROXY):
        raise RemoteProtocolError(f"malformed PROXY header: {command=:#x}")
    if size > HEADER_BYTES_MAX:
        raise RemoteProtocolError(f"PROXY header of {size} bytes; {HEADER_BYTES_MAX} are accepted")
    if command == _PROXY and family and family not in _ADDRESS_BYTES:
        raise RemoteProtocolError(f"PROXY header for another protocol than TCP: {family=:#x}")
    if len(data) < size:
        return None
    if command == _LOCAL or not family:
        return ProxyHeader(size, None)
    width = _ADDRESS_BYTES[family]
    if length < 2 * width + 4:
        raise RemoteProtocolError("malformed PROXY header: its addresses are cut")
    at = _PREFIX.size
    host = _plain(ipaddress.ip_address(data[at : at + width]))
    (port,) = struct.unpack_from(">H", data, at + 2 * width)
    return ProxyHeader(size, (host, port))


def _plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Return an address as a socket shows it: IPv4 in its own form, also within IPv6."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
