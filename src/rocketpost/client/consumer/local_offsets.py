"""Offsets of a broadcasting member in its own file, in RocketMQ's format and location.

    <directory>/<client id>/<group>/offsets.json      {"offsetTable":{{queue}:offset,...}}
    <directory>/<client id>/<group>/offsets.json.bak  the previous one

A new file is written separately, made durable and renamed over the old one, so a crash leaves one
of them intact. If the first cannot be read, the second counts; if neither can, that is an error,
since starting over silently would skip or repeat messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rocketpost.codec.bodies.offset import decode_queue_offsets, encode_queue_offsets
from rocketpost.errors import ClientError, RemoteProtocolError
from rocketpost.model.route import MessageQueue
from rocketpost.transport.inheritance import release_in_child

logger = logging.getLogger(__name__)

DIRECTORY: Final = "~/.rocketmq_offsets"
_FILE: Final = "offsets.json"


class LocalOffsets:
    """The offsets of one member of one group. Belongs to the event loop.

    Args:
        directory: The directory of all members on this machine; the default one if None.
        client_id: The client id; must be the same after a restart.
        group: The consumer group.
    """

    def __init__(self, directory: str | None, client_id: str, group: str) -> None:
        base = Path(directory or DIRECTORY).expanduser()
        self.path = base / client_id / group / _FILE
        self._offsets: dict[MessageQueue, int] = {}
        self._lock: int | None = None
        self._writing = asyncio.Lock()
        release_in_child(self)

    def descriptors(self) -> list[int]:
        """Return the descriptor of the lock, which a forked child releases."""
        return [] if self._lock is None else [self._lock]

    async def open(self) -> None:
        """Read the stored offsets, and lock the file.

        Raises:
            ClientError: Another consumer uses the file, or it cannot be read.
        """
        await asyncio.to_thread(self._open_blocking)

    async def close(self) -> None:
        """Unlock the file."""
        lock, self._lock = self._lock, None
        if lock is not None:
            await asyncio.to_thread(os.close, lock)

    async def load(self, queue: MessageQueue) -> int | None:
        """Return the stored offset; None if the queue was never consumed."""
        return self._offsets.get(queue)

    async def store(self, offsets: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        """Store offsets; keep those of other queues."""
        self._offsets.update(offsets)
        async with self._writing:
            data = encode_queue_offsets(self._offsets)
            try:
                await asyncio.to_thread(self._write_blocking, data)
            except OSError as error:
                logger.error("offsets not stored: file=%s reason=%s", self.path, error)
                return set()
        return set(offsets)

    def _open_blocking(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ClientError(f"cannot use {self.path}: {error}") from error
        try:
            self._lock_blocking(lock)
            self._offsets = self._read_blocking()
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock

    def _lock_blocking(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ClientError(
                f"another consumer uses the offsets in {self.path}; give each its own instance_name"
            ) from None

    def _read_blocking(self) -> dict[MessageQueue, int]:
        problem: Exception | None = None
        for path in (self.path, self._backup):
            with contextlib.suppress(FileNotFoundError):
                try:
                    data = path.read_bytes()
                    if data.strip():
                        return decode_queue_offsets(data)
                except (RemoteProtocolError, PermissionError, IsADirectoryError) as error:
                    problem = error
                logger.warning("offsets not read: file=%s reason=%s", path, problem or "empty")
        if problem is not None:
            raise ClientError(f"the offsets in {self.path} cannot be read: {problem}")
        return {}

    def _write_blocking(self, data: bytes) -> None:
        aside = self.path.with_suffix(".tmp")
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fdatasync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            # A link, not a rename, so that the first file always exists.
            self._backup.unlink(missing_ok=True)
            os.link(self.path, self._backup)
        aside.replace(self.path)

    @property
    def _backup(self) -> Path:
        return self.path.with_name(f"{_FILE}.bak")
