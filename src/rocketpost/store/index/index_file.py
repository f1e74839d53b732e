"""One file of the key index: a hash table that only grows, exactly in RocketMQ's format.

    header   40 bytes   begin time 8, end time 8, begin position 8, end position 8,
                        used slots 4, number of the next entry 4 (the first is 1)
    slots    4 each     number of the newest entry of the chain; 0 = none
    entries  20 each    key hash 4, position 8, seconds since begin time 4, previous entry 4

Integers are big-endian. An entry is written before the slot that points to it, and the header last,
so a process that dies in between leaves a valid table without the entry.
``store.index.key_index`` manages the set of files.
"""

from __future__ import annotations

import mmap
import sys
from array import array
from collections.abc import Iterator
from struct import Struct
from typing import Final, Protocol, runtime_checkable

from rocketpost.errors import StoreError
from rocketpost.kernel.index_entries import put_pairs
from rocketpost.store.files import FileSystem

HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
ENTRY_BYTES: Final = 20

_HEADER: Final = Struct(">qqqqii")
_SLOT: Final = Struct(">i")
_ENTRY: Final = Struct(">iqii")
_HASH_ALONE: Final = Struct(">i16x")
_CHUNK_COUNT: Final = 65_536
_SECONDS_MAX: Final = 2**31 - 1
_NEVER: Final = 2**63

_read_slot = _SLOT.unpack_from
_write_slot = _SLOT.pack_into
_read_entry = _ENTRY.unpack_from
_write_header = _HEADER.pack_into


@runtime_checkable
class WritableMaps(Protocol):
    """A file system with its own writable maps, such as a simulated one."""

    def map_writable(self, fd: int, size: int) -> memoryview:
        """Map the first ``size`` bytes, shared with the file."""
        ...


def file_bytes(slot_count: int, entry_count_max: int) -> int:
    """Return the size of every index file with these settings."""
    return HEADER_BYTES + slot_count * SLOT_BYTES + entry_count_max * ENTRY_BYTES


class IndexFile:
    """One open file. Not thread-safe, except for :meth:`sync_blocking`."""

    def __init__(
        self, path: str, *, files: FileSystem, slot_count: int, entry_count_max: int
    ) -> None:
        size = file_bytes(slot_count, entry_count_max)
        self.path = path
        self._files = files
        self._slot_count = slot_count
        self.entry_count_max = entry_count_max
        self._entries_at = HEADER_BYTES + slot_count * SLOT_BYTES
        self._fd = files.open(path, write=True)
        try:
            self._map = _map_writable(files, self._fd, size)
            self._read_header()
        except BaseException:
            files.close(self._fd)
            raise

    def _read_header(self) -> None:
        begin_ms, end_ms, begin, end, used, next_entry = _HEADER.unpack_from(self._map, 0)
        if not 0 <= next_entry <= self.entry_count_max or not 0 <= used <= self._slot_count:
            raise StoreError(f"{self.path}: impossible counts in the header: {used}, {next_entry}")
        self.begin_ms: int = begin_ms
        self.end_ms: int = end_ms
        self.begin_position: int = begin
        self.end_position: int = end
        self._used_slots: int = used
        self.next_entry: int = max(next_entry, 1)
        self._synced_entry = 0

    def check_follows(self, previous: IndexFile | None, *, is_last: bool) -> None:
        """Check that this can be the file after ``previous``.

        Raises:
            StoreError: The header is impossible here.
        """
        if self.is_empty:
            if not is_last:
                raise StoreError("it is empty, but later files exist")
            return
        if not (0 <= self.begin_position <= self.end_position and 0 < self.begin_ms <= self.end_ms):
            raise StoreError("the header says that it ends before it begins")
        if previous is not None and self.end_position < previous.end_position:
            raise StoreError("it ends before the previous file does")

    @property
    def is_empty(self) -> bool:
        """Whether there is no entry yet."""
        return self.next_entry <= 1

    @property
    def room(self) -> int:
        """Number of entries that still fit."""
        return self.entry_count_max - self.next_entry

    @property
    def fill_ratio(self) -> float:
        """Used share of the entries, 0 to 1."""
        return self.next_entry / self.entry_count_max

    def start_after(self, end_ms: int, end_position: int) -> None:
        """Begin an empty file at the end of the previous one."""
        self.begin_ms = self.end_ms = end_ms
        self.begin_position = self.end_position = end_position
        self.next_entry = 1
        self._store_header()

    def put(self, pairs: array[int], first: int, count: int, store_ms: int) -> None:
        """Add entries of messages with one time field; the caller has checked the room.

        Args:
            pairs: Key hash and position of each entry.
            first: The first pair to add.
            count: The number of pairs to add.
            store_ms: The store time of the last message, and of all in a file without entries.
        """
        if not count:
            return
        number = self.next_entry
        seconds = (store_ms - self.begin_ms) // 1000 if number > 1 else 0
        if not 0 <= seconds <= _SECONDS_MAX:
            seconds = 0 if seconds < 0 else _SECONDS_MAX
        used = put_pairs(self._map, pairs, first, count, self._slot_count, number, seconds)
        assert used >= 0
        if number == 1:
            self.begin_ms = self.end_ms = store_ms
            self.begin_position = pairs[2 * first + 1]
        self._used_slots += used
        if store_ms > self.end_ms:
            self.end_ms = store_ms
        self.end_position = pairs[2 * (first + count) - 1]
        self.next_entry = number + count
        self._store_header()

    def end_of_second(self, store_ms: int) -> int:
        """Return the time at which entries get a later time field than at ``store_ms``."""
        seconds = (store_ms - self.begin_ms) // 1000
        return self.begin_ms + (max(0, seconds) + 1) * 1000 if seconds < _SECONDS_MAX else _NEVER

    def _store_header(self) -> None:
        _write_header(
            self._map,
            0,
            self.begin_ms,
            self.end_ms,
            self.begin_position,
            self.end_position,
            self._used_slots,
            self.next_entry,
        )

    def chain(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Yield, newest first, the position of each matching entry, and None for each other.

        Numbers in a chain only decrease, so even a chain of damaged numbers ends. Times are stored
        in whole seconds, so a match may be up to a second older than ``begin_ms``.
        """
        slot_at = HEADER_BYTES + key_hash % self._slot_count * SLOT_BYTES
        (number,) = _read_slot(self._map, slot_at)
        bound = self.next_entry
        while 0 < number < bound:
            bound = number
            entry_at = self._entries_at + number * ENTRY_BYTES
            found, position, seconds, number = _read_entry(self._map, entry_at)
            # RocketMQ counts the first entry's seconds from the end of the previous file.
            stored_ms = self.begin_ms + (seconds * 1000 if bound > 1 else 0)
            if stored_ms + 999 < begin_ms:
                return
            yield position if found == key_hash and stored_ms <= end_ms else None

    def cut_back(self, keep: int) -> None:
        """Remove the entries from number ``keep`` on, and repair the slots.

        Synced entries are whole. Of later ones any page may be missing, so an entry that crosses a
        page boundary may be torn.
        """
        numbers = self._slot_numbers()
        if max(numbers) >= keep or min(numbers) < 0:
            astray = {slot for slot, number in enumerate(numbers) if not 0 <= number < keep}
            for slot, number in self._newest_entries(astray, keep).items():
                _write_slot(self._map, HEADER_BYTES + slot * SLOT_BYTES, number)
                numbers[slot] = number
        self._used_slots = self._slot_count - numbers.count(0)
        self._synced_entry = 0
        if keep not in (1, self.next_entry):
            _, self.end_position, seconds, _ = self._entry(keep - 1)
            self.end_ms = self.begin_ms + (seconds * 1000 + 999 if keep > 2 else 0)
        self.next_entry = keep
        self._store_header()

    def number_from(self, position: int) -> int:
        """Return the number of the first entry of a record at ``position`` or later."""
        low, high = 1, self.next_entry
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle)[1] < position:
                low = middle + 1
            else:
                high = middle
        return low

    def position_before(self, number: int) -> int:
        """Return the position of the record whose entry precedes ``number``, which exists."""
        return self._entry(number - 1)[1]

    def cut_sound_blocking(self, keep: int) -> None:
        """Remove the entries from number ``keep`` on, which are known to be whole, durably."""
        for slot, number in enumerate(self._slot_numbers()):
            newest = number
            while newest >= keep:
                before = self._entry(newest)[3]
                newest = before if 0 <= before < newest else 0
            if newest != number:
                _write_slot(self._map, HEADER_BYTES + slot * SLOT_BYTES, newest)
        self.cut_back(keep)
        self.sync_blocking()

    def _newest_entries(self, slots: set[int], keep: int) -> dict[int, int]:
        """Find the newest entry below ``keep`` of each slot.

        The entries that the slots point to now may be torn and cannot be followed. So all entries
        are searched, which takes some seconds in a full file.
        """
        newest = dict.fromkeys(slots, 0)
        for first in range(1, keep, _CHUNK_COUNT):
            at = self._entries_at + first * ENTRY_BYTES
            count = min(_CHUNK_COUNT, keep - first)
            hashes = _HASH_ALONE.iter_unpack(self._map[at : at + count * ENTRY_BYTES])
            for number, (key_hash,) in enumerate(hashes, start=first):
                slot = key_hash % self._slot_count
                if slot in slots:
                    newest[slot] = number
        return newest

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        entry: tuple[int, int, int, int] = _read_entry(
            self._map, self._entries_at + number * ENTRY_BYTES
        )
        return entry

    def _slot_numbers(self) -> array[int]:
        numbers = array("i")
        numbers.frombytes(self._map[HEADER_BYTES : self._entries_at])
        if sys.byteorder == "little":
            numbers.byteswap()
        return numbers

    def sync_blocking(self) -> int:
        """Return once all entries put before the call are on disk. Any thread may call it.

        Returns:
            The number of the next entry at the time of the call.
        """
        number = self.next_entry
        if number != self._synced_entry:
            self._files.fdatasync(self._fd)
            self._synced_entry = number
        return number

    def close(self) -> None:
        """Close the file; readers that still walk a chain keep the map alive."""
        self._files.close(self._fd)


def _map_writable(files: FileSystem, fd: int, size: int) -> memoryview:
    if isinstance(files, WritableMaps):
        return files.map_writable(fd, size)
    return memoryview(mmap.mmap(fd, size))
