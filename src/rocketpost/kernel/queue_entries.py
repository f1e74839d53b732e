"""Entries of consume queues from rows, the messages that a wave wrote to the log.

A row is five numbers: position, size, tags code, slot of the queue, queue offset. An entry is 20
bytes, big-endian: position int64, size int32, tags code int64.
"""

from __future__ import annotations

from array import array
from struct import Struct

try:
    import cython
except ImportError:
    from rocketpost.kernel import uncompiled as cython

_ROW = 5
_SIZE = 1
_TAGS = 2
_SLOT = 3
_OFFSET = 4
_GROUP = 5
_FIRST_OFFSET = 1
_END = 2
_BYTES = 3
_LAST_POSITION = 4
_ENTRY_BYTES = 20
_SIZE_MAX = 0x7FFF_FFFF

_pack_into = Struct(">qiq").pack_into


def group_rows(
    rows: array[int],
    first: int,
    count: int,
    marks: array[int],
    groups: array[int],
    entries: bytearray,
) -> int:
    """Write the entries of rows, those of one queue next to each other and in their order.

    Args:
        rows: The rows.
        first: The first row to use.
        count: The number of rows to use.
        marks: One element for each slot, 0 before and after the call.
        groups: Receives five numbers for each queue: slot, queue offset of the first row, number of
            entries in ``entries`` up to its last one, sum of the sizes, position of the last row.
        entries: Receives the entries.

    Returns:
        The number of queues; -1 if the rows are not possible or the room is too small. Then no
        entry was written.
    """
    row_count = len(rows) // _ROW
    slot_count = len(marks)
    if (
        first < 0
        or count <= 0
        or first > row_count - count
        or len(groups) // _GROUP < count
        or len(entries) // _ENTRY_BYTES < count
    ):
        return 0 if count == 0 else -1
    queue_count = 0
    is_sound = True
    for row in range(first, first + count):
        at = row * _ROW
        slot = rows[at + _SLOT]
        size = rows[at + _SIZE]
        if slot < 0 or slot >= slot_count or size <= 0 or size > _SIZE_MAX:
            is_sound = False
            break
        queue = marks[slot]
        if queue == 0:
            queue_count += 1
            queue = queue_count
            marks[slot] = queue
            group = (queue - 1) * _GROUP
            groups[group] = slot
            groups[group + _FIRST_OFFSET] = rows[at + _OFFSET]
            groups[group + _END] = 0
            groups[group + _BYTES] = 0
        else:
            group = (queue - 1) * _GROUP
            if rows[at + _OFFSET] != groups[group + _FIRST_OFFSET] + groups[group + _END]:
                is_sound = False
                break
        groups[group + _END] += 1
        groups[group + _BYTES] += size
        groups[group + _LAST_POSITION] = rows[at]
    if is_sound:
        _write(rows, first, count, marks, groups, entries, queue_count)
    for queue in range(queue_count):
        marks[groups[queue * _GROUP]] = 0
    return queue_count if is_sound else -1


def _write(
    rows: array[int],
    first: int,
    count: int,
    marks: array[int],
    groups: array[int],
    entries: bytearray,
    queue_count: int,
) -> None:
    """Write each entry to the next place of its queue; ``_END`` counts from 0 to the end."""
    begin = 0
    for queue in range(queue_count):
        group = queue * _GROUP
        number = groups[group + _END]
        groups[group + _END] = begin
        begin += number
    for row in range(first, first + count):
        at = row * _ROW
        group = (marks[rows[at + _SLOT]] - 1) * _GROUP
        place = groups[group + _END] * _ENTRY_BYTES
        groups[group + _END] += 1
        if cython.compiled:
            entry = cython.address(entries[place])
            _put_int(entry, 0, rows[at] >> 32)
            _put_int(entry, 4, rows[at])
            _put_int(entry, 8, rows[at + _SIZE])
            _put_int(entry, 12, rows[at + _TAGS] >> 32)
            _put_int(entry, 16, rows[at + _TAGS])
        else:
            _pack_into(entries, place, rows[at], rows[at + _SIZE], rows[at + _TAGS])


def _put_int(entry: bytearray, at: int, value: int) -> None:
    entry[at] = value >> 24 & 0xFF
    entry[at + 1] = value >> 16 & 0xFF
    entry[at + 2] = value >> 8 & 0xFF
    entry[at + 3] = value & 0xFF
