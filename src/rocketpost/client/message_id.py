"""Unique ids of messages, made by the client that sends them (``UNIQ_KEY``).

    ip        4 or 16 bytes   the client's address
    pid       2 bytes         low bits of the process id
    chance    4 bytes         drawn once per process; Java has a class-loader hash here
    ms        4 bytes         since the month began, local time: Java's tools decode it so
    counter   2 bytes

Written as upper-case hexadecimal digits. A forked child draws its own prefix, so that two processes
never count on from the same state.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from datetime import datetime, timedelta

_UNROUTED_PROBE = ("192.0.2.1", 9)  # a documentation address; connecting a datagram sends nothing


def local_ip() -> str:
    """Return the address that this host would use to speak to others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_UNROUTED_PROBE)
            ip: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return ip


def month_bounds_ms(now_ms: int) -> tuple[int, int]:
    """Return when the local month of a time began and when the next one begins."""
    now = datetime.fromtimestamp(now_ms / 1000)
    first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    following = (first + timedelta(days=32)).replace(day=1)
    return int(first.timestamp() * 1000), int(following.timestamp() * 1000)


class _Ids:
    """The state behind :func:`unique_id`; one per process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start anew: a fresh prefix and counter."""
        packed = _packed_ip(local_ip())
        pid = (os.getpid() & 0xFFFF).to_bytes(2, "big")
        self._prefix = (packed + pid + secrets.token_bytes(4)).hex().upper()
        self._counter = secrets.randbelow(0x10000)
        self._epoch_ms, self._epoch_end_ms = month_bounds_ms(time.time_ns() // 1_000_000)

    def next(self) -> str:
        """Return the next id."""
        counter = self._counter = (self._counter + 1) & 0xFFFF
        now_ms = time.time_ns() // 1_000_000
        if now_ms >= self._epoch_end_ms:
            self._epoch_ms, self._epoch_end_ms = month_bounds_ms(now_ms)
        ms = (now_ms - self._epoch_ms) & 0xFFFF_FFFF
        return "%s%08X%04X" % (self._prefix, ms, counter)  # noqa: UP031 - the fastest of all


def _packed_ip(ip: str) -> bytes:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    return socket.inet_pton(family, ip)


_ids = _Ids()
os.register_at_fork(after_in_child=_ids.reset)

unique_id = _ids.next
"""Return an id that no other message has."""
