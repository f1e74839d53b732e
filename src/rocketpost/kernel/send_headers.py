"""The headers of sends, in both encodings, read into a :class:`Send` without other objects.

Only the forms that clients commonly write are read. Whatever else a header holds (a member or field
that is not listed here, a field given twice, an escape where none is needed, a number with a
leading zero) makes the result False, and the caller leaves the frame to ``codec.command``, which
reads or refuses it. What is read here means exactly what it means there.

    JSON     members code, flag, opaque, version, language, remark, serializeTypeCurrentRPC and
             extFields; spaces between tokens; numbers and truth values with or without quotes
    binary   no remark; nothing after the fields
    fields   one letter each (SEND_MESSAGE_V2, SEND_BATCH_MESSAGE) or long names (SEND_MESSAGE);
             AccessKey and Signature

``p`` is the buffer with the frame. In the compiled build it is a pointer, so every index is checked
against the end of the header before it is used.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ImportError:
    from rocketpost.kernel import uncompiled as cython
if not cython.compiled:
    from rocketpost.kernel.send_text import is_text, read_number, unescape
    from rocketpost.kernel.uncompiled import Send, memcmp

Bytes = Any
"""Bytes that are read by index; a pointer in the compiled build."""
Room = Any
"""Bytes that are written by index."""

_SEND = 10
_SEND_V2 = 310
_SEND_BATCH = 320
_ONEWAY = 2

_SPACE = 32
_QUOTE = 34
_COMMA = 44
_COLON = 58
_BACKSLASH = 92
_OPEN = 123
_CLOSE = 125

_BINARY_BYTES = 21
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1

# Fields, by their letters in the short form.
_GROUP = 97
_TOPIC = 98
_DEFAULT_TOPIC = 99
_DEFAULT_QUEUES = 100
_QUEUE_ID = 101
_SYS_FLAG = 102
_BORN_MS = 103
_FLAG = 104
_PROPERTIES = 105
_RECONSUME_TIMES = 106
_UNIT_MODE = 107
_MAX_RECONSUME_TIMES = 108
_BATCH = 109
_BROKER_NAME = 110

# Fields of signed requests; their numbers follow those of the letters.
_ACCESS_KEY = 111
_SIGNATURE = 112

# Members of a JSON header, as bits.
_HAS_CODE = 1
_HAS_FLAG = 2
_HAS_OPAQUE = 4
_HAS_VERSION = 8
_HAS_LANGUAGE = 16
_HAS_REMARK = 32
_HAS_ENCODING = 64
_HAS_FIELDS = 128


def read_json(p: Bytes, at: int, end: int, scratch: Room, room: int, send: Send) -> bool:
    """Read a JSON header; False if it is not a plain send.

    Args:
        p: The buffer with the header.
        at: The start of the header.
        end: The end of the header.
        scratch: Receives the properties without escapes.
        room: The size of ``scratch``.
        send: Receives the contents.
    """
    _clear(send)
    while end > at and (p[end - 1] == 10 or p[end - 1] == 13 or p[end - 1] == _SPACE):
        end -= 1
    if end - at < 2 or p[at] != _OPEN or p[end - 1] != _CLOSE or not is_text(p, at, end, 32):
        return False
    end -= 1
    at = _skip_spaces(p, at + 1, end)
    while at < end:
        if p[at] != _QUOTE:
            return False
        name = at + 1
        at = _find_quote(p, name, end)
        if at < 0:
            return False
        member = _member_of(p, name, at - name)
        if not member or send.members_seen & member:
            return False
        send.members_seen |= member
        at = _find_value(p, at + 1, end)
        if at < 0:
            return False
        if member == _HAS_FIELDS:
            at = _read_fields(p, at, end, scratch, room, send)
        elif member & (_HAS_LANGUAGE | _HAS_REMARK | _HAS_ENCODING):
            at = _skip_text(p, at, end, member == _HAS_REMARK)
        else:
            at = _read_member(p, at, end, member, send)
        if at < 0:
            return False
        at = _skip_spaces(p, at, end)
        if at < end:
            if p[at] != _COMMA:
                return False
            at = _skip_spaces(p, at + 1, end)
            if at == end:
                return False
    return _is_send(send)


def read_binary(p: Bytes, at: int, end: int, send: Send) -> bool:
    """Read a binary header; False if it is not a plain send. See :func:`read_json`."""
    _clear(send)
    if end - at < _BINARY_BYTES:
        return False
    send.code = p[at] << 8 | p[at + 1]
    send.opaque = _int(p, at + 5)
    send.opaque_at = at + 5
    send.opaque_end = at + 9
    send.flag = _int(p, at + 9)
    if _int(p, at + 13) != 0 or _int(p, at + 17) != end - at - _BINARY_BYTES:
        return False
    at += _BINARY_BYTES
    while at < end:
        if end - at < 6:
            return False
        name_bytes = p[at] << 8 | p[at + 1]
        at += 2
        if name_bytes + 4 > end - at:
            return False
        field = _field_of(p, at, name_bytes, send)
        at += name_bytes
        size = _int(p, at)
        at += 4
        if not field or size < 0 or size > end - at:
            return False
        if size:  # an empty value counts as absent
            if send.fields_seen >> (field - _GROUP) & 1:
                return False
            send.fields_seen |= 1 << (field - _GROUP)
            if field == _PROPERTIES:
                send.text_at = send.raw_at = at
                send.text_end = send.raw_end = at + size
            elif not is_text(p, at, at + size, 32) or not _set_field(p, at, at + size, field, send):
                return False
        at += size
    return _is_send(send)


def _clear(send: Send) -> None:
    """Set the values of an empty header."""
    send.code = 0
    send.flag = 0
    send.opaque = 0
    send.members_seen = 0
    send.fields_seen = 0
    send.has_letters = 0
    send.has_long_names = 0
    send.topic_at = 0
    send.topic_end = 0
    send.queue_id = -1
    send.sys_flag = 0
    send.born_ms = 0
    send.message_flag = 0
    send.reconsume_times = 0
    send.is_batch = 0
    send.text_at = 0
    send.text_end = 0
    send.is_unescaped = 0
    send.opaque_end = 0
    send.queue_end = 0
    send.born_end = 0
    send.raw_end = 0
    send.key_at = 0
    send.key_end = 0
    send.mark_at = 0
    send.mark_end = 0
    send.has_bare = 0


def may_be_send(p: Bytes, at: int) -> bool:
    """Tell by 24 bytes whether a frame may be a send."""
    if p[at + 4] == 1:
        code = p[at + 8] << 8 | p[at + 9]
        return code in (_SEND_V2, _SEND_BATCH, _SEND)
    if p[at + 4] != 0:
        return False
    if not _is_same(p, at + 8, b'{"code":', 8) or p[at + 16] == _SPACE:
        return True
    if p[at + 16] == 49:  # 10
        return bool(p[at + 17] == 48 and p[at + 18] == _COMMA)
    return bool(p[at + 16] == 51 and p[at + 18] == 48 and p[at + 19] == _COMMA)  # 310, 320


def _is_send(send: Send) -> bool:
    """Tell whether the header is that of a send that names its group and topic."""
    if send.code == _SEND:
        if send.has_letters:
            return False
    elif send.code == _SEND_V2 or send.code == _SEND_BATCH:
        if send.has_long_names:
            return False
    else:
        return False
    return (send.flag == 0 or send.flag == _ONEWAY) and send.fields_seen & 3 == 3


def _member_of(p: Bytes, at: int, size: int) -> int:
    """Return the bit of a member of the header; 0 for others."""
    if size == 4:
        if _is_same(p, at, b"code", 4):
            return _HAS_CODE
        if _is_same(p, at, b"flag", 4):
            return _HAS_FLAG
    elif size == 6:
        if _is_same(p, at, b"opaque", 6):
            return _HAS_OPAQUE
        if _is_same(p, at, b"remark", 6):
            return _HAS_REMARK
    elif size == 7:
        if _is_same(p, at, b"version", 7):
            return _HAS_VERSION
    elif size == 8:
        if _is_same(p, at, b"language", 8):
            return _HAS_LANGUAGE
    elif size == 9:
        if _is_same(p, at, b"extFields", 9):
            return _HAS_FIELDS
    elif size == 23 and _is_same(p, at, b"serializeTypeCurrentRPC", 23):
        return _HAS_ENCODING
    return 0


def _read_member(p: Bytes, at: int, end: int, member: int, send: Send) -> int:
    """Read a number of the header; returns the index after it, or -1."""
    begin = at
    while at < end and (p[at] == 45 or (p[at] >= 48 and p[at] <= 57)):
        at += 1
    if not read_number(p, begin, at, _INT_MAX, send):
        return -1
    if member == _HAS_CODE:
        send.code = send.number
    elif member == _HAS_FLAG:
        send.flag = send.number
    elif member == _HAS_OPAQUE:
        send.opaque = send.number
        send.opaque_at = begin
        send.opaque_end = at
    return at


def _read_fields(p: Bytes, at: int, end: int, scratch: Room, room: int, send: Send) -> int:
    """Read extFields; returns the index after them, or -1."""
    if p[at] != _OPEN:
        return -1
    at = _skip_spaces(p, at + 1, end)
    while True:
        if at >= end or p[at] != _QUOTE:
            return -1
        name = at + 1
        at = _find_quote(p, name, end)
        if at < 0:
            return -1
        field = _field_of(p, name, at - name, send)
        if not field or send.fields_seen >> (field - _GROUP) & 1:
            return -1
        send.fields_seen |= 1 << (field - _GROUP)
        at = _find_value(p, at + 1, end)
        if at < 0:
            return -1
        if p[at] == _QUOTE:
            at += 1
            if field == _PROPERTIES:
                send.raw_at = at
                at = unescape(p, at, end, scratch, room, send)
                if at < 0:
                    return -1
                send.raw_end = at
            else:
                value = at
                at = _find_quote(p, at, end)
                if at < 0 or not _set_field(p, value, at, field, send):
                    return -1
            at += 1
        else:
            value = at
            while at < end and p[at] > _SPACE and p[at] != _COMMA and p[at] != _CLOSE:
                at += 1
            send.has_bare = 1
            if _is_text_field(field) or not _set_field(p, value, at, field, send):
                return -1
        at = _skip_spaces(p, at, end)
        if at >= end:
            return -1
        if p[at] == _CLOSE:
            return at + 1
        if p[at] != _COMMA:
            return -1
        at = _skip_spaces(p, at + 1, end)


def _field_of(p: Bytes, at: int, size: int, send: Send) -> int:
    """Return the letter of a field by its letter or long name; 0 for others."""
    if size == 1:
        letter = p[at]
        send.has_letters = 1
        return letter if letter >= _GROUP and letter <= _BROKER_NAME else 0
    if size == 9:
        if _is_same(p, at, b"AccessKey", 9):
            return _ACCESS_KEY
        return _SIGNATURE if _is_same(p, at, b"Signature", 9) else 0
    send.has_long_names = 1
    if size == 4:
        return _FLAG if _is_same(p, at, b"flag", 4) else 0
    if size == 5:
        if _is_same(p, at, b"topic", 5):
            return _TOPIC
        if _is_same(p, at, b"batch", 5):
            return _BATCH
        return _BROKER_NAME if _is_same(p, at, b"bname", 5) else 0
    if size == 7:
        if _is_same(p, at, b"queueId", 7):
            return _QUEUE_ID
        return _SYS_FLAG if _is_same(p, at, b"sysFlag", 7) else 0
    if size == 8:
        return _UNIT_MODE if _is_same(p, at, b"unitMode", 8) else 0
    if size == 10:
        return _PROPERTIES if _is_same(p, at, b"properties", 10) else 0
    if size == 12:
        return _DEFAULT_TOPIC if _is_same(p, at, b"defaultTopic", 12) else 0
    if size == 13:
        if _is_same(p, at, b"producerGroup", 13):
            return _GROUP
        return _BORN_MS if _is_same(p, at, b"bornTimestamp", 13) else 0
    if size == 14:
        return _RECONSUME_TIMES if _is_same(p, at, b"reconsumeTimes", 14) else 0
    if size == 17:
        return _MAX_RECONSUME_TIMES if _is_same(p, at, b"maxReconsumeTimes", 17) else 0
    if size == 21:
        return _DEFAULT_QUEUES if _is_same(p, at, b"defaultTopicQueueNums", 21) else 0
    return 0


def _is_text_field(field: int) -> bool:
    """Tell whether the value of a field is text."""
    return field >= _BROKER_NAME or field in (_GROUP, _TOPIC, _DEFAULT_TOPIC, _PROPERTIES)


def _set_field(p: Bytes, at: int, end: int, field: int, send: Send) -> bool:
    """Take the value of a field other than the properties; False if it is not of its type."""
    send.values_at[field - _GROUP] = at
    send.value_ends[field - _GROUP] = end
    if field == _TOPIC:
        send.topic_at = at
        send.topic_end = end
        return True
    if field == _ACCESS_KEY:
        send.key_at = at
        send.key_end = end
        return True
    if field == _SIGNATURE:
        send.mark_at = at
        send.mark_end = end
        return True
    if _is_text_field(field):
        return True
    if field in (_UNIT_MODE, _BATCH):
        is_true = end - at == 4 and _is_same(p, at, b"true", 4)
        if field == _BATCH and is_true:
            send.is_batch = 1
        return is_true or (end - at == 5 and _is_same(p, at, b"false", 5))
    if not read_number(p, at, end, _LONG_MAX if field == _BORN_MS else _INT_MAX, send):
        return False
    if field == _QUEUE_ID:
        send.queue_id = send.number
        send.queue_at = at
        send.queue_end = end
    elif field == _SYS_FLAG:
        send.sys_flag = send.number
    elif field == _BORN_MS:
        send.born_ms = send.number
        send.born_at = at
        send.born_end = end
    elif field == _FLAG:
        send.message_flag = send.number
    elif field == _RECONSUME_TIMES:
        send.reconsume_times = send.number
    return True


def _find_value(p: Bytes, at: int, end: int) -> int:
    """Pass a colon and spaces; returns the index of the value, or -1."""
    at = _skip_spaces(p, at, end)
    if at >= end or p[at] != _COLON:
        return -1
    at = _skip_spaces(p, at + 1, end)
    return at if at < end else -1


def _skip_text(p: Bytes, at: int, end: int, may_be_null: bool) -> int:
    """Pass a string without escapes; returns the index after it, or -1."""
    if p[at] == _QUOTE:
        at = _find_quote(p, at + 1, end)
        return at + 1 if at >= 0 else -1
    if may_be_null and end - at >= 4 and _is_same(p, at, b"null", 4):
        return at + 4
    return -1


def _skip_spaces(p: Bytes, at: int, end: int) -> int:
    """Return the index of the next byte that is not a space."""
    while at < end and p[at] == _SPACE:
        at += 1
    return at


def _find_quote(p: Bytes, at: int, end: int) -> int:
    """Return the index of the next quotation mark; -1 if none, or if an escape comes first."""
    while at < end:
        if p[at] == _QUOTE:
            return at
        if p[at] == _BACKSLASH:
            return -1
        at += 1
    return -1


def _is_same(p: Bytes, at: int, other: bytes, size: int) -> bool:
    """Tell whether bytes are those of ``other``."""
    if not cython.compiled:
        return bool(p[at : at + size] == other)
    is_same: bool = memcmp(p + at, other, size) == 0
    return is_same


def _int(p: Bytes, at: int) -> int:
    """Read a signed 32-bit number."""
    number: int = p[at] << 8 | p[at + 1]
    number = number << 8 | p[at + 2]
    number = number << 8 | p[at + 3]
    return number - (number >> 31 << 32)
