# cython: cdivision=True
"""A client's sends: the heads of their frames, and the answers to them, many frames at a time.

A head is put together from encoded parts; ``codec.send_heads`` has them:

    length, mark    8 bytes: those of a frame with a JSON header
    start           {"code":310,"extFields":{..,"g":"
    time, flag      decimal numbers with ","h":" between them, and ","i": behind
    properties      a JSON string, with the escapes of ``msgspec``
    more            fields of the message only, perhaps none
    tail            the fields of the queue, up to the opaque number
    opaque          a decimal number
    end             the rest of the header

Only plain answers are read: a JSON header without a body, code 0, and the fields that every stored
message has. Anything else, such as a refusal, an answer with more fields or with escapes in its
text, ends the reading; the caller decodes that frame and those after it as commands. What is read
equals what ``codec.command`` and ``SendResponse`` read.

The functions are meant to be compiled; uncompiled, joining parts and decoding commands is faster.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ImportError:
    from rocketpost.kernel import uncompiled as cython
if not cython.compiled:
    from rocketpost.kernel.uncompiled import PyBytes_AS_STRING, PyBytes_FromStringAndSize, memcpy

Bytes = Any
"""Bytes that are read by index; a pointer in the compiled build."""
Room = Any
"""Bytes that are written by index."""

_QUOTE = 0x22
_BACKSLASH = 0x5C
_COMMA = 0x2C
_COLON = 0x3A
_ZERO = 0x30
_NINE = 0x39
_OPEN = 0x7B
_CLOSE = 0x7D
_SPACE = 0x20
_TILDE = 0x7E
_PREFIX_BYTES = 8
_HEADER_BYTES_MAX = 0xFF_FFFF
_DIGITS_MAX = 18
_NUMBER_MAX = 0x7FFF_FFFF
_REGION = "DefaultRegion"
_NONE = -1
_FLAG_NAME = b'","h":"'
_FLAG_NAME_BYTES = 7
_TEXT_NAME = b'","i":"'
_TEXT_NAME_BYTES = 7
_DIGITS = b"0123456789abcdef"


def encode_head(
    start: bytes,
    born_ms: int,
    flag: int,
    properties: str,
    more: bytes,
    tail: bytes,
    opaque: int,
    end: bytes,
    body_bytes: int,
) -> bytes:
    """Return the head of a frame: everything but the body.

    Args:
        start: The first part of the header.
        born_ms: Time of the send; at most 18 digits, like the other numbers.
        flag: The sender's number.
        properties: The property string.
        more: Encoded fields that follow it.
        tail: The part that follows those.
        opaque: The opaque number.
        end: The last part.
        body_bytes: The size of the body. The caller makes sure that the frame is not too large.

    Raises:
        UnicodeEncodeError: The property string has a lone surrogate.
    """
    encoded = properties.encode()
    text = encoded  # when compiled, a pointer
    text_bytes = len(encoded)
    start_bytes = len(start)
    more_bytes = len(more)
    tail_bytes = len(tail)
    end_bytes = len(end)
    header_bytes = (
        start_bytes
        + _count_digits(born_ms)
        + _FLAG_NAME_BYTES
        + _count_digits(flag)
        + _TEXT_NAME_BYTES
        + text_bytes
        + _count_escapes(text, text_bytes)
        + 1
        + more_bytes
        + tail_bytes
        + _count_digits(opaque)
        + end_bytes
    )
    if cython.compiled:
        head: bytes = PyBytes_FromStringAndSize(cython.NULL, _PREFIX_BYTES + header_bytes)
        out = cython.cast(cython.p_uchar, PyBytes_AS_STRING(head))
    else:
        out = bytearray(_PREFIX_BYTES + header_bytes)
    _put4(out, 0, 4 + header_bytes + body_bytes)
    _put4(out, 4, header_bytes)
    at = _put(out, _PREFIX_BYTES, start, start_bytes)
    at = _put_number(out, at, born_ms)
    at = _put(out, at, _FLAG_NAME, _FLAG_NAME_BYTES)
    at = _put_number(out, at, flag)
    at = _put(out, at, _TEXT_NAME, _TEXT_NAME_BYTES)
    at = _put_text(out, at, text, text_bytes)
    out[at] = _QUOTE
    at = _put(out, at + 1, more, more_bytes)
    at = _put(out, at, tail, tail_bytes)
    at = _put_number(out, at, opaque)
    at = _put(out, at, end, end_bytes)
    assert at == _PREFIX_BYTES + header_bytes
    return head if cython.compiled else bytes(out)


def read_answers(
    data: bytes,
) -> tuple[list[tuple[int, int, str, int, int, str | None, str | None, bool]], int]:
    """Read the plain answers at the front of ``data``.

    Returns:
        For each answer its opaque number, the index of its frame, the message's offset id, queue
        id, queue offset, transaction id and region, and whether traces are wanted; and the index
        after the last of them.
    """
    answers: list[tuple[int, int, str, int, int, str | None, str | None, bool]] = []
    text = data  # when compiled, a pointer
    at = 0
    end = len(data)
    while end - at >= _PREFIX_BYTES:
        size = _unsigned(text, at + 4)
        i = at + _PREFIX_BYTES
        stop = i + size
        # The high byte of the mark is the header's encoding: 0 for JSON.
        if size > _HEADER_BYTES_MAX or stop > end or _unsigned(text, at) != size + 4:
            break
        if size < 2 or text[i] != _OPEN:
            break
        i += 1
        code = flag = opaque = queue_id = queue_offset = _NONE
        id_at = id_end = transaction_at = transaction_end = region_at = region_end = _NONE
        is_traced = True
        depth = 0  # 1 among the fields, 2 behind them
        is_plain = False
        while i < stop and text[i] == _QUOTE:
            key_at = i + 1
            key_end = _find_quote(text, key_at, stop)
            if key_end < 0 or key_end + 2 >= stop or text[key_end + 1] != _COLON:
                break
            key_bytes = key_end - key_at
            i = key_end + 2
            if text[i] == _OPEN:
                if depth or not _is_word(text, key_at, key_bytes, b"extFields", 9):
                    break
                depth = 1
                i += 1
                continue
            is_text = text[i] == _QUOTE
            value_at = i + 1 if is_text else i
            value_end = (
                _find_quote(text, value_at, stop) if is_text else _skip_number(text, i, stop)
            )
            if value_end < 0:
                break
            i = value_end + 1 if is_text else value_end
            if depth == 1:
                if not is_text:
                    break
                if _is_word(text, key_at, key_bytes, b"msgId", 5):
                    id_at = value_at
                    id_end = value_end
                elif _is_word(text, key_at, key_bytes, b"queueId", 7):
                    queue_id = _read_number(text, value_at, value_end)
                    if queue_id < 0 or queue_id > _NUMBER_MAX:
                        break
                elif _is_word(text, key_at, key_bytes, b"queueOffset", 11):
                    queue_offset = _read_number(text, value_at, value_end)
                    if queue_offset < 0:
                        break
                elif _is_word(text, key_at, key_bytes, b"transactionId", 13):
                    transaction_at = value_at
                    transaction_end = value_end
                elif _is_word(text, key_at, key_bytes, b"MSG_REGION", 10):
                    region_at = value_at
                    region_end = value_end
                elif _is_word(text, key_at, key_bytes, b"TRACE_ON", 8):
                    is_traced = not _is_word(text, value_at, value_end - value_at, b"false", 5)
                else:
                    break
            elif is_text:
                if not (
                    _is_word(text, key_at, key_bytes, b"language", 8)
                    or _is_word(text, key_at, key_bytes, b"serializeTypeCurrentRPC", 23)
                ):
                    break
            else:
                number = _read_number(text, value_at, value_end)
                if number < 0 or number > _NUMBER_MAX:
                    break
                if _is_word(text, key_at, key_bytes, b"code", 4):
                    code = number
                elif _is_word(text, key_at, key_bytes, b"flag", 4):
                    flag = number
                elif _is_word(text, key_at, key_bytes, b"opaque", 6):
                    opaque = number
                elif not _is_word(text, key_at, key_bytes, b"version", 7):
                    break
            if i < stop and text[i] == _CLOSE and depth == 1:
                depth = 2
                i += 1
            if i < stop and text[i] == _COMMA:
                i += 1
                continue
            is_plain = i + 1 == stop and text[i] == _CLOSE and depth == 2
            break
        if not is_plain or code != 0 or flag != 1 or opaque < 0:
            break
        if id_at < 0 or queue_id < 0 or queue_offset < 0:
            break
        message_id = text[id_at:id_end].decode("ascii")
        transaction_id = None
        if transaction_at >= 0:
            transaction_id = text[transaction_at:transaction_end].decode("ascii")
        region = None
        if region_at >= 0:
            if _is_word(text, region_at, region_end - region_at, b"DefaultRegion", 13):
                region = _REGION
            else:
                region = text[region_at:region_end].decode("ascii")
        answers.append(
            (opaque, at, message_id, queue_id, queue_offset, transaction_id, region, is_traced)
        )
        at = stop
    return answers, at


def _find_quote(text: bytes, at: int, stop: int) -> int:
    """Return the index of the quote that ends a string of plain characters; -1 if there is none."""
    while at < stop:
        char = text[at]
        if char == _QUOTE:
            return at
        if char == _BACKSLASH or char < _SPACE or char > _TILDE:
            return -1
        at += 1
    return -1


def _skip_number(text: bytes, at: int, stop: int) -> int:
    """Return the index after a whole number without a sign; -1 if there is none."""
    first = at
    while at < stop and _ZERO <= text[at] <= _NINE:
        at += 1
    return at if at > first else -1


def _read_number(text: bytes, at: int, end: int) -> int:
    """Return the number in a slice; -1 if it is not a plain one of at most 18 digits."""
    if end <= at or end - at > _DIGITS_MAX or (text[at] == _ZERO and end - at > 1):
        return -1
    number = 0
    while at < end:
        digit = text[at] - _ZERO
        if digit < 0 or digit > 9:
            return -1
        number = number * 10 + digit
        at += 1
    return number


def _is_word(text: bytes, at: int, size: int, word: bytes, word_bytes: int) -> bool:
    """Tell whether a slice is ``word``."""
    if size != word_bytes:
        return False
    k = 0
    while k < word_bytes:
        if text[at + k] != word[k]:
            return False
        k += 1
    return True


def _unsigned(text: bytes, at: int) -> int:
    """Return a number of 4 bytes."""
    number = text[at] << 24 | text[at + 1] << 16 | text[at + 2] << 8 | text[at + 3]
    return number  # noqa: RET504 - a C type when compiled


def _count_escapes(text: Bytes, size: int) -> int:
    """Return the number of bytes that JSON adds to a text."""
    more = 0
    for i in range(size):
        char = text[i]
        if char < _SPACE:
            more += 1 if _letter_of(char) else 5
        elif char in (_QUOTE, _BACKSLASH):
            more += 1
    return more


def _letter_of(char: int) -> int:
    """Return the letter in the escape of a control character; 0 if it is a number."""
    if char == 8:
        return 98  # b
    if char == 9:
        return 116  # t
    if char == 10:
        return 110  # n
    if char == 12:
        return 102  # f
    if char == 13:
        return 114  # r
    return 0


def _put_text(out: Room, at: int, text: Bytes, size: int) -> int:
    """Write a text with JSON's escapes; returns the index after it."""
    for i in range(size):
        char = text[i]
        if char >= _SPACE and char != _QUOTE and char != _BACKSLASH:
            out[at] = char
            at += 1
            continue
        out[at] = _BACKSLASH
        letter = char if char >= _SPACE else _letter_of(char)
        if letter:
            out[at + 1] = letter
            at += 2
            continue
        out[at + 1] = 117  # u
        out[at + 2] = 48
        out[at + 3] = 48
        out[at + 4] = _DIGITS[char >> 4]
        out[at + 5] = _DIGITS[char & 15]
        at += 6
    return at


def _put(out: Room, at: int, data: Bytes, size: int) -> int:
    """Copy bytes; returns the index after them."""
    if cython.compiled:
        memcpy(out + at, data, size)
    else:
        out[at : at + size] = data
    return at + size


def _count_digits(value: int) -> int:
    """Return the number of characters of a decimal number, with its sign."""
    count = 1
    if value < 0:
        count = 2
        value = -value
    while value >= 10:
        value //= 10
        count += 1
    return count


def _put_number(out: Room, at: int, value: int) -> int:
    """Write a decimal number; returns the index after it."""
    end = at + _count_digits(value)
    if value < 0:
        out[at] = 45
        value = -value
    i = end - 1
    while value >= 10:
        out[i] = 48 + value % 10
        value //= 10
        i -= 1
    out[i] = 48 + value
    return end


def _put4(out: Room, at: int, value: int) -> None:
    """Write a 32-bit number."""
    out[at] = value >> 24 & 0xFF
    out[at + 1] = value >> 16 & 0xFF
    out[at + 2] = value >> 8 & 0xFF
    out[at + 3] = value & 0xFF
