"""Facts about this host: its address and its memory."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from rocketpost.transport.sockets import find_simulation

_UNROUTED_PROBE: Final = ("192.0.2.1", 9)
"""A documentation address; connecting a datagram sends nothing."""


_CONTAINER_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


def memory_bytes() -> int:
    """Return the memory limit of this process: the machine's, or its container's."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        text = _CONTAINER_LIMIT.read_text().strip()
    except OSError:
        return memory
    return min(memory, int(text)) if text.isdecimal() else memory


def local_ip() -> str:
    """Return the address that this host uses for outgoing connections."""
    simulation = find_simulation()
    if simulation is not None:
        return simulation.local_ip()
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
        # A dual-stack socket shows IPv4 peers as IPv6; ids and records need the plain form.
        return host.removeprefix("::ffff:") if "." in host else host, port
    return "", 0


def address_text(address: tuple[str, int]) -> str:
    """Return an address as ``host:port``, an IPv6 host in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
