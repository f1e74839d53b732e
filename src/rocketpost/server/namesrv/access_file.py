"""Users and rules of a name server: their file, and the gate made from them."""

from __future__ import annotations

import asyncio
import os

from rocketpost.access.table import AccessTable
from rocketpost.errors import ConfigError, StoreError
from rocketpost.server.access.cipher import load_cipher_blocking
from rocketpost.server.access.control import AUDIT_FILE, AccessControl
from rocketpost.server.access.migration import migrate_blocking
from rocketpost.server.access.table_file import access_file
from rocketpost.server.settings.namesrv import NamesrvConfig
from rocketpost.store.tables import TableFile


class NamesrvAccess:
    """Opens and saves the access control of a name server. Belongs to the event loop."""

    def __init__(self, config: NamesrvConfig) -> None:
        self._config = config
        self._directory = os.path.abspath(os.path.expanduser(config.auth_path))
        self._lock = asyncio.Lock()
        self._file: TableFile[AccessTable] | None = None
        self.control = AccessControl.off()
        """The access control in force, once it is open."""

    async def open(self) -> None:
        """Read users and rules, and add the first users.

        Raises:
            ConfigError: The directory cannot be used, or there would be no super user.
            StoreError: The file is damaged.
        """
        if not self._config.authentication_enabled:
            return
        table = await asyncio.to_thread(self._load_blocking)
        self.control = AccessControl.of(
            table,
            self._config,
            cluster=self._config.cluster_name,
            audit_path=os.path.join(self._directory, AUDIT_FILE),
        )
        await self.save()

    async def save(self) -> None:
        """Return when all changes so far are on disk.

        Raises:
            StoreError: The file cannot be written; its last version is still there.
        """
        if self._file is None:
            return
        async with self._lock:
            text = self.control.table.to_json()
            try:
                await asyncio.to_thread(self._file.save_blocking, text)
            except OSError as error:
                raise StoreError(f"users and rules could not be saved: {error}") from error

    async def close(self) -> None:
        """Wait until no change is being written, and close the audit log."""
        async with self._lock:
            await self.control.close()

    def _load_blocking(self) -> AccessTable:
        cipher = load_cipher_blocking(self._config.secret_key_file)

        try:
            os.makedirs(self._directory, exist_ok=True)
            self._file = access_file(self._directory, cipher)
            table = self._file.load_blocking()
        except OSError as error:
            raise ConfigError(f"authConfigPath: {self._directory}: {error}") from error
        if self._config.migrate_plain_acl:
            migrate_blocking(table, self._config)
        return table
