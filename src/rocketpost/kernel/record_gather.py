"""Copies of the records that consume-queue entries point to, joined for an answer.

Entries are chosen as ``kernel.queue_scan`` chooses them. One copy of a pull's records costs less
than passing each of them to the socket on its own.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from struct import Struct

try:
    import cython
except ImportError:
    from rocketpost.kernel import uncompiled as cython
if not cython.compiled:
    from rocketpost.kernel.uncompiled import PyBytes_AS_STRING, PyBytes_FromStringAndSize, memcpy

_UNIT = Struct(">qiq")
_UNIT_BYTES = 20
_SIZE_AT = 8
_TAGS_AT = 12
_FILLER_SIZE = 0x7FFF_FFFF
_COPIED_BYTES_MAX = 16 * 1024
"""Average size up to which copying a record costs less than passing it on its own."""


def gather_records(
    units: bytes | memoryview,
    wanted: AbstractSet[int],
    count_max: int,
    bytes_max: int,
    segment: memoryview,
    start: int,
    end: int,
) -> tuple[bytes, int, int] | None:
    """Choose entries, oldest first, until a bound is reached, and join their records.

    Args:
        units: Complete entries; a torn one at the end is ignored.
        wanted: Tags codes to keep; empty means every entry.
        count_max: Maximum number of chosen entries.
        bytes_max: Maximum bytes of chosen records; the first record may exceed it.
        segment: The bytes of one file of the log.
        start: Position of the first byte of ``segment``.
        end: Position up to which its bytes may be read.

    Returns:
        The records, their number, and the number of scanned entries, where the next scan starts.
        None if an entry has no record in this part of the log, or if the records are large.
    """
    if not cython.compiled:
        return _join(units, wanted, count_max, bytes_max, segment, start, end)
    whole = len(units) // _UNIT_BYTES
    total = count = scanned = 0
    while scanned < whole:
        at = scanned * _UNIT_BYTES
        if not wanted or _long(units, at + _TAGS_AT) in wanted:
            position = _long(units, at)
            size = _int(units, at + _SIZE_AT)
            if count >= count_max:
                break
            if size <= 0 or position < start or size > end - position or size == _FILLER_SIZE:
                return None
            if count and total + size > bytes_max:
                break
            total += size
            count += 1
        scanned += 1
    if total > count * _COPIED_BYTES_MAX:
        return None
    joined = PyBytes_FromStringAndSize(cython.NULL, total)
    room = PyBytes_AS_STRING(joined)
    filled = ordinal = 0
    while ordinal < scanned:
        at = ordinal * _UNIT_BYTES
        if not wanted or _long(units, at + _TAGS_AT) in wanted:
            size = _int(units, at + _SIZE_AT)
            memcpy(room + filled, cython.address(segment[_long(units, at) - start]), size)
            filled += size
        ordinal += 1
    return joined, count, scanned


def _join(
    units: bytes | memoryview,
    wanted: AbstractSet[int],
    count_max: int,
    bytes_max: int,
    segment: memoryview,
    start: int,
    end: int,
) -> tuple[bytes, int, int] | None:
    records: list[memoryview] = []
    total = scanned = 0
    whole = len(units) // _UNIT_BYTES
    for position, size, tags_code in _UNIT.iter_unpack(units[: whole * _UNIT_BYTES]):
        if not wanted or tags_code in wanted:
            if len(records) >= count_max:
                break
            if size <= 0 or position < start or size > end - position or size == _FILLER_SIZE:
                return None
            if records and total + size > bytes_max:
                break
            total += size
            records.append(segment[position - start : position - start + size])
        scanned += 1
    if total > len(records) * _COPIED_BYTES_MAX:
        return None
    return b"".join(records), len(records), scanned


def _int(data: bytes | memoryview, at: int) -> int:
    number = -(data[at] >> 7)
    for byte in range(4):
        number = number << 8 | data[at + byte]
    return number


def _long(data: bytes | memoryview, at: int) -> int:
    number = -(data[at] >> 7)
    for byte in range(8):
        number = number << 8 | data[at + byte]
    return number
