"""A small file of RocketMQ with our own part after its fields: 4096 bytes, big-endian.

    0    int64 x n   RocketMQ's fields
    64   8 bytes     a magic word, ours from here on
    72   int64 x n   the fields above as they were when this was written
    ...  int64 x m   our fields
    ...  uint32      CRC-32 of everything from 64 on

RocketMQ does not change the bytes after its fields, so our part survives while a Java broker uses
the store. It is valid only while RocketMQ's fields equal our copy. All fields fit in one sector.
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from zlib import crc32

FILE_BYTES: Final = 4096
FOREIGN_BYTES: Final = 64
"""Bytes before our part; a Java broker writes nothing else."""
_CRC: Final = Struct(">I")


class CheckpointPage:
    """Encodes and decodes one kind of such files.

    Args:
        magic: Eight bytes that mark our part.
        theirs: Number of RocketMQ's fields.
        ours: Number of our fields.
    """

    def __init__(self, magic: bytes, *, theirs: int, ours: int) -> None:
        self._magic = magic
        self._count = theirs
        self._theirs = Struct(f">{theirs}q")
        self._ours = Struct(f">8s{theirs + ours}q")

    def encode(self, theirs: tuple[int, ...], ours: tuple[int, ...]) -> bytes:
        """Return the file's contents."""
        part = self._ours.pack(self._magic, *theirs, *ours)
        head = self._theirs.pack(*theirs).ljust(FOREIGN_BYTES, b"\0")
        return (head + part + _CRC.pack(crc32(part))).ljust(FILE_BYTES, b"\0")

    def decode_own(self, data: bytes) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return both parts as we last wrote them, even if Java wrote since; None if damaged."""
        data = data.ljust(FILE_BYTES, b"\0")
        magic, *fields = self._ours.unpack_from(data, FOREIGN_BYTES)
        end = FOREIGN_BYTES + self._ours.size
        is_whole = _CRC.unpack_from(data, end)[0] == crc32(data[FOREIGN_BYTES:end])
        if magic != self._magic or not is_whole:
            return None
        return tuple(fields[: self._count]), tuple(fields[self._count :])

    def decode(self, data: bytes) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """Return both parts, ours only if it can be trusted; a short file counts as zeros."""
        theirs = self._theirs.unpack_from(data.ljust(FILE_BYTES, b"\0"))
        own = self.decode_own(data)
        return theirs, own[1] if own is not None and own[0] == theirs else None
