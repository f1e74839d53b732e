"""The file ``index-progress``: the file and entry up to which the key index is on disk.

file name 17, zero 3, number of the next entry 4, CRC-32 of those 4
"""

from __future__ import annotations

import posixpath
from struct import Struct
from typing import Final
from zlib import crc32

from rocketpost.store.files import FileSystem, read_whole_blocking, write_whole_blocking

_FIELDS: Final = Struct(">17s3xi")
_CRC: Final = Struct(">I")


class IndexProgress:
    """Reads and writes the file. Belongs to the thread that holds the index's sync lock."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._written: tuple[str, int] | None = None

    def read(self) -> tuple[str, int] | None:
        """Return the index file's name and the number of its next entry; None if not known."""
        data = read_whole_blocking(self._files, self._path)
        if len(data) != _FIELDS.size + _CRC.size:
            return None
        name, number = _FIELDS.unpack_from(data)
        if _CRC.unpack_from(data, _FIELDS.size) != (crc32(data[: _FIELDS.size]),):
            return None
        return name.decode("ascii"), number

    def write_blocking(self, name: str, number: int) -> None:
        """Record, durably, that all entries before ``number`` of a file are on disk."""
        if (name, number) == self._written:
            return
        data = _FIELDS.pack(name.encode("ascii"), number)
        write_whole_blocking(self._files, self._path, data + _CRC.pack(crc32(data)))
        self._written = (name, number)

    def remove_blocking(self) -> None:
        """Record, durably, that there is no entry."""
        self._written = None
        if self._files.stat(self._path) is not None:
            self._files.unlink(self._path)
            self._files.fsync_dir(posixpath.dirname(self._path))
