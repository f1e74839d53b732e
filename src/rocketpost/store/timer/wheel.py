"""The ``timerwheel`` file: the chain of units in the timer log for each slot of time.

    time      int64   start of the slot in steps of the precision; 0: nothing waits here
    first     int64   timer log position of the oldest unit
    last      int64   timer log position of the newest unit; each unit names the one before it
    count     int32   units, less those that recall another
    reserved  int32

Big-endian; ``SLOT_COUNT`` slots, found by time modulo their number. A slot with a time other than
the one asked for counts as empty.

The file is neither mapped nor held in memory. Only slots that changed since the last save are held,
and they are written through a journal (``store.timer.checkpoint``), so that the file as a whole is
always in the state of some save. A slot is emptied when all its messages are delivered, so the file
shows only waiting messages.

The checksum of a wheel is the sum of the CRC-32 of its used slots, each started with the number of
the slot; so it can be updated after a change without reading the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from rocketpost.errors import StoreError
from rocketpost.store.files import FileSystem, write_all

SLOT_COUNT: Final = 2 * 604_800
_SLOT: Final = Struct(">qqqii")
SLOT_BYTES: Final = _SLOT.size
NOWHERE: Final = -1
_EMPTY: Final = bytes(SLOT_BYTES)
_SCAN_COUNT: Final = 2048
_EMPTY_RUN: Final = bytes(SLOT_BYTES * _SCAN_COUNT)


class Slot(NamedTuple):
    """Chain and number of the messages that wait in one slot."""

    first: int = NOWHERE
    last: int = NOWHERE
    waiting: int = 0


EMPTY: Final = Slot()


class TimerWheel:
    """The slots of one store. Owned by the loop thread, except for ``*_blocking``.

    Args:
        precision_ms: Length of a slot.
        slot_count: Number of slots; RocketMQ's number, except in tests.
    """

    def __init__(
        self, files: FileSystem, path: str, *, precision_ms: int, slot_count: int = SLOT_COUNT
    ) -> None:
        self._files = files
        self._path = path
        self._precision_ms = precision_ms
        self.slot_count = slot_count
        self._file_bytes = slot_count * SLOT_BYTES
        self._fd: int | None = None
        self._changed: dict[int, bytes] = {}
        self._saving: dict[int, bytes] = {}
        self.checksum = 0
        """The checksum of the slots, including changes that are not saved yet."""

    def open_blocking(self) -> bool:
        """Open the file; False if there is none.

        Raises:
            StoreError: The file has the wrong size.
        """
        found = self._files.stat(self._path)
        if found is None or not found.size:
            return False
        if found.size != self._file_bytes:
            raise StoreError(f"{self._path} has {found.size} bytes instead of {self._file_bytes}")
        self._fd = self._files.open(self._path, write=True)
        return True

    def create_blocking(self) -> None:
        """Begin an empty file."""
        self.close()
        self._changed.clear()
        self._saving = {}
        self.checksum = 0
        self._fd = self._files.open(self._path, create=True)
        self._files.ftruncate(self._fd, 0)
        self._files.ftruncate(self._fd, self._file_bytes)
        self._files.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            self._files.close(self._fd)
            self._fd = None

    @property
    def changed_count(self) -> int:
        """Number of slots that the next save has to write."""
        return len(self._changed)

    def get(self, slot_ms: int) -> Slot:
        """Return the contents of the slot that begins at ``slot_ms``."""
        time, first, last, count, _ = _SLOT.unpack(self._slot(self._index(slot_ms)))
        return Slot(first, last, count) if time == slot_ms // self._precision_ms else EMPTY

    def put(self, slot_ms: int, slot: Slot) -> None:
        """Set the contents of a slot."""
        time = slot_ms // self._precision_ms
        self._replace(self._index(slot_ms), _SLOT.pack(time, *slot, 0))

    def clear(self, slot_ms: int) -> None:
        """Empty a slot."""
        self._replace(self._index(slot_ms), _EMPTY)

    def next_used(self, begin_ms: int, *, count: int = _SCAN_COUNT) -> int | None:
        """Return the first of ``count`` slots from ``begin_ms`` on with waiting messages."""
        begin = begin_ms // self._precision_ms
        done = 0
        while done < count:
            at = (begin + done) % self.slot_count
            length = min(count - done, self.slot_count - at, _SCAN_COUNT)
            for time in self._times(at, length, begin + done):
                return time * self._precision_ms
            done += length
        return None

    def used_slots(self) -> Iterator[tuple[int, Slot]]:
        """Yield every slot with waiting messages, in the order of the file."""
        for at in range(0, self.slot_count, _SCAN_COUNT):
            for time, first, last, count, _ in _SLOT.iter_unpack(self._read(at, _SCAN_COUNT)):
                if time > 0 and first >= 0:
                    yield time * self._precision_ms, Slot(first, last, count)

    def measure_blocking(self) -> int:
        """Read the file and return its checksum, which replaces that of the wheel."""
        self.checksum = 0
        for at in range(0, self.slot_count, _SCAN_COUNT):
            data = self._read(at, _SCAN_COUNT)
            if data == _EMPTY_RUN[: len(data)]:
                continue
            for start in range(0, len(data), SLOT_BYTES):
                slot = data[start : start + SLOT_BYTES]
                self.checksum += _slot_sum(at + start // SLOT_BYTES, slot)
        return self.checksum

    def _slot(self, at: int) -> bytes:
        data = self._changed.get(at) or self._saving.get(at)
        if data is None:
            if self._fd is None:
                return _EMPTY
            data = self._files.pread(self._fd, SLOT_BYTES, at * SLOT_BYTES)
        return data

    def _replace(self, at: int, data: bytes) -> None:
        self.checksum += _slot_sum(at, data) - _slot_sum(at, self._slot(at))
        self._changed[at] = data

    def _times(self, at: int, length: int, begin: int) -> Iterator[int]:
        """Yield the times of the used slots among ``length`` adjacent ones."""
        data = self._read(at, length)
        if data.count(0) == len(data):
            return
        for time, slot in enumerate(_SLOT.iter_unpack(data), begin):
            if slot[0] == time and slot[2] >= 0:
                yield time

    def _read(self, at: int, length: int) -> bytes:
        length = min(length, self.slot_count - at)
        if self._fd is None:
            data = bytearray(length * SLOT_BYTES)
        else:
            data = bytearray(self._files.pread(self._fd, length * SLOT_BYTES, at * SLOT_BYTES))
        for changes in (self._saving, self._changed):
            indexes = changes if len(changes) < length else range(at, at + length)
            for index in indexes:
                slot = changes.get(index) if at <= index < at + length else None
                if slot is not None:
                    start = (index - at) * SLOT_BYTES
                    data[start : start + SLOT_BYTES] = slot
        return bytes(data)

    def _index(self, slot_ms: int) -> int:
        return slot_ms // self._precision_ms % self.slot_count

    # -- saving

    def take_changes(self) -> Mapping[int, bytes]:
        """Return the slots changed since the last call, to be journalled and then written.

        After a failed save, its slots are returned again with the rest.
        """
        self._saving = {**self._saving, **self._changed}
        self._changed = {}
        return self._saving

    def write_blocking(self, changes: Mapping[int, bytes]) -> None:
        """Write slots to the file and make them durable. Any thread, but one at a time."""
        assert self._fd is not None
        for index, run in _runs(changes):
            write_all(self._files, self._fd, run, index * SLOT_BYTES)
        if changes:
            self._files.fdatasync(self._fd)

    def mark_saved(self) -> None:
        """Note that the changes taken last are in the file."""
        self._saving = {}


def _slot_sum(at: int, data: bytes) -> int:
    return 0 if data == _EMPTY else crc32(data, at)


def _runs(changes: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield runs of adjacent slots, each to be written at once."""
    run: list[bytes] = []
    start = before = -2
    for index in sorted(changes):
        if index != before + 1 and run:
            yield start, b"".join(run)
            run = []
        if not run:
            start = index
        run.append(changes[index])
        before = index
    if run:
        yield start, b"".join(run)
