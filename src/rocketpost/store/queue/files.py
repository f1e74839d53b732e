"""Files of consume queues: sparse, of one exact size, written and read by position.

Entry ``n`` of a queue is at byte ``20 * n`` of its concatenated files. When a queue begins in the
middle of a file, the part before it is filled with entries (0, 0x7FFFFFFF, 0), since Java stops
reading a queue at the first empty entry. Few descriptors are kept, however many queues there are.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from functools import lru_cache
from struct import Struct
from typing import Final

from rocketpost.store.descriptors import cache_count_max
from rocketpost.store.files import Buffer, FileSystem, write_all
from rocketpost.store.layout import file_name, parse_file_name
from rocketpost.store.writing_lock import WritingLock

logger = logging.getLogger(__name__)

ENTRY: Final = Struct(">qiq")
"""Position of the record, its size, tags code."""
ENTRY_BYTES: Final = ENTRY.size
FILLER_SIZE: Final = 0x7FFF_FFFF
FILLER: Final = ENTRY.pack(0, FILLER_SIZE, 0)
DESCRIPTOR_COUNT_MAX: Final = 256
AHEAD_COUNT: Final = 512
"""Number of entries that are read at once for a reader of a few; it will ask for the next ones."""
_AHEAD_QUEUES_MAX: Final = 512
_FILLERS_AT_ONCE: Final = 4096
_PATHS_KEPT: Final = 1024


class QueueFiles:
    """Reads and writes entries by queue directory. For the loop thread, except `*_blocking`."""

    def __init__(self, files: FileSystem, *, file_bytes: int) -> None:
        assert file_bytes % ENTRY_BYTES == 0
        self.files = files
        self.file_bytes = file_bytes
        self.entries_per_file = file_bytes // ENTRY_BYTES
        self.writing = WritingLock()
        """Held for each write, so that a queue is not written while its directory is moved."""
        self.unsynced: deque[str] = deque()
        """Files written by the loop thread since they were last made durable."""
        self.unsynced_directories: deque[str] = deque()
        """Queue directories that got a file since they were last made durable."""
        self._share = cache_count_max(DESCRIPTOR_COUNT_MAX)
        self._readers: OrderedDict[str, int] = OrderedDict()
        self._writers: OrderedDict[str, int] = OrderedDict()
        self._ahead: dict[str, tuple[int, bytes]] = {}
        """Entries that were read ahead, by queue directory: offset of the first, and their bytes.

        It is replaced whenever entries change that were final, so that nothing read before is kept.
        """

    def path(self, directory: str, offset: int) -> str:
        """Return the file that holds entry ``offset``."""
        at = offset * ENTRY_BYTES
        return _join(directory, at - at % self.file_bytes)

    def starts(self, directory: str) -> list[int]:
        """Return the first entry offset of every file of a queue, in order."""
        found = []
        for name in self.files.listdir(directory):
            start = parse_file_name(name)
            if start is not None:
                found.append(start // ENTRY_BYTES)
        return found

    def is_aligned(self, offset: int) -> bool:
        """Tell whether a file may begin with this entry."""
        return offset % self.entries_per_file == 0

    def restore_size(self, path: str) -> None:
        """Extend a file that is too short to its full size; missing entries read as empty.

        An entry that was cut in the middle counts as missing.
        """
        found = self.files.stat(path)
        size = found.size if found is not None else 0
        fd = self.files.open(path, write=True)
        try:
            self.files.ftruncate(fd, size - size % ENTRY_BYTES)
            self.files.ftruncate(fd, self.file_bytes)
        finally:
            self.files.close(fd)
        self.unsynced.append(path)

    def read(self, directory: str, offset: int, count: int, final_end: int = 0) -> bytes:
        """Return up to ``count`` entries from ``offset`` on, of one file. For the loop thread.

        Args:
            directory: The queue's directory.
            offset: The first entry.
            count: The number of entries.
            final_end: Entries before this offset are in the files and do not change any more, so
                that they may be read ahead.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        ahead = self._ahead
        kept = ahead.get(directory)
        if kept is not None:
            at = (offset - kept[0]) * ENTRY_BYTES
            end = at + count * ENTRY_BYTES
            if at >= 0 and end <= len(kept[1]):
                return kept[1][at:end]
        fd = self._descriptor(self._readers, self.path(directory, offset), write=False)
        at = offset % self.entries_per_file
        count = min(count, self.entries_per_file - at)
        more = min(AHEAD_COUNT, self.entries_per_file - at, final_end - offset)
        if not 1 < count < more:
            return self.files.pread(fd, count * ENTRY_BYTES, at * ENTRY_BYTES)
        found = self.files.pread(fd, more * ENTRY_BYTES, at * ENTRY_BYTES)
        if len(ahead) >= _AHEAD_QUEUES_MAX:
            ahead.clear()
        ahead[directory] = offset, found  # unknown to later readers if entries changed meanwhile
        return found[: count * ENTRY_BYTES]

    def read_blocking(self, directory: str, offset: int, count: int) -> bytes:
        """Return up to ``count`` entries of one file; empty if it does not exist. Any thread."""
        try:
            fd = self.files.open(self.path(directory, offset))
        except FileNotFoundError:
            return b""
        try:
            at = offset % self.entries_per_file
            count = min(count, self.entries_per_file - at)
            return self.files.pread(fd, count * ENTRY_BYTES, at * ENTRY_BYTES)
        finally:
            self.files.close(fd)

    def write(self, directory: str, offset: int, data: bytes | bytearray) -> None:
        """Write whole entries from ``offset`` on. For the loop thread."""
        at = offset % self.entries_per_file * ENTRY_BYTES
        with self.writing.first():
            if at + len(data) <= self.file_bytes:
                self._write(directory, self.path(directory, offset), at, data)
                return
            for path, begin, part in self._parts(directory, offset, data):
                self._write(directory, path, begin, part)

    def _write(self, directory: str, path: str, at: int, data: Buffer) -> None:
        if path not in self._writers:
            self._create(directory, path, at)
        write_all(self.files, self._descriptor(self._writers, path, write=True), data, at)
        self.unsynced.append(path)

    def write_blocking(self, directory: str, offset: int, data: bytes) -> list[str]:
        """Write whole entries through new descriptors; returns the files. Call it locked."""
        assert self.writing.is_locked()
        written = []
        for path, at, part in self._parts(directory, offset, data):
            self._create(directory, path, at)
            fd = self.files.open(path, write=True)
            try:
                write_all(self.files, fd, part, at)
            finally:
                self.files.close(fd)
            written.append(path)
        return written

    def overwrite_blocking(self, directory: str, offset: int, entry: bytes) -> None:
        """Write one entry into a file that exists. Call it locked; any thread.

        Raises:
            OSError: There is no such file, or it cannot be written.
        """
        assert self.writing.is_locked()
        path = self.path(directory, offset)
        fd = self.files.open(path, write=True)
        try:
            write_all(self.files, fd, entry, offset % self.entries_per_file * ENTRY_BYTES)
        finally:
            self.files.close(fd)
            self._ahead = {}
        self.unsynced.append(path)

    def truncate(self, directory: str, end: int) -> None:
        """Make every entry from ``end`` on empty, unlinking files that begin there or later.

        The newest comes first: files left behind after a gap would be taken for the newest of the
        queue at the next start.
        """
        with self.writing.first():
            self._truncate(directory, end)

    def _truncate(self, directory: str, end: int) -> None:
        self._ahead = {}
        for start in reversed(self.starts(directory)):
            path = self.path(directory, start)
            if start >= end and start > 0:
                self.forget(path)
                self.files.unlink(path)
                self.unsynced_directories.append(directory)
            elif start + self.entries_per_file > end:
                fd = self.files.open(path, write=True)
                try:
                    self.files.ftruncate(fd, max(0, end - start) * ENTRY_BYTES)
                    self.files.ftruncate(fd, self.file_bytes)
                finally:
                    self.files.close(fd)
                self.unsynced.append(path)

    def forget(self, path: str) -> None:
        """Close the descriptors of a file that is being removed."""
        self._ahead = {}
        for cache in (self._readers, self._writers):
            fd = cache.pop(path, None)
            if fd is not None:
                self.files.close(fd)

    def forget_directory(self, directory: str) -> None:
        """Close the descriptors under a directory that is being removed."""
        self._ahead = {}
        prefix = directory + "/"
        for path in [*self._readers, *self._writers]:
            if path.startswith(prefix):
                self.forget(path)

    def close(self) -> None:
        """Close every descriptor."""
        for cache in (self._readers, self._writers):
            for fd in cache.values():
                self.files.close(fd)
            cache.clear()

    def _parts(
        self, directory: str, offset: int, data: bytes | bytearray
    ) -> list[tuple[str, int, Buffer]]:
        at = offset % self.entries_per_file * ENTRY_BYTES
        if at + len(data) <= self.file_bytes:
            return [(self.path(directory, offset), at, data)]
        parts: list[tuple[str, int, Buffer]] = []
        whole = bytes(data)
        while whole:
            at = offset % self.entries_per_file * ENTRY_BYTES
            part, whole = whole[: self.file_bytes - at], whole[self.file_bytes - at :]
            parts.append((self.path(directory, offset), at, part))
            offset += len(part) // ENTRY_BYTES
        return parts

    def _create(self, directory: str, path: str, first_byte: int) -> None:
        found = self.files.stat(path)
        if found is not None and found.size == self.file_bytes:
            return
        self.files.mkdir(directory)
        self.unsynced_directories.append(directory)
        fd = self.files.open(path, create=True)
        try:
            for at in range(0, first_byte, _FILLERS_AT_ONCE * ENTRY_BYTES):
                count = min(_FILLERS_AT_ONCE, (first_byte - at) // ENTRY_BYTES)
                write_all(self.files, fd, FILLER * count, at)
            # Last, since a file of the full size counts as made: a write that found no room is
            # done again.
            self.files.ftruncate(fd, self.file_bytes)
        finally:
            self.files.close(fd)

    def _descriptor(self, cache: OrderedDict[str, int], path: str, *, write: bool) -> int:
        fd = cache.get(path)
        if fd is not None:
            cache.move_to_end(path)
            return fd
        fd = self.files.open(path, write=write)
        cache[path] = fd
        if len(cache) > min(DESCRIPTOR_COUNT_MAX, self._share):
            self.files.close(cache.popitem(last=False)[1])
        return fd


@lru_cache(maxsize=_PATHS_KEPT)
def _join(directory: str, start: int) -> str:
    """Return the path of the file whose first byte is at ``start``."""
    return f"{directory}/{file_name(start)}"
