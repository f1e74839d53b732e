"""Connections whose two ends are on one host.

Some methods of congestion control, BBR among them, send at a measured pace, with a timer of the
kernel for every few segments. Two processes of one host share no network path that could be
congested, and the timers cost as much as the sending itself. A socket that had such a method when
it was connected keeps a pace even if it gets another method later. So the method is replaced before
that, and restored once the peer turns out to be on another host.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final

_PACED: Final = b"bbr"
"""Begins the names of the methods that always send at a pace."""
_UNPACED: Final = b"reno"
"""A method without a pace. Every Linux has it, and lets every process choose it."""
_NAME_BYTES_MAX: Final = 16


def put_pace_off(sock: socket.socket) -> bytes:
    """Let a socket that is going to listen or to connect begin without a pace.

    Returns:
        The method for :func:`pace_to_others` to restore; empty if nothing was changed.
    """
    if not hasattr(socket, "TCP_CONGESTION"):  # Linux has it
        return b""
    option = socket.IPPROTO_TCP, socket.TCP_CONGESTION
    method = sock.getsockopt(*option, _NAME_BYTES_MAX).rstrip(b"\0")
    if not method.startswith(_PACED):
        return b""
    sock.setsockopt(*option, _UNPACED)
    return method


def pace_to_others(sock: socket.socket, method: bytes) -> None:
    """Restore the method of a connected socket, unless the peer is on this host."""
    if not method:
        return
    with contextlib.suppress(OSError):  # it is lost; its reader notices that
        if sock.getsockname()[0] != sock.getpeername()[0]:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, method)
