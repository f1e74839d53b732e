"""One file of a segmented log: written by ``pwrite``, read through a read-only map."""

from __future__ import annotations

import logging
from typing import Final

from rocketpost.store.files import Buffer, FileSystem, write_all

logger = logging.getLogger(__name__)

_WARM_BYTES: Final = 1024 * 1024
"""Size of one read into memory."""


class ReadPages:
    """The pages of the log that were read last. Valid until other work of the process runs."""

    __slots__ = ("end", "start")

    def __init__(self) -> None:
        self.start = self.end = 0  # positions in the log


class Segment:
    """A file of fixed size that starts at position ``start``. Opened and mapped when needed.

    The loop thread writes and reads; the flusher thread calls :meth:`sync_blocking` only. A map
    lives as long as a view of it does, so a reader may hold one past :meth:`close`.
    """

    __slots__ = ("_fd", "_files", "_view", "path", "size", "start")

    def __init__(
        self, files: FileSystem, path: str, *, start: int, size: int, fd: int = -1
    ) -> None:
        self._files = files
        self._fd = fd
        self._view: memoryview | None = None
        self.path = path
        self.start = start
        self.size = size

    @property
    def end(self) -> int:
        """The log position after the last byte of this file."""
        return self.start + self.size

    @property
    def fd(self) -> int:
        """A descriptor for writing, kept until :meth:`close`."""
        if self._fd < 0:
            self._fd = self._files.open(self.path, write=True)
        return self._fd

    def open(self) -> None:
        """Open the file for writing now, while a failure can still be reported."""
        if self._fd < 0:
            self._fd = self._files.open(self.path, write=True)

    def view(self) -> memoryview:
        """Return the whole file as a read-only view.

        A file that was cut short is extended to its full size; the missing bytes read as zeros.
        """
        if self._view is None:
            fd = self._files.open(self.path)
            try:
                self._view = self._files.map(fd, self.size)
            except ValueError:  # Python does not map past the end of a file
                self._view = self._restore_and_map()
            finally:
                self._files.close(fd)
        return self._view

    def _restore_and_map(self) -> memoryview:
        logger.error("segment was cut short, its size is restored path=%s", self.path)
        fd = self._files.open(self.path, write=True)
        try:
            self._files.ftruncate(fd, self.size)
            return self._files.map(fd, self.size)
        finally:
            self._files.close(fd)

    def is_readable(self, offset: int, size: int) -> bool:
        """Read bytes into memory, so that a view of them can be used; False if that fails.

        A view of a sector that the disk cannot read, or of bytes that were cut off the file, ends
        the process with a signal.
        """
        if not 0 <= offset < self.size or size <= 0:
            return False
        try:
            if self._files.populate(self._view or self.view(), offset, size):
                return True
            size = min(size, self.size - offset)
            fd = self._files.open(self.path)
            try:
                return len(self._files.pread(fd, size, offset)) == size
            finally:
                self._files.close(fd)
        except OSError:
            return False

    def is_cached(self, offset: int, size: int) -> bool:
        """Tell whether bytes are in memory; True if that is unknown."""
        try:
            return self._files.is_cached(self.path, offset, min(size, self.size - offset))
        except OSError:
            return True  # the read that follows reports it

    def warm_blocking(self, offset: int, size: int) -> None:
        """Read bytes into memory. Any thread.

        Raises:
            OSError: They cannot be read.
        """
        end = min(offset + size, self.size)
        fd = self._files.open(self.path)
        try:
            while offset < end:
                found = self._files.pread(fd, min(_WARM_BYTES, end - offset), offset)
                if not found:
                    return
                offset += len(found)
        finally:
            self._files.close(fd)

    def data_ranges(self, offset: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of [``offset``, ``end``) of this file that may be other than zeros."""
        return self._files.data_ranges(self.fd, offset, end)

    def zero_from(self, offset: int) -> None:
        """Zero every byte from ``offset`` of this file on, and keep its full size.

        Raises:
            OSError: The room cannot be reserved again.
        """
        self._files.ftruncate(self.fd, offset)
        self._files.fallocate(self.fd, self.size)

    def erase_from(self, offset: int) -> None:
        """Zero every byte from ``offset`` of this file on, even if no room can be reserved.

        Raises:
            OSError: The bytes could not be erased.
        """
        self._files.ftruncate(self.fd, offset)
        try:
            self._files.fallocate(self.fd, self.size)
        except OSError as error:
            logger.warning("room not reserved path=%s reason=%s", self.path, error.strerror)
            self._files.ftruncate(self.fd, self.size)

    def write(self, data: Buffer, offset: int) -> None:
        """Write at ``offset`` of this file."""
        fd = self._fd if self._fd >= 0 else self.fd
        taken = self._files.pwrite(fd, data, offset)
        if taken < len(data):  # the system wrote a part
            write_all(self._files, fd, memoryview(data)[taken:], offset + taken)

    def send(self, socket_fd: int, offset: int, size: int) -> int:
        """Send bytes to a socket without a copy in between; returns how many it took.

        For the segment that is written: its descriptor is open.
        """
        return self._files.send_file(socket_fd, self.fd, offset, size)

    def reader(self) -> SegmentReader:
        """Open the file for reading, with a descriptor of its own.

        Raises:
            OSError: It cannot be opened.
        """
        return SegmentReader(self._files, self)

    def sync_blocking(self) -> None:
        """Return once the file is on disk."""
        self._files.fdatasync(self.fd)

    @property
    def is_mapped(self) -> bool:
        """Whether the file is mapped for readers."""
        return self._view is not None

    def unmap(self) -> None:
        """Release the map and its descriptor; the next reader maps the file again."""
        self._view = None

    def close(self) -> None:
        """Release the descriptor and the map; existing views stay valid."""
        self.unmap()
        self.close_descriptor()

    def close_descriptor(self) -> None:
        """Close the descriptor for writing; the next write opens the file again."""
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1


class SegmentReader:
    """A descriptor for a segment, independent of those that the segment itself opens and closes.

    Not thread-safe: belongs to one reader.
    """

    __slots__ = ("_fd", "_files", "start")

    def __init__(self, files: FileSystem, segment: Segment) -> None:
        self._files = files
        self._fd = files.open(segment.path)
        self.start = segment.start

    def send(self, socket_fd: int, offset: int, size: int) -> int:
        """Send bytes to a socket without a copy in between; returns how many it took."""
        return self._files.send_file(socket_fd, self._fd, offset, size)

    def close(self) -> None:
        """Release the descriptor."""
        self._files.close(self._fd)
