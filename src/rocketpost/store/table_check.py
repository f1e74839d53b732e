"""Checksums of tables under ``config/``, and markers of tables that were saved before.

The last member of the JSON object is ``"rocketpostCheck":"CRC"``: the CRC-32, in hexadecimal, of
the text without that member. RocketMQ ignores it when it reads, and omits it when it writes; a text
without it is accepted unchecked.

An empty file ``config/known/NAME`` marks that the table was saved before. If neither the table nor
its backup exists then, this is not the first start: the table was lost.
"""

from __future__ import annotations

import posixpath
import re
from zlib import crc32

from rocketpost.errors import StoreError
from rocketpost.store.files import FileSystem
from rocketpost.store.layout import KNOWN_NAME

_find_check = re.compile(rb',?\s*"rocketpostCheck":"([0-9a-f]{8})"\s*\}\s*\Z').search


def with_check(data: bytes) -> bytes:
    """Return the text of a JSON object with its checksum as the last member."""
    text = data.rstrip()
    if not text.endswith(b"}"):
        return data
    inside = text[:-1].rstrip()
    comma = b"" if inside.endswith(b"{") else b","
    return b'%b%b\n"rocketpostCheck":"%08x"}' % (inside, comma, crc32(inside + b"}"))


def without_check(data: bytes) -> bytes:
    """Return the text without its checksum.

    Raises:
        StoreError: The text does not match the checksum.
    """
    found = _find_check(data)
    if found is None:
        return data
    text = data[: found.start()] + b"}"
    if crc32(text) != int(found[1], 16):
        raise StoreError("its checksum is wrong")
    return text


class Marker:
    """The empty file that marks a table as saved before. Any thread, but one at a time."""

    def __init__(self, files: FileSystem, table_path: str) -> None:
        self._files = files
        self._directory = posixpath.join(posixpath.dirname(table_path), KNOWN_NAME)
        self._path = posixpath.join(self._directory, posixpath.basename(table_path))
        self._is_set = False

    def is_set_blocking(self) -> bool:
        """Tell whether the table was saved before."""
        return self._files.stat(self._path) is not None

    def set_blocking(self) -> None:
        """Mark the table as saved. A power cut may remove the marker, which does no harm."""
        if not self._is_set:
            self._files.mkdir(self._directory)
            self._files.close(self._files.open(self._path, create=True))
            self._is_set = True
