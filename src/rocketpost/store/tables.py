"""Small tables under ``config/``: whole files, replaced at once, with the one before as ``.bak``.

What the bytes mean is not known here; a decoding function that the owner gives tells good from bad.
Saving goes through ``{file}.tmp``, which is on disk before it gets its name, so at every moment the
file or its ``.bak`` is one that was saved whole. RocketMQ reads and leaves the same two names.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable
from typing import Generic, TypeVar

from rocketpost.errors import RocketpostError, StoreError
from rocketpost.store.files import FileSystem, write_all

logger = logging.getLogger(__name__)

T = TypeVar("T")


class TableFile(Generic[T]):
    """One table on disk. Not thread-safe: one save at a time.

    Args:
        path: The file; ``.bak``, ``.tmp`` and ``.damaged`` lie beside it.
        files: The file system.
        decode: Turns the bytes into the table; raises ``ValueError`` or a ``RocketpostError``
            if they are none.
        empty: Makes the table of a store that has no such file.
    """

    def __init__(
        self,
        path: str,
        *,
        files: FileSystem,
        decode: Callable[[bytes], T],
        empty: Callable[[], T],
    ) -> None:
        self._path = path
        self._files = files
        self._decode = decode
        self._empty = empty

    def load_blocking(self) -> T:
        """Return the table of the file, else of its ``.bak``, else an empty one.

        Raises:
            StoreError: There is a file, but neither it nor its ``.bak`` can be read.
        """
        main = self._read(self._path)
        if main:
            try:
                return self._decode(main)
            except (ValueError, RocketpostError) as error:
                problem = error
                logger.warning("table damaged, trying its .bak path=%s error=%s", self._path, error)
        backup = self._read(self._path + ".bak")
        if not backup:
            if main:
                raise StoreError(f"{self._path} is damaged and has no .bak: {problem}") from problem
            return self._empty()
        try:
            table = self._decode(backup)
        except (ValueError, RocketpostError) as error:
            raise StoreError(f"{self._path}.bak is damaged: {error}") from error
        if main is not None:  # else the next save would put it in the place of the good .bak
            self._files.rename(self._path, self._path + ".damaged")
        return table

    def save_blocking(self, data: bytes) -> None:
        """Return once ``data`` is the file on disk; after an ``OSError`` the one before still is.

        Raises:
            StoreError: ``data`` would not be readable again; nothing was changed.
        """
        try:
            self._decode(data)
        except (ValueError, RocketpostError) as error:
            raise StoreError(f"refusing to save {self._path}: {error}") from error
        directory = posixpath.dirname(self._path)
        if self._files.stat(directory) is None:
            self._files.mkdir(directory)
            self._files.fsync_dir(posixpath.dirname(directory))
        self._write(self._path + ".tmp", data)
        if self._files.stat(self._path) is not None:
            self._files.rename(self._path, self._path + ".bak")
        self._files.rename(self._path + ".tmp", self._path)
        self._files.fsync_dir(directory)

    def _write(self, path: str, data: bytes) -> None:
        fd = self._files.open(path, create=True)
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
