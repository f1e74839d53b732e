"""Unique ids of messages (``UNIQ_KEY``), made by the sender. Pure.

    ip        4 or 16 bytes   the sender's address
    pid       2 bytes         low bits of the process id
    chance    4 bytes         random, once per process; Java has a class-loader hash here
    ms        4 bytes         since the month began, local time: Java's tools decode it so
    counter   2 bytes

Written as upper-case hexadecimal digits.
"""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from ipaddress import ip_address


def month_bounds_ms(now_ms: int) -> tuple[int, int]:
    """Return the start of the local month of a time, and the start of the next one."""
    now = datetime.fromtimestamp(now_ms / 1000)
    first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    following = (first + timedelta(days=32)).replace(day=1)
    return int(first.timestamp() * 1000), int(following.timestamp() * 1000)


class UniqueIds:
    """The ids of one process.

    Args:
        ip: The sender's address.
        pid: The process id.
        chance: Four random bytes, different in every process.
        counter: The first value of the counter.
    """

    def __init__(self, *, ip: str, pid: int, chance: bytes, counter: int) -> None:
        assert len(chance) == 4
        packed = ip_address(ip).packed
        self._prefix = (packed + (pid & 0xFFFF).to_bytes(2, "big") + chance).hex().upper()
        self._counter = itertools.count(counter + 1)
        self._epoch_ms = self._epoch_end_ms = 0
        self._stem = -1, ""
        """The last millisecond, and the beginning of its ids; one object, for threads."""

    def next(self, now_ms: int) -> str:
        """Return the next id. Thread-safe."""
        ms, stem = self._stem
        if ms != now_ms:
            stem = self._turn(now_ms)
        return "%s%04X" % (stem, next(self._counter) & 0xFFFF)  # noqa: UP031 - the fastest of all

    def _turn(self, now_ms: int) -> str:
        if now_ms >= self._epoch_end_ms:
            self._epoch_ms, self._epoch_end_ms = month_bounds_ms(now_ms)
        stem = f"{self._prefix}{(now_ms - self._epoch_ms) & 0xFFFF_FFFF:08X}"
        self._stem = now_ms, stem
        return stem
