"""The address of this host."""

from __future__ import annotations

import socket
from typing import Final

_UNROUTED_PROBE: Final = ("192.0.2.1", 9)
"""A documentation address; connecting a datagram sends nothing."""


def local_ip() -> str:
    """Return the address that this host would use to speak to others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_UNROUTED_PROBE)
            ip: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return ip


def parse_address(value: object) -> tuple[str, int]:
    """Return host and port of an address as a socket gives it."""
    if isinstance(value, tuple) and len(value) >= 2:
        host, port = str(value[0]), int(value[1])
        # A dual-stack socket shows IPv4 peers in IPv6 clothes; ids and records need the plain form.
        return host.removeprefix("::ffff:") if "." in host else host, port
    return "", 0
