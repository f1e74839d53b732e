"""Entries of a key index file from pairs of key hash and position.

The file's layout is in ``store.index.index_file``: a header of 40 bytes, slots of 4 bytes with the
number of the newest entry of a chain, entries of 20 bytes: hash int32, position int64, seconds
int32, number of the previous entry int32; all big-endian.
"""

from __future__ import annotations

from array import array
from struct import Struct

try:
    import cython
except ImportError:
    from rocketpost.kernel import uncompiled as cython

_HEADER_BYTES = 40
_SLOT_BYTES = 4
_ENTRY_BYTES = 20
_HASH_MAX = 0x7FFF_FFFF

_read_slot = Struct(">i").unpack_from
_write_slot = Struct(">i").pack_into
_write_entry = Struct(">iqii").pack_into


def put_pairs(
    data: memoryview,
    pairs: array[int],
    first: int,
    count: int,
    slot_count: int,
    number: int,
    seconds: int,
) -> int:
    """Add an entry for each pair; an entry is written before the slot that points to it.

    Args:
        data: The whole file.
        pairs: Key hash and position of each pair.
        first: The first pair to use.
        count: The number of pairs to use.
        slot_count: The number of slots of the file.
        number: The number of the first new entry, from 1 on.
        seconds: The time field of the entries.

    Returns:
        The number of slots that were empty before; -1 if the pairs do not fit, and nothing was
        written.
    """
    entries_at = _HEADER_BYTES + slot_count * _SLOT_BYTES
    if (
        first < 0
        or count < 0
        or number <= 0
        or slot_count <= 0
        or first > len(pairs) // 2 - count
        or number > (len(data) - entries_at) // _ENTRY_BYTES - count
    ):
        return -1
    if cython.compiled:
        file = cython.address(data[0])
        return _put_in_place(file, pairs, first, count, slot_count, number, seconds)
    entry_at = entries_at + number * _ENTRY_BYTES
    used = 0
    for at in range(2 * first, 2 * (first + count), 2):
        key_hash = pairs[at] & _HASH_MAX
        slot_at = _HEADER_BYTES + key_hash % slot_count * _SLOT_BYTES
        (newest,) = _read_slot(data, slot_at)
        if not 0 < newest < number:
            used += newest == 0
            newest = 0
        _write_entry(data, entry_at, key_hash, pairs[at + 1], seconds, newest)
        _write_slot(data, slot_at, number)
        number += 1
        entry_at += _ENTRY_BYTES
    return used


def _put_in_place(
    file: memoryview,
    pairs: array[int],
    first: int,
    count: int,
    slot_count: int,
    number: int,
    seconds: int,
) -> int:
    entries_at = _HEADER_BYTES + slot_count * _SLOT_BYTES
    used = 0
    for pair in range(first, first + count):
        key_hash = pairs[2 * pair] & _HASH_MAX
        slot_at = _HEADER_BYTES + key_hash % slot_count * _SLOT_BYTES
        newest = _get_int(file, slot_at)
        if newest <= 0 or newest >= number:
            if newest == 0:
                used += 1
            newest = 0
        at = entries_at + number * _ENTRY_BYTES
        position = pairs[2 * pair + 1]
        _put_int(file, at, key_hash)
        _put_int(file, at + 4, position >> 32)
        _put_int(file, at + 8, position)
        _put_int(file, at + 12, seconds)
        _put_int(file, at + 16, newest)
        _put_int(file, slot_at, number)
        number += 1
    return used


def _get_int(file: memoryview, at: int) -> int:
    # One byte at a time: a byte shifted by 24 is negative in C.
    value = file[at]
    value = value << 8 | file[at + 1]
    value = value << 8 | file[at + 2]
    value = value << 8 | file[at + 3]
    return value - (value >> 31 << 32)


def _put_int(file: memoryview, at: int, value: int) -> None:
    file[at] = value >> 24 & 0xFF
    file[at + 1] = value >> 16 & 0xFF
    file[at + 2] = value >> 8 & 0xFF
    file[at + 3] = value & 0xFF
