"""Bytes of old log as they are on disk: for comparison with other members, and for repair.

Files are read by ``pread``, as the scrub does: an unreadable sector is then an error that can be
repaired, where a map would end the process. A repair overwrites bytes with those that the group has
agreed on. Readers see them at once, since their maps are of the same file.
"""

from __future__ import annotations

import logging
from hashlib import blake2b
from typing import Final

from rocketpost.errors import StoreError
from rocketpost.store.files import FileSystem, write_all
from rocketpost.store.integrity.damage import DamageRegister
from rocketpost.store.log.segment import Segment
from rocketpost.store.log.segmented_log import SegmentedLog

logger = logging.getLogger(__name__)

DIGEST_BYTES: Final = 16
UNREADABLE: Final = bytes(DIGEST_BYTES)
"""Stands for bytes that the disk cannot read."""


def digest_of(data: bytes) -> bytes:
    """Return the digest by which members compare bytes."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


class OldLog:
    """Reads and repairs committed bytes. Any thread, one call at a time.

    Args:
        files: The file system.
        segments: The segments of the log.
        damage: The damage that is known.
    """

    def __init__(self, files: FileSystem, segments: SegmentedLog, damage: DamageRegister) -> None:
        self._files = files
        self._segments = segments
        self._damage = damage

    def read_blocking(self, begin: int, end: int) -> bytes:
        """Return the bytes ``[begin, end)``, which are in one segment.

        Raises:
            StoreError: The log does not have them.
            OSError: The disk cannot read them.
        """
        segment = self._find(begin, end)
        fd = self._files.open(segment.path)
        try:
            data = self._files.pread(fd, end - begin, begin - segment.start)
        finally:
            self._files.close(fd)
        return data.ljust(end - begin, b"\0")  # a file that was cut short reads as zeros

    def digest_blocking(self, begin: int, end: int) -> bytes:
        """Return the digest of the bytes ``[begin, end)``; zeros if the disk cannot read them.

        Raises:
            StoreError: The log does not have them.
        """
        try:
            return digest_of(self.read_blocking(begin, end))
        except OSError as error:
            logger.error("old log cannot be read position=%s reason=%s", begin, error)
            return UNREADABLE

    def repair_blocking(self, begin: int, data: bytes) -> None:
        """Replace bytes, durably, and forget damage that was found within them.

        Raises:
            StoreError: The log does not have them.
            OSError: They cannot be written; the old bytes may be there in part.
        """
        end = begin + len(data)
        segment = self._find(begin, end)
        fd = self._files.open(segment.path, write=True)
        try:
            write_all(self._files, fd, data, begin - segment.start)
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)
        for damage in self._damage.all():
            if begin <= damage.begin and damage.end <= end:
                self._damage.forget(damage)
        self._damage.save_blocking()

    def _find(self, begin: int, end: int) -> Segment:
        segment = self._segments.find(begin)
        if segment is None or end > segment.end or begin >= end:
            raise StoreError(f"the log has no bytes {begin} to {end} in one segment")
        return segment
