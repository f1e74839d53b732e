"""RocketMQ's bloom filter: the bits by which a consumer group would be known in a bit map.

``consumerFilter.json`` carries them for each filter; a Java broker that opens our store takes the
file only if they are those that its own settings give. Nothing here tests them: messages are
judged by their properties.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

_MASK: Final = 2**64 - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


class BloomShape(NamedTuple):
    """How many hash functions and bits a filter has."""

    hash_count: int
    bit_count: int


def bloom_shape(error_percent: int, capacity: int) -> BloomShape:
    """Return the shape that keeps errors below ``error_percent`` with ``capacity`` entries."""
    error = error_percent / 100
    # In Java's order of operations: a last bit of difference would be another shape.
    hash_count = math.ceil(math.log(error) / math.log(0.5))
    bits = math.ceil(
        capacity * (math.log(1 / error) / math.log(2)) * (math.log(math.e) / math.log(2))
    )
    return BloomShape(hash_count, math.ceil(bits / 8) * 8)


def bloom_positions(text: str, shape: BloomShape) -> list[int]:
    """Return the bits of ``text``."""
    low = murmur3_128_low(text.encode())
    first, second = _signed(low & 0xFFFF_FFFF), _signed(low >> 32)
    positions = []
    for number in range(1, shape.hash_count + 1):
        combined = _signed((first + number * second) & 0xFFFF_FFFF)
        positions.append((~combined if combined < 0 else combined) % shape.bit_count)
    return positions


def murmur3_128_low(data: bytes) -> int:
    """Return the first 64 bits of the 128-bit Murmur3 hash of ``data``, seed 0."""
    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        h1 ^= _mix1(int.from_bytes(data[at : at + 8], "little"))
        h1 = ((_rotated(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= _mix2(int.from_bytes(data[at + 8 : at + 16], "little"))
        h2 = ((_rotated(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    tail = data[whole:]
    h2 ^= _mix2(int.from_bytes(tail[8:], "little"))
    h1 ^= _mix1(int.from_bytes(tail[:8], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_finished(h1) + _finished(h2)) & _MASK


def _mix1(block: int) -> int:
    return _rotated(block * _C1 & _MASK, 31) * _C2 & _MASK


def _mix2(block: int) -> int:
    return _rotated(block * _C2 & _MASK, 33) * _C1 & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _finished(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


def _signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value
