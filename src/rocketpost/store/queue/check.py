"""Checks of queue files that may be damaged: the end of their entries, and their order.

Entries of a queue are in the order of their records: each record begins where the one before it
ends, or later. So zeros, random bytes and outdated files are detected, mostly at the first and last
entry of a file, which is all that a start reads. Only if the checkpoint shows that something is
missing are all entries read. An entry that is wrong but in order is found when it is read and
compared with its record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rocketpost.store.queue.files import ENTRY, ENTRY_BYTES, FILLER_SIZE, QueueFiles

_SCANNED_FILES: Final = 3
_ENTRIES_AT_ONCE: Final = 8192
_ENTRIES_AT_A_LOOK: Final = 200  # one page

Entry = tuple[int, int, int]


class QueueCheck:
    """Reads the files of one queue.

    Args:
        files: Reads entries.
        directory: The queue's directory.
        starts: The first offset of each file, in order and without gaps.
        limit: Position that no record extends past.
    """

    def __init__(self, files: QueueFiles, directory: str, starts: list[int], *, limit: int) -> None:
        self._files = files
        self._directory = directory
        self._starts = starts
        self._limit = limit
        self._page: bytes | None = None

    def entry(self, offset: int) -> Entry:
        """Return one entry."""
        found: Entry = ENTRY.unpack(self._read(offset, 1))
        return found

    def last_real(self, end: int) -> Entry | None:
        """Return the newest entry before ``end`` that is not a filler."""
        while end > self._starts[0]:
            # From one file only: a read does not continue in the next.
            begin = max(end - 1 - (end - 1) % self._files.entries_per_file, end - _ENTRIES_AT_ONCE)
            data = self._read(begin, end - begin)
            for at in range(len(data) - ENTRY_BYTES, -1, -ENTRY_BYTES):
                entry: Entry = ENTRY.unpack_from(data, at)
                if entry[1] != FILLER_SIZE:
                    return entry
            end = begin
        return None

    def trusted_end(self, before: int) -> int:
        """Return the offset after the last entry of a record before ``before``."""
        for start in reversed(self._starts):
            end = start + self._trusted_count(start, before)
            if end > start:
                return end
        return self._starts[0]

    def valid_end(self) -> int:
        """Return the offset after the last plausible entry, by Java's rule."""
        count = self._files.entries_per_file
        least = 0
        for start in self._starts[-_SCANNED_FILES:]:
            for at, entry in enumerate(self._entries(start, count)):
                following = self._follow(least, entry)
                if following is None:
                    return start + at
                least = following
        return self._starts[-1] + count

    def looks_whole(self, end: int) -> bool:
        """Check the first and last entry of each file up to ``end``."""
        least = 0
        for start in self._starts:
            stop = min(start + self._files.entries_per_file, end)
            for offset in sorted({start, stop - 1}) if stop > start else ():
                following = self._follow(least, self.entry(offset))
                if following is None:
                    return False
                least = following
        return True

    def is_whole(self, end: int) -> bool:
        """Check every entry up to ``end``."""
        least = 0
        for entry in self._entries(self._starts[0], end - self._starts[0]):
            following = self._follow(least, entry)
            if following is None:
                return False
            least = following
        return True

    def later_entries(self, end: int, *, count_max: int) -> bytes:
        """Return the entries from ``end`` on that are in order, up to the first filler."""
        found = bytearray()
        least = 0
        count = min(count_max, self._starts[-1] + self._files.entries_per_file - end)
        for entry in self._entries(end, count):
            following = self._follow(least, entry)
            if following is None or entry[1] == FILLER_SIZE:
                break
            found += ENTRY.pack(*entry)
            least = following
        return bytes(found)

    def _follow(self, least: int, entry: Entry) -> int | None:
        """Return the least position of the next entry; None if this entry is out of order."""
        position, size, _ = entry
        if size == FILLER_SIZE and position == 0:
            return least
        if size <= 0 or position < least or position + size > self._limit:
            return None
        return position + size

    def _trusted_count(self, start: int, before: int) -> int:
        """Count the leading entries of one file that may be trusted.

        Most queues are short, so the search doubles its steps from the front.
        """
        low, step, high = 0, _ENTRIES_AT_A_LOOK, self._files.entries_per_file
        while low + step < high:
            position, size, _ = self.entry(start + low + step - 1)
            if size > 0 and 0 <= position < before:
                low += step
                step *= 2
            else:
                high = low + step - 1
                step = max(_ENTRIES_AT_A_LOOK, (high - low) // 2)
                if high - low <= _ENTRIES_AT_A_LOOK:
                    break
        for at, (position, size, _) in enumerate(self._entries(start + low, high - low)):
            if size <= 0 or not 0 <= position < before:
                return low + at
        return high

    def _read(self, offset: int, count: int) -> bytes:
        """Return entries; those at the front of the last file are read once, in one read.

        Most queues are short enough to fit there whole, and each is read several times.
        """
        at = offset - self._starts[-1]
        if at < 0 or at + count > _ENTRIES_AT_A_LOOK:
            return self._files.read(self._directory, offset, count)
        if self._page is None:
            self._page = self._files.read(self._directory, self._starts[-1], _ENTRIES_AT_A_LOOK)
        return self._page[at * ENTRY_BYTES : (at + count) * ENTRY_BYTES]

    def _entries(self, offset: int, count: int) -> Iterator[Entry]:
        at_once = _ENTRIES_AT_A_LOOK
        while count > 0:
            left = self._starts[-1] + _ENTRIES_AT_A_LOOK - offset
            is_in_page = 0 < left <= _ENTRIES_AT_A_LOOK
            data = self._read(offset, min(count, left if is_in_page else at_once))
            if not data:
                return
            yield from ENTRY.iter_unpack(data)
            offset += len(data) // ENTRY_BYTES
            count -= len(data) // ENTRY_BYTES
            at_once = _ENTRIES_AT_ONCE
