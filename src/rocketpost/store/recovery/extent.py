"""The ``extent`` file: the minimum contents of the store's files. 44 bytes, big-endian.

    0    8 bytes   b"RPEXTNT1"
    8    int64     the commit log begins here or earlier
    16   int64     every byte of the log before this was made durable
    24   int64     sum of the first offsets of all queues' first files, or less
    32   8 bytes   digest of the machine's boot id, zeros if it is not known
    40   uint32    CRC-32 of the bytes 0 to 40

The checkpoint states similar facts about once a minute. This file is overwritten after each sync of
the log, but synced itself only with a checkpoint and before files are removed. So after a kill it
is exact, and after a power cut it may state too little, but never too much: it is written after the
bytes that it covers. A start that finds less than this knows that bytes or files were lost. It is
valid only with our own checkpoint, since a Java broker that used the store does not update it. On a
full disk there may be no such file: the store works, and removes files, without it.
"""

from __future__ import annotations

import errno
import logging
import threading
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from rocketpost.store.files import FileSystem, read_whole_blocking, write_all
from rocketpost.store.log.segmented_log import SegmentedLog
from rocketpost.store.queue.table import QueueTable

logger = logging.getLogger(__name__)

_MAGIC: Final = b"RPEXTNT1"
_FIELDS: Final = Struct(">8sqqq8s")
_UNKNOWN_BOOT: Final = bytes(8)
_CRC: Final = Struct(">I")
FILE_BYTES: Final = _FIELDS.size + _CRC.size


class Extent(NamedTuple):
    """Minimum contents of the log and of the queues."""

    first: int
    """Position at or before which the log begins."""
    durable: int
    """Position before which every byte of the log was on disk."""
    queue_start_sum: int
    """Sum of the offsets at which the first files of all queues begin, or less."""
    boot: bytes = _UNKNOWN_BOOT
    """Digest of the boot id of the machine that wrote this."""

    def is_from_earlier_boot(self, boot: bytes) -> bool:
        """Tell whether the machine was restarted since, so that unsynced pages are lost."""
        return _UNKNOWN_BOOT not in (self.boot, boot) and self.boot != boot


class ExtentFile:
    """Keeps the file up to date. Thread-safe."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._fd = -1
        self._lock = threading.Lock()
        self._written: Extent | None = None

    def load_blocking(self) -> Extent | None:
        """Return the file's contents; None if there is no file, or it is damaged."""
        data = read_whole_blocking(self._files, self._path)
        if len(data) < FILE_BYTES:
            return None
        magic, first, durable, start_sum, boot = _FIELDS.unpack_from(data)
        if magic != _MAGIC or _CRC.unpack_from(data, _FIELDS.size) != (
            crc32(data[: _FIELDS.size]),
        ):
            logger.warning("extent file is damaged, it is written again path=%s", self._path)
            return None
        return Extent(first, durable, start_sum, boot)

    def write_from_thread(self, extent: Extent) -> None:
        """Overwrite the file; that survives a kill of this process, but not a power cut."""
        with self._lock:
            self._write(extent)

    def save_blocking(self, extent: Extent) -> None:
        """Overwrite the file and make it durable."""
        with self._lock:
            is_new = self._fd < 0
            self._write(extent)
            self._files.fdatasync(self._fd)
            if is_new:
                self._files.fsync_dir(self._path.rpartition("/")[0])

    def remove_blocking(self) -> None:
        """Unlink the file, durably; the next write creates it again."""
        self.close()
        with self._lock:
            self._written = None
            if self._files.stat(self._path) is not None:
                self._files.unlink(self._path)
                self._files.fsync_dir(self._path.rpartition("/")[0])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._fd >= 0:
                self._files.close(self._fd)
                self._fd = -1

    def _write(self, extent: Extent) -> None:
        if self._fd < 0:
            self._fd = self._files.open(self._path, create=True)
        if extent == self._written:
            return
        data = _FIELDS.pack(_MAGIC, *extent)
        write_all(self._files, self._fd, data + _CRC.pack(crc32(data)), 0)
        self._written = extent


class ExtentKeeper:
    """Keeps the file in step with the store. Thread-safe."""

    def __init__(
        self, file: ExtentFile, segments: SegmentedLog, queues: QueueTable, *, boot: bytes
    ) -> None:
        self._file = file
        self._boot = boot
        self._segments = segments
        self._queues = queues
        self._saving = threading.Lock()
        self._lock = threading.Lock()  # keeps writes in the order of their facts
        self._start_sum = 0
        self._durable = 0
        self._is_failing = False

    def note_from_thread(self, durable: int) -> None:
        """Record that every byte before ``durable`` is on disk."""
        with self._lock:
            try:
                self._file.write_from_thread(self._extent(durable))
            except OSError as error:
                self._warn(error)
            else:
                self._is_failing = False

    def save_blocking(self, durable: int) -> None:
        """Update the file and make it durable; if there is no room, remove it.

        Raises:
            OSError: The file can be neither written nor removed.
        """
        with self._saving:
            start_sum = self._queues.start_sum()
            with self._lock:
                self._start_sum = start_sum
                try:
                    self._file.save_blocking(self._extent(durable))
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    self._warn(error)
                    # An old file would make a start miss the files about to be removed.
                    self._file.remove_blocking()
                else:
                    self._is_failing = False

    def lower(self, durable: int) -> None:
        """Lower the durable position to ``durable``, where the log was cut."""
        with self._lock:
            self._durable = min(self._durable, durable)

    def _warn(self, error: OSError) -> None:
        # The log itself is on disk; this file only helps to detect later losses.
        if not self._is_failing:
            logger.warning("extent file not written reason=%s", error.strerror)
        self._is_failing = True

    def _extent(self, durable: int) -> Extent:
        self._durable = max(self._durable, durable)
        segments = self._segments.all_from_thread()
        first = segments[0].start if segments else self._durable
        return Extent(first, self._durable, self._start_sum, self._boot)


def read_boot(files: FileSystem) -> bytes:
    """Return the digest of the machine's boot id; zeros if the system has none."""
    name = files.boot_id()
    return blake2b(name.encode(), digest_size=8).digest() if name else _UNKNOWN_BOOT
