"""The store's only interface to the operating system: its files and threads.

The store uses the disk only through :class:`FileSystem`, so that a simulation can fail a call, tear
a write or lose bytes that were never synced; it gets its threads there too. :class:`RealFiles`
makes the real calls, with a few fallbacks for systems that lack one. Paths are plain strings, file
descriptors are integers, errors are ``OSError``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import posixpath
import stat
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from rocketpost.store.descriptors import SPARES, is_shortage, with_spares
from rocketpost.store.log.workers import Step, ThreadWorker, Worker

Buffer = bytes | bytearray | memoryview
"""Types of data that can be written."""

_CAN_READ_ASIDE: Final = hasattr(os, "RWF_NOWAIT") and hasattr(os, "posix_fadvise")
_MADV_POPULATE_READ: Final = 22
_UNREADABLE: Final = (errno.EFAULT, errno.EIO, getattr(errno, "EHWPOISON", 133))
IOV_MAX: Final = 1024
"""Largest number of buffers in one ``pwritev``."""


class FileStat(NamedTuple):
    """Facts about a path that the store uses."""

    size: int
    modified_ms: int
    is_directory: bool


class DiskUsage(NamedTuple):
    """Room on the partition of a path, counted as ``df`` does."""

    total_bytes: int
    used_bytes: int
    free_bytes: int

    @property
    def ratio(self) -> float:
        """Used share of the space that this process may use, 0 to 1."""
        usable = self.used_bytes + self.free_bytes
        return self.used_bytes / usable if usable else 0.0


class FileSystem(Protocol):
    """The file operations that the store needs of an operating system. Thread-safe."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a file, for reading only unless ``write``; ``create`` implies ``write``."""
        ...

    def create_private(self, path: str) -> int:
        """Open a file for writing that only its owner may read; create it if necessary."""
        ...

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        ...

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Read up to ``size`` bytes; fewer only at the end of the file."""
        ...

    def read_aside(self, fd: int, size: int, offset: int) -> bytes:
        """Read as ``pread`` does, without adding pages to the page cache."""
        ...

    def pwrite(self, fd: int, data: Buffer, offset: int) -> int:
        """Write at ``offset``; returns how many bytes were written."""
        ...

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write at most ``IOV_MAX`` buffers back to back; returns how many bytes were written."""
        ...

    def fallocate(self, fd: int, size: int) -> None:
        """Make the file ``size`` bytes long with room reserved for all of them."""
        ...

    def ftruncate(self, fd: int, size: int) -> None:
        """Cut or (sparsely) extend the file."""
        ...

    def data_ranges(self, fd: int, offset: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of [``offset``, ``end``) that may hold bytes other than zeros.

        A file system that cannot tell returns the whole range.
        """
        ...

    def fdatasync(self, fd: int) -> None:
        """Return once the file's bytes, and its length, are on disk."""
        ...

    def fsync_dir(self, path: str) -> None:
        """Return once the names in a directory are on disk."""
        ...

    def sync_all(self, path: str) -> bool:
        """Make the whole file system that holds ``path`` durable; False if not supported."""
        ...

    def send_file(self, socket_fd: int, fd: int, offset: int, size: int) -> int:
        """Send bytes of a file to a socket; returns how many the socket took."""
        ...

    def map(self, fd: int, size: int) -> memoryview:
        """Map the first ``size`` bytes read-only, until the last view of them is released."""
        ...

    def populate(self, view: memoryview, offset: int, size: int) -> bool:
        """Read bytes of a map into memory; returns False if the system does not support it.

        Raises:
            OSError: Some bytes cannot be read. Touching them would end the process (SIGBUS).
        """
        ...

    def is_cached(self, path: str, offset: int, size: int) -> bool:
        """Tell whether the first and the last byte of a range are in memory; True if unknown."""
        ...

    def stat(self, path: str) -> FileStat | None:
        """Return size, modification time and kind, or None if the path does not exist."""
        ...

    def usage(self, path: str) -> DiskUsage:
        """Return the room on the partition of ``path``."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; nothing if it does not exist."""
        ...

    def mkdir(self, path: str) -> None:
        """Make a directory and its parents; no error if it exists."""
        ...

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory within its file system, replacing a file at ``target``."""
        ...

    def boot_id(self) -> str:
        """Return a name of the machine's current start; empty if the system does not tell."""
        ...

    def lock(self, path: str) -> int:
        """Lock a file exclusively, as Java does; ``BlockingIOError`` if it is locked already.

        The lock lasts until the returned descriptor is closed.
        """
        ...

    def make_worker(self, name: str, step: Step) -> Worker:
        """Return a worker that repeats ``step`` once it is started; ``name`` names its thread."""
        ...


_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class RealFiles:
    """The operating system's files. Thread-safe."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """See :class:`FileSystem`."""
        flags = os.O_RDWR if write or create else os.O_RDONLY
        return _open(path, flags | (os.O_CREAT if create else 0))

    def create_private(self, path: str) -> int:
        """See :class:`FileSystem`."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # it may have been opened while others could read it
        return _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)

    def close(self, fd: int) -> None:
        """See :class:`FileSystem`."""
        os.close(fd)
        if SPARES.missing:
            SPARES.refill()

    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    pwritev = staticmethod(os.pwritev)
    ftruncate = staticmethod(os.ftruncate)
    rmdir = staticmethod(os.rmdir)
    unlink = staticmethod(os.unlink)
    rename = staticmethod(os.replace)

    def read_aside(self, fd: int, size: int, offset: int) -> bytes:
        """See :class:`FileSystem`; if the system cannot tell, pages stay cached as after a read."""
        if not _CAN_READ_ASIDE:  # pragma: no cover - not Linux
            return os.pread(fd, size, offset)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
        buffer = bytearray(size)
        with contextlib.suppress(OSError):  # not cached, or the file system cannot tell
            if os.preadv(fd, [buffer], offset, os.RWF_NOWAIT) == size:
                return bytes(buffer)
        data = os.pread(fd, size, offset)
        os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)
        return data

    def fallocate(self, fd: int, size: int) -> None:
        """See :class:`FileSystem`; if the call is missing, no room is reserved."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:  # pragma: no cover - macOS
            os.ftruncate(fd, size)

    def data_ranges(self, fd: int, offset: int, end: int) -> list[tuple[int, int]]:
        """See :class:`FileSystem`; by ``SEEK_DATA``.

        All at once, since reading one part can make the kernel report the next as data.
        """
        found = []
        try:
            while offset < end:
                begin = os.lseek(fd, offset, os.SEEK_DATA)
                if begin >= end:
                    break
                offset = os.lseek(fd, begin, os.SEEK_HOLE)
                found.append((begin, min(offset, end)))
        except OSError as error:
            if error.errno != errno.ENXIO:  # no more data
                return [(offset, end)]
        return found

    def fdatasync(self, fd: int) -> None:
        """See :class:`FileSystem`."""
        if hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        else:  # pragma: no cover - macOS
            os.fsync(fd)

    def fsync_dir(self, path: str) -> None:
        """See :class:`FileSystem`."""
        fd = _open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self, path: str) -> bool:
        """See :class:`FileSystem`; Linux only, by ``syncfs``."""
        if _SYNCFS is None:  # pragma: no cover - not Linux
            return False
        fd = _open(path, os.O_RDONLY)
        try:
            if _SYNCFS(fd) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), path)
        finally:
            os.close(fd)
        return True

    def send_file(self, socket_fd: int, fd: int, offset: int, size: int) -> int:
        """See :class:`FileSystem`."""
        return os.sendfile(socket_fd, fd, offset, size)

    def map(self, fd: int, size: int) -> memoryview:
        """See :class:`FileSystem`."""
        # A map keeps a descriptor of its own.
        return memoryview(with_spares(lambda: mmap.mmap(fd, size, prot=mmap.PROT_READ)))

    def populate(self, view: memoryview, offset: int, size: int) -> bool:
        """See :class:`FileSystem`; by ``MADV_POPULATE_READ``, which Linux has since 5.14."""
        mapped: mmap.mmap = view.obj  # type: ignore[assignment]
        start = offset - offset % mmap.PAGESIZE
        try:
            mapped.madvise(_MADV_POPULATE_READ, start, offset + size - start)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                return False  # the system lacks the call, or has no memory now
            raise
        return True

    def is_cached(self, path: str, offset: int, size: int) -> bool:
        """See :class:`FileSystem`; by ``RWF_NOWAIT``, which Linux has."""
        if not _CAN_READ_ASIDE:  # pragma: no cover - not Linux
            return True
        fd = _open(path, os.O_RDONLY)
        try:
            for at in (offset, offset + size - 1):
                os.preadv(fd, [bytearray(1)], at, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True  # the file system does not tell
        finally:
            os.close(fd)
        return True

    def stat(self, path: str) -> FileStat | None:
        """See :class:`FileSystem`."""
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStat(found.st_size, found.st_mtime_ns // 1_000_000, stat.S_ISDIR(found.st_mode))

    def usage(self, path: str) -> DiskUsage:
        """See :class:`FileSystem`."""
        found = os.statvfs(path)
        total = found.f_blocks * found.f_frsize
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        return DiskUsage(total, used, found.f_bavail * found.f_frsize)

    def listdir(self, path: str) -> list[str]:
        """See :class:`FileSystem`."""
        try:
            return sorted(with_spares(lambda: os.listdir(path)))
        except FileNotFoundError:
            return []

    def mkdir(self, path: str) -> None:
        """See :class:`FileSystem`."""
        os.makedirs(path, exist_ok=True)

    def boot_id(self) -> str:
        """Return a name of the machine's current start; empty if the system does not tell."""
        try:
            with open(_BOOT_ID) as file:
                return file.read().strip()
        except OSError:
            return ""

    def lock(self, path: str) -> int:
        """See :class:`FileSystem`.

        Java takes a POSIX record lock on the first byte. Such a lock does not exclude a second
        opener in the same process, so a ``flock`` is taken as well.
        """
        fd = _open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(fd)
            raise BlockingIOError(error.errno, "locked by another process", path) from error
        return fd

    def make_worker(self, name: str, step: Step) -> Worker:
        """See :class:`FileSystem`."""
        return ThreadWorker(name, step)


def _open(path: str, flags: int, mode: int = 0o644) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC, mode)
    except OSError as error:
        if not is_shortage(error):
            raise
    return with_spares(lambda: os.open(path, flags | os.O_CLOEXEC, mode))


def write_all(files: FileSystem, fd: int, data: Buffer, offset: int) -> None:
    """Write all of ``data`` at ``offset``, with more than one call if the system writes a part."""
    taken = files.pwrite(fd, data, offset)
    if taken == len(data):
        return
    rest = memoryview(data)[taken:]
    while rest:
        offset += taken
        taken = files.pwrite(fd, rest, offset)
        rest = rest[taken:]


def make_directory(files: FileSystem, path: str) -> None:
    """Make a directory and its parents durably, so that a power cut cannot undo it."""
    missing = []
    while path and files.stat(path) is None:
        missing.append(path)
        path = posixpath.dirname(path)
    for directory in reversed(missing):
        files.mkdir(directory)
        files.fsync_dir(posixpath.dirname(directory) or ".")


def _find_syncfs() -> ctypes._FuncPointer | None:
    if not sys.platform.startswith("linux"):  # pragma: no cover
        return None
    with contextlib.suppress(OSError, AttributeError):
        function = ctypes.CDLL(None, use_errno=True).syncfs
        function.argtypes = [ctypes.c_int]
        return function
    return None  # pragma: no cover - a C library without it


_SYNCFS: Final = _find_syncfs()


def read_whole_blocking(files: FileSystem, path: str) -> bytes:
    """Return a file's contents; empty if there is no file."""
    found = files.stat(path)
    if found is None or not found.size:
        return b""
    fd = files.open(path)
    try:
        return files.pread(fd, found.size, 0)
    finally:
        files.close(fd)


def write_whole_blocking(files: FileSystem, path: str, data: bytes) -> None:
    """Write to a file's start and make it and its name durable; bytes after ``data`` stay."""
    is_new = files.stat(path) is None
    fd = files.open(path, create=True)
    try:
        write_all(files, fd, data, 0)
        files.fdatasync(fd)
    finally:
        files.close(fd)
    if is_new:
        files.fsync_dir(path.rpartition("/")[0])
