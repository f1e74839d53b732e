"""The record of what users of the console did: one line of JSON each, in a file of mode 0600."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from pathlib import Path
from typing import Final

import msgspec

logger = logging.getLogger(__name__)

KEPT_MAX: Final = 2000
"""Newest lines that the page shows; the file keeps all."""


class AuditLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One act of a user."""

    at_ms: int
    user: str
    address: str
    act: str
    what: str = ""
    command: str = ""
    outcome: str = ""


class AuditLog:
    """Acts of users, newest first in memory and all of them in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept: deque[AuditLine] = deque(maxlen=KEPT_MAX)
        self._lock = asyncio.Lock()

    def load_blocking(self) -> None:
        """Read the newest lines of the file."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - KEPT_MAX * 400))
                lines = file.read().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                self._kept.appendleft(msgspec.json.decode(line, type=AuditLine))
            except msgspec.DecodeError:
                continue  # the first may be cut, and the last torn by a crash

    async def record(
        self,
        *,
        user: str,
        address: str,
        act: str,
        what: str = "",
        command: str = "",
        outcome: str = "",
    ) -> None:
        """Add a line, and return when it is in the file.

        Raises:
            OSError: The file cannot be written.
        """
        line = AuditLine(
            at_ms=time.time_ns() // 1_000_000,
            user=user,
            address=address,
            act=act,
            what=what,
            command=command,
            outcome=outcome,
        )
        async with self._lock:
            await asyncio.to_thread(self._append_blocking, msgspec.json.encode(line) + b"\n")
        self._kept.appendleft(line)
        logger.info("audit: user=%s act=%s what=%s outcome=%s", user, act, what, outcome)

    def newest(self, count: int) -> list[AuditLine]:
        """Return the newest lines, newest first."""
        return list(self._kept)[:count]

    def _append_blocking(self, data: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fdatasync(file.fileno())
