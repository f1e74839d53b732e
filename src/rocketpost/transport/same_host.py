"""Connections whose two ends are on one host.

Some methods of congestion control, BBR among them, send at a measured pace, with a timer of the
kernel for every few segments. Between two processes of one host there is no path that could be
congested, while the timers cost as much as the sending itself.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final

_PACED: Final = b"bbr"
"""Begins the names of the methods that always send at a pace."""
_UNPACED: Final = b"reno"
"""A method without a pace. Every Linux has it, and lets every process choose it."""


def send_unpaced(sock: socket.socket) -> None:
    """Have a connected socket send without a pace if its peer is on this host."""
    if not hasattr(socket, "TCP_CONGESTION"):
        return
    with contextlib.suppress(OSError):  # lost meanwhile, or not a connection by TCP
        if sock.getsockname()[0] != sock.getpeername()[0]:
            return
        method = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        if method.startswith(_PACED):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _UNPACED)
