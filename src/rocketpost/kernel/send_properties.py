"""The properties of a sent message: what is plain, what is hashed.

A property string is ``name \\x01 value \\x02`` repeated; the last ``\\x02`` may be missing. It is
plain if the broker stores it as it is and treats the message like any other:

- it is well-formed UTF-8 without NUL, and each pair has a name, one separator and a value
- no name occurs twice, and there are at most 32
- no name is special (``broker.plain_topics`` lists them), and none ends in WAIT with the value
  false, which asks for an early answer
- there is a unique key, which stands for itself in a JSON string

Hashes are those of ``kernel.hashing``, over UTF-16 units, computed from UTF-8.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ImportError:
    from rocketpost.kernel import uncompiled as cython
if not cython.compiled:
    from rocketpost.kernel.send_text import is_quotable, is_text
    from rocketpost.kernel.uncompiled import Send, memchr, memcmp

Bytes = Any
"""Bytes that are read by index; a pointer in the compiled build."""

_NAME_END = 1
_VALUE_END = 2
_NAMES_MAX = 32
_ENTRY_BYTES = 22
_SHORT_MAX = 32767
_MASK = 0xFFFF_FFFF
_SIGN = 0x8000_0000


def read_properties(
    text: Bytes, at: int, end: int, special: Bytes, special_bytes: int, send: Send
) -> bool:
    """Find unique key, tags and keys; False if the properties are not plain.

    Args:
        text: The buffer with the property string.
        at: Its start.
        end: Its end.
        special: Names that are not plain, each after a byte with its length.
        special_bytes: The length of ``special``.
        send: Receives the places; 0 and 0 if there are no tags or keys.
    """
    send.unique_at = send.unique_end = 0
    send.tags_at = send.tags_end = 0
    send.keys_at = send.keys_end = 0
    send.is_sharded = 0
    if not is_text(text, at, end, 1):
        return False
    count = 0
    while at < end:
        name_end = _find(text, at, end, _NAME_END)
        if name_end in (at, end):
            return False
        value_at = name_end + 1
        value_end = _find(text, value_at, end, _VALUE_END)
        if value_end == value_at or _find(text, value_at, value_end, _NAME_END) < value_end:
            return False
        if _find(text, at, name_end, _VALUE_END) < name_end:
            return False
        size = name_end - at
        if count == _NAMES_MAX:
            return False
        for i in range(count):
            if send.name_ends[i] - send.names_at[i] == size and _is_same_at(
                text, at, text, send.names_at[i], size
            ):
                return False
        send.names_at[count] = at
        send.name_ends[count] = name_end
        count += 1
        if size == 8 and _is_same(text, at, b"UNIQ_KEY", 8):
            send.unique_at = value_at
            send.unique_end = value_end
        elif size == 4 and _is_same(text, at, b"TAGS", 4):
            send.tags_at = value_at
            send.tags_end = value_end
        elif size == 4 and _is_same(text, at, b"KEYS", 4):
            send.keys_at = value_at
            send.keys_end = value_end
        elif size == 13 and _is_same(text, at, b"__SHARDINGKEY", 13):
            send.is_sharded = 1
        elif _is_special(text, at, size, special, special_bytes):
            return False
        if (
            value_end - value_at == 5
            and size >= 4
            and _is_same(text, name_end - 4, b"WAIT", 4)
            and _is_same(text, value_at, b"false", 5)
        ):
            return False
        at = value_end + 1
    return send.unique_end > 0 and is_quotable(text, send.unique_at, send.unique_end)


def is_nothing_shared(text: Bytes, at: int, end: int) -> bool:
    """Tell whether properties of a batch give its messages nothing: a unique key and WAIT=true."""
    if not is_text(text, at, end, 1):
        return False
    while at < end:
        value_end = _find(text, at, end, _VALUE_END)
        name_end = _find(text, at, value_end, _NAME_END)
        size = name_end - at
        # No value may hold a separator: an early answer is looked for in the whole text.
        is_key = (
            size == 8
            and _is_same(text, at, b"UNIQ_KEY", 8)
            and _find(text, name_end + 1, value_end, _NAME_END) == value_end
        )
        is_wait = (
            size == 4
            and _is_same(text, at, b"WAIT", 4)
            and value_end - name_end == 5
            and _is_same(text, name_end + 1, b"true", 4)
        )
        if not is_key and not is_wait:
            return False
        at = value_end + 1
    return True


def entry_text(p: Bytes, at: int, end: int) -> int:
    """Return the start of the properties of a batch entry, or -1 if it is malformed."""
    if end - at < _ENTRY_BYTES:
        return -1
    body_bytes = _int(p, at + 16)
    if body_bytes <= 0 or body_bytes > end - at - _ENTRY_BYTES:
        return -1
    text_at = at + _ENTRY_BYTES + body_bytes
    text_bytes = p[text_at - 2] << 8 | p[text_at - 1]
    if text_bytes > _SHORT_MAX or text_bytes > end - text_at:
        return -1
    return text_at if text_at + text_bytes - at == _int(p, at) else -1


def hash_text(state: int, text: Bytes, at: int, end: int) -> int:
    """Return the hash state after well-formed UTF-8 is appended to the hashed string."""
    h = state & _MASK
    while end - at >= 4 and (text[at] | text[at + 1] | text[at + 2] | text[at + 3]) < 0x80:
        unit = 29791 * text[at] + 961 * text[at + 1] + 31 * text[at + 2] + text[at + 3]
        h = (923521 * h + unit) & _MASK  # four units at a time: powers of 31
        at += 4
    while at < end:
        byte = text[at]
        if byte < 0x80:
            unit = byte
            at += 1
        elif byte < 0xE0:
            unit = (byte & 0x1F) << 6 | text[at + 1] & 0x3F
            at += 2
        elif byte < 0xF0:
            unit = (byte & 0x0F) << 12 | (text[at + 1] & 0x3F) << 6 | text[at + 2] & 0x3F
            at += 3
        else:
            unit = (byte & 0x07) << 18 | (text[at + 1] & 0x3F) << 12
            unit |= (text[at + 2] & 0x3F) << 6 | text[at + 3] & 0x3F
            at += 4
            unit -= 0x10000
            h = (31 * h + (0xD800 + (unit >> 10))) & _MASK
            unit = 0xDC00 + (unit & 0x3FF)
        h = (31 * h + unit) & _MASK
    return h


def signed_hash(h: int) -> int:
    """Return a hash state as Java's signed hash."""
    number = h
    return number - _MASK - 1 if h & _SIGN else number


def key_hash(h: int) -> int:
    """Return the key-index hash of a hash state (``hashing.index_hash_after``)."""
    number = h
    return (_MASK + 1 - number) & (_SIGN - 1) if h & _SIGN else number


def _is_special(text: Bytes, at: int, size: int, special: Bytes, special_bytes: int) -> bool:
    """Tell whether a name is one of the special ones."""
    place = 0
    while place < special_bytes:
        each = special[place]
        if each == size and _is_same_at(text, at, special, place + 1, size):
            return True
        place += each + 1
    return False


def _find(text: Bytes, at: int, end: int, mark: int) -> int:
    """Return the index of a byte, or the end."""
    if at >= end:
        return end
    if cython.compiled:
        found = cython.cast(cython.p_uchar, memchr(text + at, mark, end - at))
        place = end if found is cython.NULL else found - text
    else:
        place = at
        while place < end and text[place] != mark:
            place += 1
    return place


def _is_same(text: Bytes, at: int, other: bytes, size: int) -> bool:
    """Tell whether bytes are those of ``other``."""
    if not cython.compiled:
        return bool(text[at : at + size] == other)
    is_same: bool = memcmp(text + at, other, size) == 0
    return is_same


def _is_same_at(text: Bytes, at: int, other: Bytes, begin: int, size: int) -> bool:
    """Tell whether two slices are equal."""
    if not cython.compiled:
        return bool(text[at : at + size] == other[begin : begin + size])
    is_same: bool = memcmp(text + at, other + begin, size) == 0
    return is_same


def _int(p: Bytes, at: int) -> int:
    """Read a signed 32-bit number."""
    number: int = p[at] << 8 | p[at + 1]
    number = number << 8 | p[at + 2]
    number = number << 8 | p[at + 3]
    return number - (number >> 31 << 32)
