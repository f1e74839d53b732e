"""The timer log: one unit of 52 bytes for each waiting message, chained by slot.

    size        int32   52
    previous    int64   position of the unit before this one in the same slot; -1: none
    magic       int32   1, with 2: postponed again when due, with 4: recalls another message
    written     int64   time of the write, rounded down to the precision
    delay       int32   from there to the slot, ms
    position    int64   of the message in the commit log
    bytes       int32   size of its record
    topic hash  int32   Java's hash of its topic
    due         int64   exact due time; RocketMQ writes 0 here and does not read it

Big-endian, in files of one size, named by the position of their first byte. Where no unit fits at
the end of a file there is a filler: int32 bytes left, int64 0, uint32 0xCBD43194. Files are sparse
and written by position; bytes after the end are zero, so that they are never read as units.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from rocketpost.errors import StoreError
from rocketpost.store.files import FileSystem, write_all
from rocketpost.store.layout import file_name, parse_file_name
from rocketpost.store.timer.checkpoint import FileSum

logger = logging.getLogger(__name__)

_UNIT: Final = Struct(">iqiqiqiiq")
UNIT_BYTES: Final = _UNIT.size
_POSITIONS: Final = Struct(">28xq16x")
_BLANK: Final = Struct(">iqI")
_BLANK_MAGIC: Final = 0xCBD43194
DEFAULT: Final = 1
ROLL: Final = 2
RECALL: Final = 4
_MAGIC_MAX: Final = 15
_SCAN_UNITS: Final = 4096
_SUM_BYTES: Final = 1024 * 1024
_INT_MASK: Final = 0xFFFF_FFFF


class Unit(NamedTuple):
    """One waiting message, or one that recalls another."""

    previous: int
    magic: int
    written_ms: int
    delay_ms: int
    position: int
    size: int
    topic_hash: int
    due_ms: int

    @property
    def slot_ms(self) -> int:
        """Start time of its slot."""
        return self.written_ms + self.delay_ms

    def encode(self) -> bytes:
        """Return its bytes."""
        return _UNIT.pack(
            UNIT_BYTES,
            self.previous,
            self.magic,
            self.written_ms,
            self.delay_ms,
            self.position,
            self.size,
            (self.topic_hash + 2**31 & _INT_MASK) - 2**31,
            self.due_ms,
        )


class Unsynced(NamedTuple):
    """Work of the next sync."""

    descriptors: list[int]
    has_new_file: bool


def decode_unit(data: bytes, offset: int = 0) -> Unit | None:
    """Read the unit at ``offset``; None if there is none."""
    if len(data) < offset + UNIT_BYTES:
        return None
    size, *fields = _UNIT.unpack_from(data, offset)
    unit = Unit._make(fields)
    if size != UNIT_BYTES or not 0 < unit.magic <= _MAGIC_MAX or unit.size <= 0:
        return None
    return unit


class TimerLog:
    """The files of the timer log. Owned by the loop thread, except for ``*_blocking``.

    Args:
        file_bytes: Size of each file; it need not be a multiple of anything.
    """

    def __init__(self, files: FileSystem, directory: str, *, file_bytes: int) -> None:
        assert file_bytes >= UNIT_BYTES + _BLANK.size
        self._files = files
        self._directory = directory
        self._file_bytes = file_bytes
        self._fds: dict[int, int] = {}
        self._starts: list[int] = []
        self._sums: dict[int, FileSum] = {}
        self._unsynced: set[int] = set()
        self._syncing: set[int] = set()
        self._is_new = self._is_new_syncing = False
        self._expired: list[str] = []
        self.end = 0
        """Position of the next unit."""

    @property
    def first(self) -> int:
        """Position of the oldest byte kept."""
        return self._starts[0] if self._starts else self.end

    @property
    def sums(self) -> dict[int, FileSum]:
        """Length and checksum of each file, by the position of its first byte."""
        return self._sums.copy()

    def load_blocking(self) -> None:
        """Find the files; the real end is not known yet.

        Raises:
            StoreError: The size of a file differs from the settings.
        """
        for name in self._files.listdir(self._directory):
            start = parse_file_name(name)
            if start is None:
                continue
            path = self._path(start)
            found = self._files.stat(path)
            size = found.size if found is not None else 0
            if start % self._file_bytes or size > self._file_bytes:
                raise StoreError(
                    f"{path} has {size} bytes; mappedFileSizeTimerLog is {self._file_bytes}"
                )
            self._starts.append(start)
            if size < self._file_bytes:  # a crash interrupted its creation
                self._files.ftruncate(self._descriptor(start), self._file_bytes)
        self.end = self._starts[-1] + self._file_bytes if self._starts else 0

    def scan(self, begin: int, end: int) -> Iterator[tuple[int, Unit]]:
        """Yield the units in a part of the log, up to the first position without one."""
        position = max(begin, self.first)
        while position < end:
            start = position - position % self._file_bytes
            if start not in self._starts:
                return
            length = min(_SCAN_UNITS * UNIT_BYTES, start + self._file_bytes - position)
            data = self._files.pread(self._descriptor(start), length, position - start)
            at = 0
            while at + UNIT_BYTES <= len(data) and position < end:
                unit = decode_unit(data, at)
                if unit is None:
                    break
                yield position, unit
                at += UNIT_BYTES
                position += UNIT_BYTES
            if at + UNIT_BYTES <= len(data) or not at:
                if not self._is_blank(position, start):
                    return
                position = start + self._file_bytes

    def matches_blocking(self, sums: Mapping[int, FileSum]) -> bool:
        """Tell whether the files match the checksums of a save; if so, adopt those.

        The caller then cuts off the bytes after the end of the save.
        """
        is_so = all(
            start in self._starts and self._measured(start, length).crc == crc
            for start, (length, crc) in sums.items()
        )
        if is_so:
            self._sums = dict(sums)
        return is_so

    def measure_blocking(self, *, only_new: bool = False) -> None:
        """Compute the checksums of the present files, up to the end.

        With ``only_new``, files that have a checksum keep it.
        """
        for start in self._starts:
            if not only_new or start not in self._sums:
                length = min(self._file_bytes, self.end - start)
                self._sums[start] = self._measured(start, length)

    def set_aside_blocking(self) -> None:
        """Begin an empty log; the old files are kept under names that end in .damaged."""
        for start in self._starts.copy():
            self._forget(start)
            self._files.rename(self._path(start), self._path(start) + ".damaged")
        self.end = 0

    def truncate_blocking(self, end: int) -> None:
        """Make ``end`` the end of the log; bytes after it become zeros."""
        for start in reversed(self._starts.copy()):
            if start >= end:
                self._forget(start)
                self._files.unlink(self._path(start))
            elif start + self._file_bytes > end:
                fd = self._descriptor(start)
                self._files.ftruncate(fd, end - start)
                self._files.ftruncate(fd, self._file_bytes)
                self._files.fdatasync(fd)
                if self._sums.get(start, FileSum()).length != end - start:
                    self._sums[start] = self._measured(start, end - start)
        self.end = end

    def append(self, units: Sequence[Unit]) -> None:
        """Write units at the end; :meth:`place` returned the position of each.

        Raises:
            OSError: They could not be written; the end is unchanged.
        """
        before = self._sums.copy()
        try:
            self.end = self._append(units)
        except OSError:
            self._sums = before
            raise

    def place(self, position: int) -> int:
        """Return where a unit fits from ``position`` on: there, or in the next file."""
        left = self._file_bytes - position % self._file_bytes
        return position if left >= UNIT_BYTES + _BLANK.size else position + left

    def unit(self, position: int) -> Unit | None:
        """Return the unit at a position; None if there is none."""
        start = position - position % self._file_bytes
        if position < 0 or position >= self.end or start not in self._starts:
            return None
        return decode_unit(self._files.pread(self._descriptor(start), UNIT_BYTES, position - start))

    def take_unsynced(self) -> Unsynced:
        """Return the files written since the last call, for :meth:`sync_blocking`.

        After a failed save, its files are returned again with the rest.
        """
        self._syncing |= self._unsynced
        self._is_new_syncing |= self._is_new
        self._unsynced.clear()
        self._is_new = False
        descriptors = [self._descriptor(start) for start in self._syncing]
        return Unsynced(descriptors, self._is_new_syncing)

    def mark_saved(self) -> None:
        """Note that the files taken last are on disk."""
        self._syncing.clear()
        self._is_new_syncing = False

    def sync_blocking(self, unsynced: Unsynced) -> None:
        """Make written files durable. Any thread, but one at a time, while no file expires."""
        for fd in unsynced.descriptors:
            self._files.fdatasync(fd)
        if unsynced.has_new_file:
            self._files.fsync_dir(self._directory)
            self._files.fsync_dir(posixpath.dirname(self._directory))

    def find_finished_blocking(self, position_min: int) -> list[int]:
        """Return the starts of files whose messages are all before a commit log position.

        Never the last file. Each file is read whole: its last unit need not be that of its newest
        message, since slots are chained again. Any thread, while no file expires.
        """
        finished = []
        for start in self._starts[:-1]:
            if not self._is_finished(start, position_min):
                break
            finished.append(start)
        return finished

    def expire(self, starts: Sequence[int]) -> None:
        """Forget finished files, which are then to be unlinked. Never call it during a save."""
        for start in starts:
            self._forget(start)
        self._expired += map(self._path, starts)

    @property
    def has_expired(self) -> bool:
        """Whether there are files to unlink, once a save does not name them any more."""
        return bool(self._expired)

    def unlink_expired_blocking(self) -> None:
        """Unlink expired files. Any thread, but one at a time.

        The oldest comes first, even after a call that failed: a later start would take a file
        that was left behind for the beginning of the log, and read nothing after the gap.

        Raises:
            OSError: A file cannot be unlinked; the next call continues with it.
        """
        while self._expired:
            with contextlib.suppress(FileNotFoundError):  # the call before has unlinked it
                self._files.unlink(self._expired[0])
            self._files.fsync_dir(self._directory)
            del self._expired[0]

    def close(self) -> None:
        """Close the files."""
        for fd in self._fds.values():
            self._files.close(fd)
        self._fds.clear()

    def _append(self, units: Sequence[Unit]) -> int:
        run: list[bytes] = []
        position = self.end
        for unit in units:
            at = self.place(position)
            if at != position:
                self._write(position - sum(map(len, run)), run)
                self._fill(position)
                run, position = [], at
            run.append(unit.encode())
            position += UNIT_BYTES
        self._write(position - sum(map(len, run)), run)
        return position

    def _measured(self, start: int, length: int) -> FileSum:
        crc = at = 0
        while at < length:
            count = min(_SUM_BYTES, length - at)
            crc = crc32(self._files.pread(self._descriptor(start), count, at), crc)
            at += count
        return FileSum(length, crc)

    def _is_finished(self, start: int, position_min: int) -> bool:
        count = (self._file_bytes - _BLANK.size) // UNIT_BYTES
        fd = self._files.open(self._path(start))
        try:
            # Backwards, since the last units most often show that the file must stay.
            while count:
                at = max(0, count - _SCAN_UNITS)
                data = self._files.pread(fd, (count - at) * UNIT_BYTES, at * UNIT_BYTES)
                if any(position >= position_min for (position,) in _POSITIONS.iter_unpack(data)):
                    return False
                count = at
        finally:
            self._files.close(fd)
        return True

    def _is_blank(self, position: int, start: int) -> bool:
        data = self._files.pread(self._descriptor(start), _BLANK.size, position - start)
        return len(data) == _BLANK.size and _BLANK.unpack(data)[2] == _BLANK_MAGIC

    def _fill(self, position: int) -> None:
        left = self._file_bytes - position % self._file_bytes
        if left >= _BLANK.size:
            self._write(position, [_BLANK.pack(left, 0, _BLANK_MAGIC)])

    def _write(self, position: int, run: list[bytes]) -> None:
        if not run:
            return
        start = position - position % self._file_bytes
        if start not in self._starts:
            self._create(start)
        data = b"".join(run)
        write_all(self._files, self._descriptor(start), data, position - start)
        length, crc = self._sums.get(start, FileSum())
        assert length == position - start
        self._sums[start] = FileSum(length + len(data), crc32(data, crc))
        self._unsynced.add(start)

    def _create(self, start: int) -> None:
        self._files.mkdir(self._directory)
        fd = self._files.open(self._path(start), create=True)
        self._fds[start] = fd
        self._files.ftruncate(fd, self._file_bytes)
        self._starts.append(start)
        self._is_new = True

    def _forget(self, start: int) -> None:
        self._starts.remove(start)
        self._sums.pop(start, None)
        self._unsynced.discard(start)
        self._syncing.discard(start)
        fd = self._fds.pop(start, None)
        if fd is not None:
            self._files.close(fd)

    def _descriptor(self, start: int) -> int:
        fd = self._fds.get(start)
        if fd is None:
            fd = self._fds[start] = self._files.open(self._path(start), write=True)
        return fd

    def _path(self, start: int) -> str:
        return f"{self._directory}/{file_name(start)}"
