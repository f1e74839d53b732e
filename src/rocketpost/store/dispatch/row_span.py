"""Rows of a wave that wait to become visible, and their entries.

A wave (``store.wave``) describes a message by a row of five numbers: position, size, tags code,
slot of its queue, queue offset. Keys are pairs of numbers: hash and position. A span is a run of
rows that are neighbours in the log; it stands between ordinary messages
(:class:`~rocketpost.store.draft.Appended`) in the list of those that wait. The messages of a wave
have one store time. Records of a leader (``store.replica.raw_append``) have one each, which never
falls within a span.
"""

from __future__ import annotations

import bisect
from array import array
from typing import Final

import msgspec

from rocketpost.kernel.queue_entries import group_rows
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.store.draft import Appended
from rocketpost.store.queue.files import ENTRY_BYTES
from rocketpost.store.queue.slots import QueueSlots

ROW: Final = 5
"""Numbers of a row."""
SIZE: Final = 1
TAGS_CODE: Final = 2
SLOT: Final = 3
QUEUE_OFFSET: Final = 4
PAIR: Final = 2
"""Numbers of a key: hash and position."""
_GROUP: Final = 5
_ROOM_MIN: Final = 256


class RowSpan(msgspec.Struct, gc=False, eq=False):
    """A run of rows, not empty, and the keys of their messages."""

    rows: array[int]
    first_row: int
    row_end: int
    keys: array[int]
    first_key: int
    key_end: int
    store_ms: int
    """Store time of the last message."""
    times: array[int] | None = None
    """Store time of each row; None if all have the same."""

    @property
    def position(self) -> int:
        """The position of the first message."""
        return self.rows[self.first_row * ROW]

    @property
    def end(self) -> int:
        """The position after the last message."""
        last = self.row_end * ROW - ROW
        return self.rows[last] + self.rows[last + SIZE]

    def split_at(self, position: int) -> RowSpan | None:
        """Keep the messages that begin before ``position``, as the first one does; return the rest.

        None if there is no rest.
        """
        row = bisect.bisect_left(
            range(self.row_end), position, self.first_row, key=lambda row: self.rows[row * ROW]
        )
        assert row > self.first_row
        if row == self.row_end:
            return None
        key = self._first_key_of(row)
        rest = RowSpan(
            self.rows, row, self.row_end, self.keys, key, self.key_end, self.store_ms, self.times
        )
        self.row_end = row
        self.key_end = key
        if self.times is not None:
            self.store_ms = self.times[row - 1]
        return rest

    def time_of_key(self, key: int) -> int:
        """Return the store time of the message that a key belongs to."""
        return self.store_ms if self.times is None else self.times[self._row_of_key(key)]

    def keys_before(self, key: int, end_ms: int) -> tuple[int, int]:
        """Find the keys, from ``key`` on, of messages stored before ``end_ms``, which the first is.

        Returns:
            The key after the last of them, and the store time of the last message.
        """
        if self.times is None or self.store_ms < end_ms:
            return self.key_end, self.store_ms
        row = bisect.bisect_left(self.times, end_ms, self._row_of_key(key), self.row_end)
        return self._first_key_of(row), self.times[row - 1]

    def border_below(self, ceiling: int) -> int | None:
        """Return the end of the last whole message before ``ceiling``; None if there is none."""
        count = bisect.bisect_right(range(self.row_end), ceiling, self.first_row, key=self._end_of)
        return self._end_of(count - 1) if count > self.first_row else None

    def give_back(self, slots: QueueSlots) -> None:
        """Release the queue offsets of the messages; those of later ones were released before."""
        rows = self.rows
        for at in range((self.row_end - 1) * ROW, self.first_row * ROW - 1, -ROW):
            queue, queue_offset = slots.queues[rows[at + SLOT]], rows[at + QUEUE_OFFSET]
            assert queue.next_offset == queue_offset + 1
            queue.next_offset = QueueOffset(queue_offset)

    def messages(self, slots: QueueSlots) -> list[Appended]:
        """Return the messages one by one, without their keys."""
        found = []
        for at in range(self.first_row * ROW, self.row_end * ROW, ROW):
            position, size, tags_code, slot, queue_offset = self.rows[at : at + ROW]
            queue = slots.queues[slot]
            found.append(
                Appended(
                    Position(position),
                    size,
                    QueueOffset(queue_offset),
                    self.store_ms if self.times is None else self.times[at // ROW],
                    queue.topic,
                    queue.queue_id,
                    tags_code,
                    (),
                    queue,
                )
            )
        return found

    def _first_key_of(self, row: int) -> int:
        """Return the first key of a row or of a later one; the end if there is none."""
        begin = self.rows[row * ROW]
        return bisect.bisect_left(
            range(self.key_end), begin, self.first_key, key=lambda key: self.keys[key * PAIR + 1]
        )

    def _row_of_key(self, key: int) -> int:
        position = self.keys[key * PAIR + 1]
        return bisect.bisect_left(
            range(self.row_end), position, self.first_row, key=lambda row: self.rows[row * ROW]
        )

    def _end_of(self, row: int) -> int:
        return self.rows[row * ROW] + self.rows[row * ROW + SIZE]


class RowEntries:
    """Adds the entries of rows to their queues. Owned by the loop thread."""

    def __init__(self, slots: QueueSlots) -> None:
        self._slots = slots
        self._marks = array("q")
        self._groups = array("q")
        self._entries = bytearray()

    def put(self, span: RowSpan, arrivals: list[Arrival]) -> None:
        """Add the entries of a span to the tails of its queues, and notices to ``arrivals``."""
        count = span.row_end - span.first_row
        if len(self._groups) < count * _GROUP or len(self._marks) < len(self._slots.queues):
            self._make_room(count)
        groups, entries = self._groups, self._entries
        queue_count = group_rows(span.rows, span.first_row, count, self._marks, groups, entries)
        assert queue_count > 0, "rows of a wave are out of order"
        begin = 0
        for at in range(0, queue_count * _GROUP, _GROUP):
            slot, first_offset, end, record_bytes, last_position = groups[at : at + _GROUP]
            queue = self._slots.queues[slot]
            if not queue.is_deleted:
                assert first_offset == queue.end
                data = queue.tail.data
                notice = queue.notice
                if notice is None:
                    queue.notice = notice = Arrival(
                        queue.topic,
                        queue.queue_id,
                        first_offset,
                        record_bytes,
                        data,
                        len(data),
                        0,
                        queue,
                    )
                    arrivals.append(notice)
                else:
                    notice.record_bytes += record_bytes
                data += entries[begin * ENTRY_BYTES : end * ENTRY_BYTES]
                queue.end = QueueOffset(first_offset + end - begin)
                queue.last_position = last_position
            begin = end

    def _make_room(self, count: int) -> None:
        if len(self._groups) < count * _GROUP:
            room = max(_ROOM_MIN, 1 << count.bit_length())
            self._groups = array("q", bytes(8 * _GROUP * room))
            self._entries = bytearray(ENTRY_BYTES * room)
        if len(self._marks) < len(self._slots.queues):
            self._marks = array("q", bytes(8 * len(self._slots.next_offsets)))
