"""Java's ``String.hashCode`` and what RocketMQ derives from it.

The hash runs over UTF-16 code units: ``h = 31 * h + unit``, wrapped to a signed 32-bit integer.
Wrapping is done with a mask, so that the compiled and the plain build agree.
"""

from __future__ import annotations


def string_hash(text: str) -> int:
    """Return Java's ``text.hashCode()`` as a signed 32-bit integer."""
    h = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            h = (31 * h + unit) & 0xFFFF_FFFF
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(data), 2):
            h = (31 * h + (data[at] << 8) + data[at + 1]) & 0xFFFF_FFFF
    return h - 0x1_0000_0000 if h & 0x8000_0000 else h


def index_hash(text: str) -> int:
    """Return the key-index hash: the absolute string hash, with the one unnegatable value as 0."""
    h = string_hash(text)
    return 0 if h == -0x8000_0000 else abs(h)
