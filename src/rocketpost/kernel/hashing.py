"""Java's ``String.hashCode`` and what RocketMQ derives from it.

The hash runs over UTF-16 code units: ``h = 31 * h + unit``, wrapped to a signed 32-bit integer.
A *state* is the same number unsigned; it lets ``topic#`` be hashed once and each key after it.

The compiled build loops over the units. The plain build takes 32 bytes at a time as one big
integer and folds neighbouring lanes, 8 bits wide, then 16, 32, 64 and 128: a lane that holds
``high * 2**w + low`` becomes ``high * 31**k + low`` by subtracting ``high * (2**w - 31**k)``. No
lane overflows: 31**k has at most 5k bits, and 8k are free. That is three times as fast as the loop.
Wrapping is done with a mask, so that both builds agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

_PLAIN = __file__.endswith((".py", ".pyc"))

_MASK = 0xFFFF_FFFF
_SIGN = 0x8000_0000

_BLOCK = 32
_SHORT = 8  # up to this length the loop is faster in the plain build too
_LANES_8 = int("00ff" * 16, 16)
_LANES_16 = int("0000ffff" * 8, 16)
_LANES_32 = int("00000000ffffffff" * 4, 16)
_LANES_64 = int("0000000000000000ffffffffffffffff" * 2, 16)
_FOLD_8 = 2**8 - 31
_FOLD_16 = 2**16 - 31**2
_FOLD_32 = 2**32 - 31**4
_FOLD_64 = 2**64 - 31**8
_FOLD_128 = 31**16
_POWERS = [pow(31, n, 2**32) for n in range(_BLOCK + 1)]


def extend_state(state: int, text: str) -> int:
    """Return the state after ``text`` is appended to the hashed string."""
    h = state
    if not text.isascii():
        data = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(data), 2):
            h = (31 * h + (data[at] << 8) + data[at + 1]) & _MASK
        return h
    data = text.encode("ascii")
    if _PLAIN and len(data) > _SHORT:
        return _extend_by_blocks(state, data)
    for unit in data:
        h = (31 * h + unit) & _MASK
    return h


def _extend_by_blocks(state: int, data: bytes) -> int:
    for at in range(0, len(data), _BLOCK):
        block = data[at : at + _BLOCK]
        n = int.from_bytes(block, "big")
        n -= (n >> 8 & _LANES_8) * _FOLD_8
        n -= (n >> 16 & _LANES_16) * _FOLD_16
        n -= (n >> 32 & _LANES_32) * _FOLD_32
        n -= (n >> 64 & _LANES_64) * _FOLD_64
        state = (state * _POWERS[len(block)] + (n >> 128) * _FOLD_128 + n) & _MASK
    return state


def string_hash(text: str) -> int:
    """Return Java's ``text.hashCode()`` as a signed 32-bit integer."""
    h = extend_state(0, text)
    return h - _MASK - 1 if h & _SIGN else h


def index_hash(text: str) -> int:
    """Return the key-index hash: the absolute string hash; 0 for the value without a negative."""
    return index_hash_after(0, text)


def index_hash_after(state: int, text: str) -> int:
    """Return the key-index hash after ``text`` is appended to the string hashed in ``state``."""
    h = extend_state(state, text)
    if h & _SIGN:
        h = (_MASK + 1 - h) & (_SIGN - 1)
    return h


def index_hashes_after(state: int, texts: Iterable[str]) -> list[int]:
    """Return :func:`index_hash_after` for each text."""
    return index_hashes(repeat(state), texts)


def index_hashes(states: Iterable[int], texts: Iterable[str]) -> list[int]:
    """Return :func:`index_hash_after` for each pair in one call; calls cost more than hashing."""
    hashes: list[int] = []
    for state, text in zip(states, texts, strict=False):
        if _PLAIN and _SHORT < len(text) <= _BLOCK and text.isascii():
            n = int.from_bytes(text.encode("ascii"), "big")
            n -= (n >> 8 & _LANES_8) * _FOLD_8
            n -= (n >> 16 & _LANES_16) * _FOLD_16
            n -= (n >> 32 & _LANES_32) * _FOLD_32
            n -= (n >> 64 & _LANES_64) * _FOLD_64
            h = (state * _POWERS[len(text)] + (n >> 128) * _FOLD_128 + n) & _MASK
            hashes.append(h if h < _SIGN else (_MASK + 1 - h) & (_SIGN - 1))
        else:
            hashes.append(index_hash_after(state, text))
    return hashes
