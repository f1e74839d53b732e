"""The bits of a consumer group in RocketMQ's bloom filter.

``consumerFilter.json`` holds them for each filter. A Java broker that opens our store accepts the
file only if the bits match its own settings. Nothing here tests them: messages are filtered by
their properties.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

_MASK: Final = 2**64 - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


class BloomShape(NamedTuple):
    """The number of hash functions and bits of a filter."""

    hash_count: int
    bit_count: int


def bloom_shape(error_percent: int, capacity: int) -> BloomShape:
    """Return the shape that keeps errors below ``error_percent`` with ``capacity`` entries."""
    error = error_percent / 100
    # Same order of operations as Java: a difference in the last bit would change the shape.
    hash_count = math.ceil(math.log(error) / math.log(0.5))
    bits = math.ceil(
        capacity * (math.log(1 / error) / math.log(2)) * (math.log(math.e) / math.log(2))
    )
    return BloomShape(hash_count, math.ceil(bits / 8) * 8)


def bloom_positions(text: str, shape: BloomShape) -> list[int]:
    """Return the bits of ``text``."""
    low = murmur3_128_low(text.encode())
    first, second = _to_signed(low & 0xFFFF_FFFF), _to_signed(low >> 32)
    positions = []
    for number in range(1, shape.hash_count + 1):
        combined = _to_signed((first + number * second) & 0xFFFF_FFFF)
        positions.append((~combined if combined < 0 else combined) % shape.bit_count)
    return positions


def murmur3_128_low(data: bytes) -> int:
    """Return the first 64 bits of the 128-bit Murmur3 hash of ``data``, seed 0."""
    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        h1 ^= _mix1(int.from_bytes(data[at : at + 8], "little"))
        h1 = ((_rotate_left(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= _mix2(int.from_bytes(data[at + 8 : at + 16], "little"))
        h2 = ((_rotate_left(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    tail = data[whole:]
    h2 ^= _mix2(int.from_bytes(tail[8:], "little"))
    h1 ^= _mix1(int.from_bytes(tail[:8], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_mix_final(h1) + _mix_final(h2)) & _MASK


def _mix1(block: int) -> int:
    return _rotate_left(block * _C1 & _MASK, 31) * _C2 & _MASK


def _mix2(block: int) -> int:
    return _rotate_left(block * _C2 & _MASK, 33) * _C1 & _MASK


def _rotate_left(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _mix_final(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


def _to_signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value
