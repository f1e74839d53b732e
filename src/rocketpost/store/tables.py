"""Small tables under ``config/``: whole files, replaced at once, the last version as ``.bak``.

The owner's decoding function and a checksum (``store.table_check``) detect a damaged file. A save
writes ``{file}.tmp`` to disk before it is renamed, so at every moment the file or its ``.bak`` is
one that was saved whole. RocketMQ reads and writes the same two names.

A table that is damaged, or was saved before and is missing, is never treated as empty: its ``.bak``
is used, or its contents are found elsewhere, or the start is refused.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable
from typing import Generic, TypeVar

from rocketpost.errors import RocketpostError, StoreError
from rocketpost.store.files import FileSystem, write_all
from rocketpost.store.table_check import Marker, with_check, without_check

logger = logging.getLogger(__name__)

T = TypeVar("T")


class TableFile(Generic[T]):
    """One table on disk. Not thread-safe: one save at a time.

    Args:
        path: The file; ``.bak``, ``.tmp`` and ``.damaged`` are beside it.
        files: The file system.
        decode: Turns the bytes into the table; raises ``ValueError`` or a ``RocketpostError`` if
            they are not a table.
        empty: Makes the table of a store that has no such file.
        is_guarded: Whether the file has a checksum, and a marker that it was saved before, so that
            a table missing later is known to be lost.
        without: Description of a start without a lost table; None if a broker must not start
            without it.
        is_private: Whether only the owner of the process may read the file.
    """

    def __init__(
        self,
        path: str,
        *,
        files: FileSystem,
        decode: Callable[[bytes], T],
        empty: Callable[[], T],
        is_guarded: bool = False,
        without: str | None = None,
        is_private: bool = False,
    ) -> None:
        self._path = path
        self._files = files
        self._decode = decode
        self._empty = empty
        self._marker = Marker(files, path) if is_guarded else None
        self._without = without
        self._is_private = is_private
        self.repair = ""
        """Problem found when the table was loaded, and its repair."""

    @property
    def was_saved(self) -> bool:
        """Whether there is a trace of the table on disk."""
        paths = (self._path, self._path + ".bak")
        is_there = any(self._files.stat(path) is not None for path in paths)
        return is_there or (self._marker is not None and self._marker.is_set_blocking())

    def load_blocking(self) -> T:
        """Return the table in the file or in its ``.bak``, or an empty one if neither exists.

        Raises:
            StoreError: The table was saved before, neither the file nor its ``.bak`` can be read,
                and the broker must not start without it.
        """
        main, backup = self._read(self._path), self._read(self._path + ".bak")
        problem = "is missing" if main is None else "is empty"
        if main:
            try:
                return self._decode(without_check(main))
            except (ValueError, RocketpostError) as error:
                problem = f"is damaged: {error}"
        elif not backup and (self._marker is None or not self._marker.is_set_blocking()):
            return self._empty()
        if not backup:
            return self._lost(f"{self._path} {problem}, and there is no .bak")
        try:
            table = self._decode(without_check(backup))
        except (ValueError, RocketpostError) as error:
            return self._lost(f"{self._path} {problem}, and {self._path}.bak is damaged: {error}")
        if main is not None:  # or the next save would overwrite the good .bak with it
            self._files.rename(self._path, self._path + ".damaged")
        self.repair = f"{posixpath.basename(self._path)} {problem}; the previous version is used"
        logger.warning("table %s; the previous version is used path=%s", problem, self._path)
        return table

    def _lost(self, problem: str) -> T:
        if self._without is None:
            raise StoreError(
                f"{problem}. Restore a copy of it; or, to continue without its contents, "
                "replace it with a file that contains {} and delete its .bak"
            )
        for path in (self._path, self._path + ".bak"):
            if self._files.stat(path) is not None:
                self._files.rename(path, path + ".damaged")
        self.repair = f"{problem}; {self._without}"
        logger.error("table lost: %s; %s", problem, self._without)
        return self._empty()

    def save_blocking(self, data: bytes) -> None:
        """Replace the file with ``data``, durably; after an ``OSError`` the last version stays.

        Raises:
            StoreError: ``data`` could not be decoded again; nothing was changed.
        """
        try:
            self._decode(data)
        except (ValueError, RocketpostError) as error:
            raise StoreError(f"refusing to save {self._path}: {error}") from error
        directory = posixpath.dirname(self._path)
        if self._files.stat(directory) is None:
            self._files.mkdir(directory)
            self._files.fsync_dir(posixpath.dirname(directory))
        text = data if self._marker is None else with_check(data)
        self._write(self._path + ".tmp", text)
        if self._files.stat(self._path) is not None:
            self._files.rename(self._path, self._path + ".bak")
        self._files.rename(self._path + ".tmp", self._path)
        self._files.fsync_dir(directory)
        if self._marker is not None:
            self._marker.set_blocking()

    def _write(self, path: str, data: bytes) -> None:
        files = self._files
        fd = files.create_private(path) if self._is_private else files.open(path, create=True)
        try:
            self._files.ftruncate(fd, 0)
            write_all(self._files, fd, data, 0)
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)

    def _read(self, path: str) -> bytes | None:
        """Return the contents, or None if there is no such file."""
        stat = self._files.stat(path)
        if stat is None:
            return None
        if stat.is_directory:
            raise StoreError(f"{path} is a directory")
        fd = self._files.open(path)
        try:
            return self._files.pread(fd, stat.size, 0) if stat.size else b""
        finally:
            self._files.close(fd)
