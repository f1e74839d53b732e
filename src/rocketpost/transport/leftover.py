"""Bytes from the peer of a lost connection that are still in the kernel.

A peer that closes without reading all its answers resets the connection. The next write then fails,
and the event loop abandons the connection with everything that it has not read yet.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

LEFTOVER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Approximate size of a kernel's receive buffer."""
_READ_BYTES: Final = 256 * 1024


def read_leftover(transport: asyncio.BaseTransport, bytes_max: int) -> bytes:
    """Return the bytes that the peer of a lost connection had sent; does not wait.

    Args:
        transport: Its transport, which the event loop closes after ``connection_lost``.
        bytes_max: Maximum number of bytes; the rest is lost.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or transport.get_extra_info("sslcontext") is not None:
        return b""
    parts: list[bytes] = []
    left = min(bytes_max, LEFTOVER_BYTES_MAX)
    try:
        while left > 0 and (data := os.read(sock.fileno(), min(left, _READ_BYTES))):
            parts.append(data)
            left -= len(data)
    except OSError:
        pass  # Nothing is left: the socket is closed, reset or empty.
    return b"".join(parts)
