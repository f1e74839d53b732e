"""Reading of the answers to a client's sends, many frames at a time.

Only plain answers are read: a JSON header without a body, code 0, and the fields that every stored
message has. Anything else, such as a refusal, an answer with more fields or with escapes in its
text, ends the reading; the caller decodes that frame and those after it as commands. What is read
equals what ``codec.command`` and ``SendResponse`` read.

The function is meant to be compiled; uncompiled, decoding commands is faster.
"""

from __future__ import annotations

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
