"""Selection of consume-queue entries by tags code.

An entry is 20 bytes, big-endian: position int64, record size int32, tags code int64. The plain
build unpacks entries in C by ``struct``; the compiled one compares tags codes in place.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from struct import Struct

_PLAIN = __file__.endswith((".py", ".pyc"))
_UNIT = Struct(">qiq")
_UNIT_BYTES = 20
_TAGS_AT = 12
_PART = 128
_BIT = 1
_FILLER_SIZE = 0x7FFF_FFFF


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
