"""A consume queue: the positions of its messages in the commit log, by queue offset.

The newest entries are kept in memory and written to the file together. If they are lost, they are
rebuilt from the commit log. A queue to which entries come one by one keeps ``TAIL_BYTES_USUAL``.
The more come at once, the more it keeps, up to ``TAIL_BYTES_MAX``, so that writes stay rare.

Offsets are never reused: a queue that was deleted and created again continues where it stopped.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rocketpost.model.ids import Position, QueueOffset
from rocketpost.store.log.segment import ReadPages
from rocketpost.store.queue.files import ENTRY, ENTRY_BYTES, FILLER, FILLER_SIZE, QueueFiles

if TYPE_CHECKING:
    from rocketpost.store.dispatch.arrival import Arrival

logger = logging.getLogger(__name__)

TAIL_BYTES_USUAL: Final = 102 * ENTRY_BYTES
TAIL_BYTES_MAX: Final = 819 * ENTRY_BYTES
"""Size from which on every tail is written: just below 16 KiB."""
_TAIL_GROWTH: Final = 16
"""Number of additions like the last one for which a longer tail has room."""
GAP_COUNT_MAX: Final = 4096
"""Largest number of fillers written at once."""
_pack = ENTRY.pack
_unpack = ENTRY.unpack_from


class Tail:
    """Entries that may not be in the file yet. It only grows, until a new one replaces it.

    The loop thread appends to ``data``; the checkpoint thread writes a copy and notes its length in
    ``saved_bytes``. Both may write the same entries: they are the same bytes in the same place.
    """

    __slots__ = ("data", "saved_bytes", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.data = bytearray()
        self.saved_bytes = 0


class ConsumeQueue:
    """One queue of a topic. Owned by the loop thread; the checkpoint thread may save it.

    Readers see the offsets from ``first`` up to ``end``; ``next_offset`` is the offset of the next
    append. ``end`` rises when a message becomes visible.
    """

    __slots__ = (
        "_directory",
        "_files",
        "_store_time",
        "checked",
        "end",
        "first",
        "is_deleted",
        "last_position",
        "notice",
        "offsets",
        "queue_id",
        "slot",
        "spill_at",
        "tail",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        *,
        directory: str,
        files: QueueFiles,
        store_time: Callable[[int, ReadPages | None], int],
        start: int = 0,
        offsets: memoryview | None = None,
        slot: int = 0,
    ) -> None:
        self.offsets = memoryview(array("q", (0,))) if offsets is None else offsets
        """The next offsets of all queues (``QueueSlots.next_offsets``)."""
        self.slot = slot
        """Place of this queue in ``offsets``."""
        self.topic = topic
        self.queue_id = queue_id
        self.is_deleted = False
        self.last_position = -1
        self.checked = (0, 0, 0)
        """Range of offsets whose records were found sound, and the time of the check."""
        self._directory = directory
        self._files = files
        self._store_time = store_time
        self.notice: Arrival | None = None
        """Notice of the messages that are just becoming visible (``store.dispatch``)."""
        self.restart_at(start)

    @property
    def next_offset(self) -> QueueOffset:
        """The offset that the next appended message gets."""
        return QueueOffset(self.offsets[self.slot])

    @next_offset.setter
    def next_offset(self, offset: int) -> None:
        self.offsets[self.slot] = offset

    def restart_at(self, offset: int) -> None:
        """Become an empty queue whose next message gets ``offset``."""
        self.first = self.end = QueueOffset(offset)
        self.next_offset = QueueOffset(offset)
        self.tail = Tail(offset)
        """The newest entries; not to be kept, since another one may replace it."""
        self.spill_at = TAIL_BYTES_USUAL
        """Size of the tail from which on it is written to the file."""

    def detach(self) -> None:
        """Keep the next offset apart from the table's, since the queue is no longer in it."""
        self.offsets = memoryview(array("q", (self.next_offset,)))
        self.slot = 0

    def resume(self, first: int, end: int, last_position: int) -> None:
        """Become the queue whose entries [``first``, ``end``) are in its files."""
        self.restart_at(end)
        self.first = QueueOffset(first)
        self.last_position = last_position

    def put(self, queue_offset: int, position: int, size: int, tags_code: int) -> None:
        """Make a message visible; calls must be in the order of the offsets."""
        assert queue_offset == self.end
        data = self.tail.data
        data += _pack(position, size, tags_code)
        self.end = queue_offset + 1  # type: ignore[assignment]
        self.last_position = position
        if len(data) >= self.spill_at:
            self.spill()

    def put_recovered(self, queue_offset: int, position: int, size: int, tags_code: int) -> None:
        """Make a record visible that recovery has read from the log."""
        self.put(queue_offset, position, size, tags_code)
        self.next_offset = self.end

    def fill_to(self, offset: int) -> None:
        """Fill the offsets up to ``offset``, whose messages are lost, with fillers.

        Readers skip fillers, and those offsets are never assigned again.
        """
        while self.end < offset:
            count = min(offset - self.end, GAP_COUNT_MAX)
            self.tail.data += FILLER * count
            self.end = QueueOffset(self.end + count)
            if len(self.tail.data) >= self.spill_at:
                self.spill()
        self.next_offset = self.end

    def read(self, offset: int, count_max: int) -> bytes:
        """Return up to ``count_max`` entries of 20 bytes from ``offset`` on; empty if outside."""
        tail = self.tail
        if offset >= tail.start:
            at = (offset - tail.start) * ENTRY_BYTES
            return bytes(tail.data[at : at + count_max * ENTRY_BYTES])
        if offset < self.first:
            return b""
        in_files = tail.start - offset
        from_files = count_max if count_max < in_files else in_files
        try:
            found = self._files.read(self._directory, offset, from_files, tail.start)
        except FileNotFoundError:
            logger.error("queue file is missing directory=%s offset=%s", self._directory, offset)
            return b""
        count = len(found) // ENTRY_BYTES
        if 0 < count < count_max:
            return found[: count * ENTRY_BYTES] + self.read(offset + count, count_max - count)
        return found

    def entry(self, offset: int) -> tuple[int, int, int] | None:
        """Return (position, size, tags code) of one message, or None."""
        data = self.read(offset, 1)
        return _unpack(data) if data else None

    def store_time(self, offset: int, pages: ReadPages | None = None) -> int:
        """Return the store time of a message; -1 if there is none.

        Args:
            offset: The message.
            pages: See :meth:`CommitLog.store_time`.
        """
        if not self.first <= offset < self.end:
            return -1
        tail = self.tail
        entry = (
            _unpack(tail.data, (offset - tail.start) * ENTRY_BYTES)
            if offset >= tail.start
            else self.entry(offset)
        )
        if entry is None or entry[1] == FILLER_SIZE:
            return -1
        return self._store_time(entry[0], pages)

    def offset_at(self, timestamp_ms: int, *, upper: bool = False) -> QueueOffset:
        """Return the first offset stored at or after a time, or with ``upper`` the last up to it.

        The result is within [first, end]; for an empty queue it is ``end``.
        """
        low, high = int(self.first), int(self.end)
        while low < high:
            middle = (low + high) // 2
            # A lost message counts with the store time of the one before it.
            store_ms = self.store_time(self._real_before(middle))
            earlier = store_ms <= timestamp_ms if upper else store_ms < timestamp_ms
            if earlier:
                low = middle + 1
            else:
                high = middle
        return QueueOffset(max(self.first, low - 1) if upper and low > self.first else low)

    def raise_first(self, position_min: int) -> list[str]:
        """Hide entries whose record is before ``position_min``, and fillers.

        Returns:
            The files that are now entirely before ``first``, never the last, for the caller to
            unlink.
        """
        per_file = self._files.entries_per_file
        file_before = self.first // per_file
        self.first = self.first_at(position_min)
        return self._expired_files() if self.first // per_file > file_before else []

    def first_at(self, position: int) -> QueueOffset:
        """Return the first offset whose record is at ``position`` or later; not a filler."""
        low, high = int(self.first), int(self.end)
        middle = low  # most often it is the first
        while low < high:
            if self._lies_before(middle, position):
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        return QueueOffset(low)

    def _lies_before(self, offset: int, position: int) -> bool:
        """Tell whether a record is before ``position``; for a filler, the record before it."""
        entry = self.entry(self._real_before(offset))
        return entry is None or entry[1] == FILLER_SIZE or entry[0] < position

    def _real_before(self, offset: int) -> int:
        """Return the newest offset up to ``offset`` that is not a filler; ``first`` if none.

        Runs of fillers are rare, but may be long.
        """
        entry = self.entry(offset)
        if entry is None or entry[1] != FILLER_SIZE:
            return offset
        while offset > self.first:
            begin = max(int(self.first), offset - GAP_COUNT_MAX)
            entries = self.read(begin, offset - begin)
            for at in range(len(entries) - ENTRY_BYTES, -1, -ENTRY_BYTES):
                if _unpack(entries, at)[1] != FILLER_SIZE:
                    return begin + at // ENTRY_BYTES
            offset = begin
        return offset

    def position_from(self, offset: int) -> Position | None:
        """Return the position of the first record at ``offset`` or later; None if there is none."""
        for at in range(max(offset, self.first), self.end):
            entry = self.entry(at)
            if entry is not None and entry[1] != FILLER_SIZE:
                return Position(entry[0])
        return None

    def end_before(self, position: int) -> tuple[int, int]:
        """Return the end and the last position of the queue, for records before ``position``."""
        if self.last_position < position:
            return int(self.end), self.last_position
        low, high = int(self.first), int(self.end)
        while low < high:
            middle = (low + high) // 2
            if self._lies_before(middle, position):
                low = middle + 1
            else:
                high = middle
        last = self.entry(self._real_before(low - 1)) if low > self.first else None
        return low, last[0] if last is not None and last[1] != FILLER_SIZE else -1

    def cut_at(self, position: int) -> None:
        """Remove entries whose record is at or after ``position``."""
        low, last_position = self.end_before(position)
        if low == self.end:
            return
        first = min(int(self.first), low)
        kept = self.read(self.tail.start, low - self.tail.start) if low > self.tail.start else b""
        # Set first, so that from here on no entry after the end is mended.
        self.resume(first, low, last_position)
        self.checked = (0, 0, 0)
        self._files.truncate(self._directory, low)
        if kept:
            self._files.write(self._directory, low - len(kept) // ENTRY_BYTES, kept)

    def begin_again(self) -> None:
        """Become an empty queue at offset 0, without files."""
        self.remove_files()
        self.restart_at(0)
        self.checked = (0, 0, 0)

    def remove_files(self) -> None:
        """Unlink every file of the queue."""
        self._files.forget_directory(self._directory)
        for start in self._files.starts(self._directory):
            self._files.files.unlink(self._files.path(self._directory, start))
        self.last_position = -1

    @property
    def unsaved_bytes(self) -> int:
        """Number of bytes of the tail that are not in a file yet."""
        tail = self.tail
        return len(tail.data) - tail.saved_bytes

    def save_blocking(self) -> list[str]:
        """Write the current tail; returns the files written. For the checkpoint thread."""
        tail = self.tail
        data = bytes(tail.data)
        begin = tail.saved_bytes
        if len(data) == begin:
            return []
        with self._files.writing:
            if self.is_deleted:
                return []
            start = tail.start + begin // ENTRY_BYTES
            written = self._files.write_blocking(self._directory, start, data[begin:])
        tail.saved_bytes = len(data)
        return written

    def read_from_thread(self, offset: int, count_max: int) -> bytes:
        """Return entries of 20 bytes from ``offset`` on that are in files."""
        count = min(count_max, self.tail.start - offset)
        return self._files.read_blocking(self._directory, offset, count) if count > 0 else b""

    def mend_from_thread(self, offset: int, position: int, size: int, tags_code: int) -> bool:
        """Overwrite an entry that was damaged in its file; False if that is not possible."""
        try:
            with self._files.writing:
                if self.is_deleted or offset >= self.tail.start:
                    return False  # the queue is gone, or the entry is in memory
                entry = _pack(position, size, tags_code)
                self._files.overwrite_blocking(self._directory, offset, entry)
        except OSError as error:
            logger.error("queue file not written directory=%s reason=%s", self._directory, error)
            return False
        return True

    def _expired_files(self) -> list[str]:
        per_file = self._files.entries_per_file
        paths = []
        for start in self._files.starts(self._directory)[:-1]:
            if start + per_file <= self.first:
                path = self._files.path(self._directory, start)
                self._files.forget(path)
                paths.append(path)
        return paths

    def spill(self) -> None:
        """Write the tail to the file, and begin a new one."""
        tail = self.tail
        try:
            self._files.write(self._directory, tail.start, tail.data)
        except OSError as error:
            # The entries stay readable in memory; the checkpoint thread reports failed writes.
            self.spill_at = len(tail.data) + TAIL_BYTES_USUAL
            logger.error("queue file not written directory=%s reason=%s", self._directory, error)
            return
        self.tail = Tail(self.end)
        surplus = len(tail.data) - self.spill_at  # nothing if entries come one by one
        self.spill_at = min(TAIL_BYTES_USUAL + _TAIL_GROWTH * surplus, TAIL_BYTES_MAX)
