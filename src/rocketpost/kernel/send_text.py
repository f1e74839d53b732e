"""Text in headers and properties: the check of UTF-8, and JSON strings without their escapes."""

from __future__ import annotations

from typing import Any

try:
    import cython
except ImportError:
    from rocketpost.kernel import uncompiled as cython
if not cython.compiled:
    from rocketpost.kernel.uncompiled import Send

Bytes = Any
"""Bytes that are read by index; a pointer in the compiled build."""
Room = Any
"""Bytes that are written by index."""

_QUOTE = 34
_BACKSLASH = 92


def is_text(p: Bytes, at: int, end: int, lowest: int) -> bool:
    """Tell whether bytes are well-formed UTF-8 without characters below ``lowest``."""
    other = 0
    for i in range(at, end):
        other |= (p[i] < lowest) | (p[i] > 127)
    if not other:
        return True
    while at < end:
        byte = p[at]
        at += 1
        if byte < 128:
            if byte < lowest:
                return False
            continue
        if byte < 0xC2 or byte > 0xF4:
            return False
        more = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
        if end - at < more:
            return False
        second = p[at]
        # No longer form than needed, no surrogates, nothing over U+10FFFF.
        if (
            (byte == 0xE0 and second < 0xA0)
            or (byte == 0xED and second > 0x9F)
            or (byte == 0xF0 and second < 0x90)
            or (byte == 0xF4 and second > 0x8F)
        ):
            return False
        for i in range(at, at + more):
            if p[i] & 0xC0 != 0x80:
                return False
        at += more
    return True


def unescape(p: Bytes, at: int, end: int, scratch: Room, room: int, send: Send) -> int:
    """Copy a JSON string without its escapes; returns the index of its quote, or -1."""
    to = 0
    while at < end:
        byte = p[at]
        if byte == _QUOTE:
            send.is_unescaped = 1
            send.text_at = 0
            send.text_end = to
            return at
        if room - to < 3:
            return -1
        if byte != _BACKSLASH:
            scratch[to] = byte
            to += 1
            at += 1
            continue
        if end - at < 2:
            return -1
        mark = p[at + 1]
        at += 2
        if mark == 117:  # u
            if end - at < 4:
                return -1
            unit = _read_hex(p, at)
            at += 4
            if unit < 0 or (unit >= 0xD800 and unit <= 0xDFFF):
                return -1
            if unit < 0x80:
                scratch[to] = unit
                to += 1
            elif unit < 0x800:
                scratch[to] = 0xC0 | unit >> 6
                scratch[to + 1] = 0x80 | unit & 0x3F
                to += 2
            else:
                scratch[to] = 0xE0 | unit >> 12
                scratch[to + 1] = 0x80 | unit >> 6 & 0x3F
                scratch[to + 2] = 0x80 | unit & 0x3F
                to += 3
            continue
        if mark == 110:  # n
            mark = 10
        elif mark == 116:  # t
            mark = 9
        elif mark == 114:  # r
            mark = 13
        elif mark == 98:  # b
            mark = 8
        elif mark == 102:  # f
            mark = 12
        elif mark != _QUOTE and mark != _BACKSLASH and mark != 47:
            return -1
        scratch[to] = mark
        to += 1
    return -1


def _read_hex(p: Bytes, at: int) -> int:
    """Read four hexadecimal digits; -1 if they are not."""
    unit = 0
    for i in range(at, at + 4):
        digit = p[i]
        if digit >= 48 and digit <= 57:
            digit -= 48
        elif digit >= 97 and digit <= 102:
            digit -= 87
        elif digit >= 65 and digit <= 70:
            digit -= 55
        else:
            return -1
        unit = unit << 4 | digit
    return unit
