"""Unique message ids of this process; see ``model.unique_id``.

A forked child draws its own prefix, so that no two processes continue from the same state.
"""

from __future__ import annotations

import os
import secrets
import time

from rocketpost.model.unique_id import UniqueIds
from rocketpost.transport.host import local_ip

_ids: UniqueIds


def draw_prefix(ip: str | None = None) -> None:
    """Begin a new series of ids, with another prefix.

    Args:
        ip: The address in it, if not this host's.
    """
    global _ids
    _ids = UniqueIds(
        ip=ip or local_ip(),
        pid=os.getpid(),
        chance=secrets.token_bytes(4),
        counter=secrets.randbelow(0x10000),
    )


draw_prefix()
os.register_at_fork(after_in_child=draw_prefix)


def unique_id(now_ms: int | None = None) -> str:
    """Return an id that no other message has, made now. Thread-safe."""
    return _ids.next(time.time_ns() // 1_000_000 if now_ms is None else now_ms)
