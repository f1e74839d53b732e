"""Selection of consume-queue entries by tags code, and copies of the records they point to.

An entry is 20 bytes, big-endian: position int64, record size int32, tags code int64. The plain
build unpacks entries in C by ``struct``; the compiled one compares tags codes in place. One copy of
a pull's records costs less than passing each of them to the socket on its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from struct import Struct

try:
    import cython
except ImportError:
    from rocketpost.kernel import uncompiled as cython
if not cython.compiled:
    from rocketpost.kernel.uncompiled import PyBytes_AS_STRING, PyBytes_FromStringAndSize, memcpy

_PLAIN = __file__.endswith((".py", ".pyc"))
_UNIT = Struct(">qiq")
_UNIT_BYTES = 20
_SIZE_AT = 8
_TAGS_AT = 12
_PART = 128
_BIT = 1
_FILLER_SIZE = 0x7FFF_FFFF
_COPIED_BYTES_MAX = 16 * 1024
"""Average size up to which copying a record costs less than passing it on its own."""


def scan_units(
    units: bytes | memoryview, wanted: AbstractSet[int], *, count_max: int, bytes_max: int
) -> tuple[list[tuple[int, int, int]], int]:
    """Choose entries, oldest first, until a bound is reached.

    Args:
        units: Complete entries; a torn one at the end is ignored.
        wanted: Tags codes to keep; empty means every entry.
        count_max: Maximum number of chosen entries.
        bytes_max: Maximum bytes of chosen records; the first record may exceed it.

    Returns:
        Chosen entries as (ordinal among ``units``, position, record size), and the number of
        scanned entries, where the next scan starts. An entry that a bound kept out does not
        count as scanned; fillers after a chosen entry do.
    """
    whole = len(units) // _UNIT_BYTES
    chosen: list[tuple[int, int, int]] = []
    total = 0
    # One part at a time: where most entries match, a bound is reached after a few of them.
    part = _PART if wanted else whole
    for start in range(0, whole, part or 1):
        end = min(start + part, whole)
        ordinals: Iterable[int] = range(start, end)
        if wanted:
            found = matching_ordinals(units[start * _UNIT_BYTES : end * _UNIT_BYTES], wanted)
            ordinals = [start + each for each in found]
        for ordinal in ordinals:
            position, size, _ = _UNIT.unpack_from(units, ordinal * _UNIT_BYTES)
            total += size
            if len(chosen) >= count_max or (total > bytes_max and chosen):
                if size == _FILLER_SIZE and len(chosen) < count_max:
                    total -= size  # a filler: it only closes a gap
                    continue
                return chosen, ordinal
            chosen.append((ordinal, position, size))
    return chosen, whole


def matching_ordinals(units: bytes | memoryview, wanted: AbstractSet[int]) -> list[int]:
    """Return the ordinals of the entries whose tags code is wanted."""
    if not _PLAIN:
        return _matches_in_place(units, wanted)
    if len(units) % _UNIT_BYTES:
        units = units[: len(units) // _UNIT_BYTES * _UNIT_BYTES]
    entries = enumerate(_UNIT.iter_unpack(units))
    return [ordinal for ordinal, (_, _, code) in entries if code in wanted]


def _matches_in_place(units: bytes | memoryview, wanted: AbstractSet[int]) -> list[int]:
    # One bit per wanted code, by its low six bits, rejects most entries without an object.
    sieve = 0
    for wanted_code in wanted:
        sieve |= _BIT << (wanted_code & 63)
    found: list[int] = []
    for ordinal in range(len(units) // _UNIT_BYTES):
        at = ordinal * _UNIT_BYTES + _TAGS_AT
        if not sieve >> (units[at + 7] & 63) & 1:
            continue
        code = -(units[at] >> 7)
        for byte in range(8):
            code = code << 8 | units[at + byte]
        if code in wanted:
            found.append(ordinal)
    return found


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
