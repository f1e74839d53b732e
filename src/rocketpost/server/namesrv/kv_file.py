"""The name server's key-value table on disk: a change is visible once it is saved."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from rocketpost.codec.faults import ServerError, SystemBusy
from rocketpost.errors import ConfigError
from rocketpost.namesrv.kv_config import KvConfig
from rocketpost.store.files import FileSystem, RealFiles
from rocketpost.store.tables import TableFile

WAITING_MAX: Final = 1024
"""Most changes that may wait for the one being written; more are refused."""


class KvFile:
    """Keeps the table and its file in step. Belongs to the event loop.

    Args:
        path: The file; None keeps the table in memory only.
        files: The file system.
    """

    def __init__(self, path: str | None, *, files: FileSystem | None = None) -> None:
        self._path = os.path.abspath(os.path.expanduser(path)) if path else None
        self._file = self._path and TableFile(
            self._path, files=files or RealFiles(), decode=KvConfig.from_text, empty=KvConfig
        )
        self._lock = asyncio.Lock()
        self._waiting = 0
        self.current = KvConfig()
        """The table as it is on disk."""

    def load_blocking(self) -> None:
        """Read the file, if there is one.

        Raises:
            ConfigError: The file cannot be read.
            StoreError: Neither the file nor its backup holds a valid table.
        """
        if not self._file:
            return
        try:
            self.current = self._file.load_blocking()
        except OSError as error:
            raise ConfigError(
                f"kvConfigPath: cannot read {self._path}: {error.strerror or error}"
            ) from error

    async def change(self, change: Callable[[KvConfig], KvConfig]) -> None:
        """Replace the table by the result of ``change``; return once it is on disk.

        Raises:
            SystemBusy: Too many changes wait already.
            ServerError: The table could not be written, and stays as it was.
            Fault: ``change`` refuses.
        """
        if self._waiting >= WAITING_MAX:
            raise SystemBusy(f"{self._waiting} changes of the table wait for the disk already")
        self._waiting += 1
        try:
            async with self._lock:
                after = change(self.current)
                if after is not self.current:
                    await self._save(after)
                    self.current = after
        finally:
            self._waiting -= 1

    async def settle(self) -> None:
        """Wait until no change is being written."""
        async with self._lock:  # the lock is fair: all earlier changes are done then
            return

    async def _save(self, table: KvConfig) -> None:
        if not self._file:
            return
        try:
            await asyncio.to_thread(self._file.save_blocking, table.to_text())
        except OSError as error:
            raise ServerError(
                f"cannot save the table, so it stays as it was: {error.strerror or error}"
            ) from error
