# cython: cdivision=True
"""Responses to stored sends, written as bytes: those that ``server.handlers.send`` encodes.

A response consists of fixed pieces, given by the caller, with values between them:

    JSON     piece 0, message ids, 1, queue id, 2, queue offset, 3, unique key, 4, opaque, 5
    binary   the same without the opaque and piece 5; each value's length is in the four bytes
             before it, opaque and length of all fields are at fixed places

A message id is the prefix (the broker's address) and sixteen hexadecimal digits; the ids of a batch
are separated by commas.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

try:
    import cython
except ImportError:
    from rocketpost.kernel import uncompiled as cython
if not cython.compiled:
    from rocketpost.kernel.uncompiled import Send, memcpy

Bytes = Any
"""Bytes that are read by index; a pointer in the compiled build."""
Room = Any
"""Bytes that are written by index."""
Numbers = Any
"""Numbers of 64 bits that are read by index."""

_PREFIX_BYTES = 8
_OPAQUE_AT = 13
_FIELDS_AT = 25
_BINARY_BYTES = 21
_ID_DIGITS = 16
_ROW = 5
_DIGITS = b"0123456789ABCDEF"


def ends_of(pieces: Sequence[bytes]) -> array[int]:
    """Return the end of each piece when they are joined."""
    ends = array("q")
    total = 0
    for piece in pieces:
        total += len(piece)
        ends.append(total)
    return ends


def reply_bytes_max(pieces_bytes: int, prefix_bytes: int, count: int, unique_bytes: int) -> int:
    """Return a bound on the size of a response to ``count`` messages."""
    return (
        _PREFIX_BYTES + pieces_bytes + count * (prefix_bytes + _ID_DIGITS + 1) + unique_bytes + 64
    )


def write_reply(
    out: Room,
    begin: int,
    pieces: Bytes,
    ends: Numbers,
    prefix: Bytes,
    prefix_bytes: int,
    rows: Numbers,
    row: int,
    count: int,
    queue_offset: int,
    text: Bytes,
    send: Send,
    is_binary: int,
) -> int:
    """Write a response; returns the index after it. The caller has made sure of the room.

    Args:
        out: Receives the response.
        begin: The index of its first byte.
        pieces: The fixed pieces, one after the other.
        ends: The end of each piece.
        prefix: The first part of message ids.
        prefix_bytes: The length of ``prefix``.
        rows: The rows of the stored messages, five numbers each; the first is the position.
        row: The row of the first message.
        count: The number of messages.
        queue_offset: The queue offset of the first message.
        text: The buffer with the unique key.
        send: The request.
        is_binary: 1 for the binary encoding, else 0.
    """
    at = _put_piece(out, begin + _PREFIX_BYTES, pieces, 0, ends[0])
    mark = at
    for each in range(row, row + count):
        if each > row:
            out[at] = 44
            at += 1
        _copy(out, at, prefix, 0, prefix_bytes)
        at = _put_hex(out, at + prefix_bytes, rows[each * _ROW])
    if is_binary:
        _put4(out, mark - 4, at - mark)
    at = mark = _put_piece(out, at, pieces, ends[0], ends[1])
    at = _put_number(out, at, send.queue_id)
    if is_binary:
        _put4(out, mark - 4, at - mark)
    at = mark = _put_piece(out, at, pieces, ends[1], ends[2])
    at = _put_number(out, at, queue_offset)
    if is_binary:
        _put4(out, mark - 4, at - mark)
    at = mark = _put_piece(out, at, pieces, ends[2], ends[3])
    _copy(out, at, text, send.unique_at, send.unique_end - send.unique_at)
    at += send.unique_end - send.unique_at
    if is_binary:
        _put4(out, mark - 4, at - mark)
    at = _put_piece(out, at, pieces, ends[3], ends[4])
    if is_binary:
        _put4(out, begin + _OPAQUE_AT, send.opaque)
        _put4(out, begin + _FIELDS_AT, at - begin - _PREFIX_BYTES - _BINARY_BYTES)
    else:
        at = _put_number(out, at, send.opaque)
        at = _put_piece(out, at, pieces, ends[4], ends[5])
    _put4(out, begin, at - begin - 4)
    _put4(out, begin + 4, at - begin - _PREFIX_BYTES)
    out[begin + 4] = is_binary
    return at


def _put_piece(out: Room, at: int, pieces: Bytes, begin: int, end: int) -> int:
    """Copy a piece; returns the index after it."""
    _copy(out, at, pieces, begin, end - begin)
    return at + end - begin


def _put_hex(out: Room, at: int, value: int) -> int:
    """Write sixteen hexadecimal digits; returns the index after them."""
    for i in range(_ID_DIGITS):
        out[at + i] = _DIGITS[value >> (60 - 4 * i) & 15]
    return at + _ID_DIGITS


def _put_number(out: Room, at: int, value: int) -> int:
    """Write a decimal number of at most 18 digits; returns the index after it."""
    if value < 0:
        out[at] = 45
        at += 1
        value = -value
    count = 1
    power = 10
    while value >= power:
        count += 1
        power *= 10
    for i in range(count):
        out[at + count - 1 - i] = 48 + value % 10
        value //= 10
    return at + count


def _put4(out: Room, at: int, value: int) -> None:
    """Write a 32-bit number."""
    out[at] = value >> 24 & 0xFF
    out[at + 1] = value >> 16 & 0xFF
    out[at + 2] = value >> 8 & 0xFF
    out[at + 3] = value & 0xFF


def _copy(out: Room, at: int, data: Bytes, begin: int, size: int) -> None:
    """Copy bytes from one buffer to another."""
    if cython.compiled:
        memcpy(out + at, data + begin, size)
    else:
        out[at : at + size] = data[begin : begin + size]
