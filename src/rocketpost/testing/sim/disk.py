"""A disk that forgets what was never synced and fails when told to.

Every file has what programs see (the page cache) and what a power cut would leave. They become one
by ``fdatasync``. Names are the same: making, moving and removing them is forgotten unless the
directory was synced. :meth:`SimulatedDisk.after_power_cut` gives a disk as a power cut may leave
it: of each page and each name, from a seed, the old or the new. The old disk is dead from then on.

A process that is killed loses no page: :meth:`SimulatedDisk.after_kill`.

It also harms files behind everybody's back, as bad disks and people do: ``flip``, ``zero``,
``cut_short``, ``lose``, ``put``.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from collections.abc import Callable, Sequence

from rocketpost.store.files import Buffer, DiskUsage, FileStat
from rocketpost.store.log.workers import Step, Worker
from rocketpost.testing.sim.inode import PAGE, Hash, Inode

_ZEROS = bytes(PAGE)

Fault = Callable[[int, str, str], int | None]
"""Given the number of a call, its name and its path: an errno to fail with, or None."""


class SleepingWorker:
    """A worker of a store that never does a step: a simulation does the work instead."""

    def start(self, seconds: float | None) -> None:
        """Do nothing."""

    def wake(self) -> None:
        """Do nothing."""

    def pause(self, seconds: float) -> None:
        """Wait no time."""

    def close_blocking(self) -> None:
        """Do nothing."""


class SimulatedDisk:
    """A :class:`rocketpost.store.files.FileSystem` in memory. Belongs to one thread.

    Args:
        fault: Makes calls fail.
        capacity: Bytes that fit on it.
    """

    def __init__(self, *, fault: Fault | None = None, capacity: int = 2**40) -> None:
        self._names: dict[str, Inode | None] = {"/": None}  # None is a directory
        self._durable_names: dict[str, Inode | None] = {"/": None}
        self._pending: list[dict[str, Inode | bool | None]] = []  # False: the name is gone
        self._open: dict[int, tuple[str, Inode]] = {}
        self._next_fd = 3
        self._locked: dict[str, int] = {}
        self.fault = fault
        self.capacity = capacity
        self.calls = 0
        self.is_dead = False
        self.log: list[tuple[str, str]] | None = None
        """The calls and their paths, if a list is put here."""
        self.now_ms = 0
        """Time of the next changes of files."""
        self.boot = 1

    def boot_id(self) -> str:
        """Return a name of the machine's current start."""
        return f"boot {self.boot}"

    def make_worker(self, name: str, step: Step) -> Worker:
        """Return a worker that sleeps."""
        return SleepingWorker()

    # -- what may befall it

    def _call(self, name: str, path: str) -> None:
        if self.is_dead:
            raise OSError(errno.EIO, "the machine is off", path)
        self.calls += 1
        if self.log is not None:
            self.log.append((name, path))
        if self.fault is not None:
            code = self.fault(self.calls, name, path)
            if code is not None:
                raise OSError(code, os.strerror(code), path)

    def after_power_cut(self, rng: random.Random, *, keep: float | None = None) -> SimulatedDisk:
        """Return the disk that a power cut leaves; unsynced pages and names survive by chance."""
        keep = rng.choice([0.0, 0.5, 0.9]) if keep is None else keep
        names = dict(self._durable_names)
        for changes in self._pending:
            if rng.random() < keep:
                _apply(names, changes)
        disk = self._successor(names, lambda inode: inode.after_power_cut(rng, keep))
        disk.boot = self.boot + 1
        return disk

    def after_kill(self) -> SimulatedDisk:
        """Return the disk that a killed process leaves, with all that it wrote, durable."""
        return self._successor(dict(self._names), Inode.after_kill)

    def take_over(self, other: SimulatedDisk) -> None:
        """Have the files of ``other``, whose process was killed: a kill makes nothing durable."""
        other.is_dead = True
        self._names, self._durable_names = other._names, other._durable_names
        self._pending = other._pending
        self.capacity, self.boot, self.now_ms = other.capacity, other.boot, other.now_ms

    def _successor(
        self, names: dict[str, Inode | None], settle: Callable[[Inode], Inode]
    ) -> SimulatedDisk:
        self.is_dead = True
        disk = SimulatedDisk(capacity=self.capacity)
        disk.now_ms = self.now_ms
        disk.boot = self.boot
        settled: dict[int, Inode] = {}
        for path, inode in sorted(names.items()):
            parent = posixpath.dirname(path)
            if path != "/" and (parent not in disk._names or disk._names[parent] is not None):
                continue  # its directory was never made durable
            if inode is not None and id(inode) not in settled:
                settled[id(inode)] = settle(inode)
            disk._names[path] = None if inode is None else settled[id(inode)]
        disk._durable_names = dict(disk._names)
        return disk

    # -- files

    def create_private(self, path: str) -> int:
        """See the protocol."""
        return self.open(path, create=True)

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """See the protocol."""
        self._call("open", path)
        inode = self._names.get(path, False)
        if inode is None:
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if inode is False:
            if not create or self._names.get(posixpath.dirname(path), False) is not None:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            inode = Inode()
            inode.modified_ms = self.now_ms
            self._change({path: inode})
        assert isinstance(inode, Inode)
        self._next_fd += 1
        self._open[self._next_fd] = (path, inode)
        return self._next_fd

    def close(self, fd: int) -> None:
        """See the protocol; works on a dead disk too."""
        path, _ = self._open.pop(fd)
        if self._locked.get(path) == fd:
            del self._locked[path]

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """See the protocol."""
        path, inode = self._open[fd]
        self._call("pread", path)
        return bytes(inode.buffer[offset : min(offset + size, inode.size)])

    def read_aside(self, fd: int, size: int, offset: int) -> bytes:
        """See the protocol; there is no cache."""
        return self.pread(fd, size, offset)

    def pwrite(self, fd: int, data: Buffer, offset: int) -> int:
        """See the protocol; a write that fails may have written a part."""
        path, inode = self._open[fd]
        grown = offset + len(data) - inode.size
        if grown > 0 and self._used() + grown > self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        try:
            self._call("pwrite", path)
        except OSError:
            if not self.is_dead and len(data) > 1:
                inode.write(bytes(data[: len(data) // 2]), offset)
            raise
        inode.write(data, offset)
        inode.modified_ms = self.now_ms
        return len(data)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """See the protocol."""
        return self.pwrite(fd, b"".join(buffers), offset)

    def fallocate(self, fd: int, size: int) -> None:
        """See the protocol."""
        path, inode = self._open[fd]
        self._call("fallocate", path)
        if self._used() + size - inode.size > self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        inode.resize(max(size, inode.size))

    def ftruncate(self, fd: int, size: int) -> None:
        """See the protocol."""
        path, inode = self._open[fd]
        self._call("ftruncate", path)
        inode.resize(size)

    def data_ranges(self, fd: int, offset: int, end: int) -> list[tuple[int, int]]:
        """See the protocol; answers by pages, as a real file system does by blocks."""
        path, inode = self._open[fd]
        self._call("data_ranges", path)
        return [
            (max(at, offset), min(at + PAGE, end))
            for at in range(offset - offset % PAGE, min(end, inode.size), PAGE)
            if inode.buffer[at : (stop := min(at + PAGE, inode.size))] != _ZEROS[: stop - at]
        ]

    def fdatasync(self, fd: int) -> None:
        """See the protocol; after a failure the kernel takes the pages for clean."""
        path, inode = self._open[fd]
        try:
            self._call("fdatasync", path)
        except OSError:
            inode.lost.update(inode.dirty_pages())
            raise
        inode.sync()

    def is_cached(self, path: str, offset: int, size: int) -> bool:
        """See the protocol; everything is in memory."""
        return True

    def populate(self, view: memoryview, offset: int, size: int) -> bool:
        """See the protocol."""
        return True

    def send_file(self, socket_fd: int, fd: int, offset: int, size: int) -> int:
        """See the protocol."""
        return os.write(socket_fd, self.pread(fd, size, offset))

    def map(self, fd: int, size: int) -> memoryview:
        """See the protocol."""
        path, inode = self._open[fd]
        self._call("map", path)
        assert size <= inode.size
        return memoryview(inode.buffer)[:size].toreadonly()

    def map_writable(self, fd: int, size: int) -> memoryview:
        """Map a file for writing, as the key index does."""
        path, inode = self._open[fd]
        self._call("map", path)
        assert size <= inode.size
        inode.is_mapped = True
        return memoryview(inode.buffer)[:size]

    # -- names

    def _change(self, changes: dict[str, Inode | bool | None]) -> None:
        _apply(self._names, changes)
        self._pending.append(changes)

    def fsync_dir(self, path: str) -> None:
        """See the protocol."""
        self._call("fsync_dir", path)
        if self._names.get(path, False) is not None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        rest = []
        for changes in self._pending:
            if any(posixpath.dirname(name) == path for name in changes):
                _apply(self._durable_names, changes)
            else:
                rest.append(changes)
        self._pending = rest

    def sync_all(self, path: str) -> bool:
        """See the protocol."""
        self._call("sync_all", path)
        for inode in {id(i): i for i in self._names.values() if i is not None}.values():
            inode.sync()
        self._durable_names = dict(self._names)
        self._pending.clear()
        return True

    def stat(self, path: str) -> FileStat | None:
        """See the protocol."""
        self._call("stat", path)
        inode = self._names.get(path, False)
        if inode is False:
            return None
        if inode is None:
            return FileStat(0, 0, True)
        assert isinstance(inode, Inode)
        return FileStat(inode.size, inode.modified_ms, False)

    def usage(self, path: str) -> DiskUsage:
        """See the protocol."""
        self._call("usage", path)
        used = self._used()
        return DiskUsage(self.capacity, used, self.capacity - used)

    def _used(self) -> int:
        inodes = {id(inode): inode for inode in self._names.values() if inode is not None}
        return sum(inode.size for inode in inodes.values())

    def listdir(self, path: str) -> list[str]:
        """See the protocol."""
        self._call("listdir", path)
        prefix = path.rstrip("/") + "/"
        return sorted(
            name[len(prefix) :]
            for name in self._names
            if name.startswith(prefix) and "/" not in name[len(prefix) :] and name != prefix
        )

    def mkdir(self, path: str) -> None:
        """See the protocol."""
        self._call("mkdir", path)
        missing = []
        while path not in self._names:
            missing.append(path)
            path = posixpath.dirname(path)
        for directory in reversed(missing):
            self._change({directory: None})

    def rmdir(self, path: str) -> None:
        """See the protocol."""
        self._call("rmdir", path)
        if self._names.get(path, False) is not None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        if any(name.startswith(path + "/") for name in self._names):
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        self._change({path: False})

    def unlink(self, path: str) -> None:
        """See the protocol."""
        self._call("unlink", path)
        if self._names.get(path, None) is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self._change({path: False})

    def rename(self, source: str, target: str) -> None:
        """See the protocol."""
        self._call("rename", source)
        if source not in self._names or posixpath.dirname(target) not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        if source == target:
            return
        changes: dict[str, Inode | bool | None] = {}
        for name, inode in list(self._names.items()):
            if name == source or name.startswith(source + "/"):
                changes[name] = False
                changes[target + name[len(source) :]] = inode
        self._change(changes)

    def lock(self, path: str) -> int:
        """See the protocol."""
        fd = self.open(path, create=True)
        if path in self._locked:
            self.close(fd)
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        self._locked[path] = fd
        return fd

    # -- for tests

    @property
    def descriptor_count(self) -> int:
        """Number of open descriptors."""
        return len(self._open)

    def read_bytes(self, path: str) -> bytes:
        """Return the contents of a file as programs see them."""
        inode = self._names[path]
        assert inode is not None
        return inode.content()

    def add_to(self, found: Hash) -> None:
        """Add the names, sizes and contents of all files to a checksum."""
        for path in self.paths():
            inode = self._names[path]
            assert inode is not None
            found.update(f"{path}:{inode.size}:".encode())
            inode.update(found)

    def write_bytes(self, path: str, data: bytes, *, at: int = 0) -> None:
        """Change a file behind everybody's back, durably."""
        inode = self._names[path]
        assert inode is not None
        inode.write(data, at)
        inode.sync()

    def flip(self, path: str, bit: int) -> None:
        """Flip one bit of a file."""
        at, shift = divmod(bit, 8)
        self.write_bytes(path, bytes([self.read_bytes(path)[at] ^ (1 << shift)]), at=at)

    def zero(self, path: str, begin: int, end: int) -> None:
        """Make a part of a file zeros."""
        self.write_bytes(path, bytes(end - begin), at=begin)

    def cut_short(self, path: str, size: int) -> None:
        """Take away the end of a file."""
        inode = self._names[path]
        assert inode is not None
        inode.resize(size)
        inode.sync()

    def lose(self, path: str) -> None:
        """Remove a file."""
        self.remove_tree(path)

    def put(self, path: str, data: bytes) -> None:
        """Put other contents in the place of a file, or make one."""
        inode = Inode()
        inode.write(data, 0)
        inode.sync()
        self._names[path] = self._durable_names[path] = inode

    def paths(self) -> list[str]:
        """Return the paths of all files."""
        return sorted(path for path, inode in self._names.items() if inode is not None)

    def remove_tree(self, path: str) -> None:
        """Remove a directory behind everybody's back, durably."""
        for names in (self._names, self._durable_names):
            for name in [n for n in names if n == path or n.startswith(path + "/")]:
                del names[name]

    def copy(self) -> SimulatedDisk:
        """Return an independent disk with the same files, all durable."""
        was_dead = self.is_dead
        twin = self.after_kill()
        self.is_dead = was_dead
        return twin


def _apply(names: dict[str, Inode | None], changes: dict[str, Inode | bool | None]) -> None:
    for name, inode in changes.items():
        if inode is False:
            names.pop(name, None)
        else:
            assert not isinstance(inode, bool)
            names[name] = inode
