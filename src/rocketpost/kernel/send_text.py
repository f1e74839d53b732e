# cython: initializedcheck=False
"""Text in headers and properties: UTF-8, numbers, JSON strings; and what repeats in them.

Headers and properties that repeat are compared with what was read before, not read again.

The sends of a producer have the same header over and over, but for four values: the opaque number,
the queue id, the time of birth and the properties; and the signature, if they are signed. A
:class:`SendShape` is a header that was read in full (``send_headers``), with the places of these
values. A header is read by it if it is as long and has the same bytes outside of those places. What
is in them is checked: a number must be one, of the same form, the properties must be text that ends
where the others ended, and a signature must be plain characters.

The properties repeat as well, but for the unique key. A :class:`PropertyShape` is a property string
that was read in full and found plain (``send_properties``), with the place of its unique key.
Properties are read by it if they are as long, have the same bytes outside of that place, and a
unique key of plain characters there. This holds for the messages of a batch, too.

**Invariant:** what is read by a shape is what ``send_headers`` and ``send_properties`` would read.
They read from left to right, and the bytes that lead them are the same; a value ends at the same
place, because it holds no byte that could end it earlier, and the byte after it is the same.
Whatever has no known shape is read there.
"""

from __future__ import annotations

from array import array
from typing import Any

try:
    import cython
except ImportError:
    from rocketpost.kernel import uncompiled as cython
if not cython.compiled:
    from rocketpost.kernel.uncompiled import Send, memcmp, memcpy
from rocketpost.kernel.signatures import SignedText

Bytes = Any
"""Bytes that are read by index; a pointer in the compiled build."""
Room = Any
"""Bytes that are written by index."""

_QUOTE = 34
_BACKSLASH = 92
_DIGITS_MAX = 18
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_HEADER_BYTES_MAX = 2048
_PROPERTIES_BYTES_MAX = 2048
_VALUES_MAX = 5
_MISSES_MAX = 8
"""Headers or properties of other shapes in a row after which a shape is replaced."""


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


def is_quotable(text: Bytes, at: int, end: int) -> bool:
    """Tell whether bytes are ASCII that stands for itself in a JSON string."""
    other = 0
    for i in range(at, end):
        other |= (text[i] < 32) | (text[i] > 126) | (text[i] == 34) | (text[i] == 92)
    return not other


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


def read_number(p: Bytes, at: int, end: int, most: int, send: Send) -> bool:
    """Read a decimal number as it is commonly written into ``send.number``."""
    is_negative = at < end and p[at] == 45
    if is_negative:
        at += 1
    if at >= end or end - at > _DIGITS_MAX:
        return False
    if p[at] == 48 and (is_negative or end - at > 1):
        return False
    value = 0
    while at < end:
        digit = p[at] - 48
        if digit < 0 or digit > 9:
            return False
        value = value * 10 + digit
        at += 1
    if value > most:
        return False
    send.number = -value if is_negative else value
    return True


class PropertyShape:
    """Plain properties that were read last, or a few before. Belongs to the event loop.

    Attributes:
        raw: The properties as they were sent, perhaps with the escapes of a JSON string.
        raw_bytes: Their size; 0 if there are none yet.
        key_at: The start of the unique key in them.
        text: The same without escapes.
        text_bytes: The size of that; 0 if the properties were not part of a JSON string.
        misses: The number of properties that were not read since the last that were.
    """

    def __init__(self) -> None:
        self.raw = bytearray(_PROPERTIES_BYTES_MAX)
        self.text = bytearray(_PROPERTIES_BYTES_MAX)
        self.raw_bytes = self.text_bytes = self.key_at = self.misses = 0
        self.unique_at = self.unique_end = self.tags_at = self.tags_end = 0
        self.keys_at = self.keys_end = self.is_sharded = 0

    def read(self, p: Bytes, at: int, end: int, scratch: Room, send: Send) -> bool:
        """Read properties by the shape; False if they have another.

        Args:
            p: The buffer with the properties as they were sent.
            at: Their start.
            end: Their end.
            scratch: Receives properties of a JSON string; has room for those of any shape.
            send: Receives the places; those of a JSON string are in ``scratch``.
        """
        if end - at != self.raw_bytes or not self.raw_bytes:
            return False
        key_at = self.key_at
        key_bytes = self.unique_end - self.unique_at
        rest_at = key_at + key_bytes
        if cython.compiled:
            raw = cython.address(self.raw[0])
            if memcmp(p + at + rest_at, raw + rest_at, self.raw_bytes - rest_at):
                return False
            if memcmp(p + at, raw, key_at):
                return False
        else:
            if p[at + rest_at : end] != self.raw[rest_at : self.raw_bytes]:
                return False
            if p[at : at + key_at] != self.raw[:key_at]:
                return False
        if not is_quotable(p, at + key_at, at + rest_at):
            return False
        base = at
        if self.text_bytes:
            base = 0
            if cython.compiled:
                memcpy(scratch, cython.address(self.text[0]), self.text_bytes)
                memcpy(scratch + self.unique_at, p + at + key_at, key_bytes)
            else:
                scratch[: self.text_bytes] = self.text[: self.text_bytes]
                scratch[self.unique_at : self.unique_end] = p[at + key_at : at + rest_at]
            send.is_unescaped = 1
            send.text_at = 0
            send.text_end = self.text_bytes
        send.unique_at = base + self.unique_at
        send.unique_end = base + self.unique_end
        send.tags_at = base + self.tags_at
        send.tags_end = base + self.tags_end
        send.keys_at = base + self.keys_at
        send.keys_end = base + self.keys_end
        send.is_sharded = self.is_sharded
        self.misses = 0
        return True

    def learn(
        self, p: Bytes, raw_at: int, raw_end: int, text: Bytes, at: int, end: int, send: Send
    ) -> None:
        """Take the shape of plain properties, unless others are more frequent.

        Args:
            p: The buffer with the properties as they were sent.
            raw_at: Their start.
            raw_end: Their end.
            text: The buffer with the properties without escapes; ``p`` if they had none.
            at: The start of those.
            end: The end of those.
            send: The places that were read.
        """
        self.misses += 1
        if self.raw_bytes and self.misses < _MISSES_MAX:
            return
        if raw_end - raw_at > _PROPERTIES_BYTES_MAX or end - at > _PROPERTIES_BYTES_MAX:
            return
        key_bytes = send.unique_end - send.unique_at
        key_at = _raw_place(p, raw_at, raw_end, send.unique_at - at)
        if text is p:
            key_at = send.unique_at
        if key_at < 0 or raw_end - key_at < key_bytes:
            return
        if cython.compiled:
            if memcmp(p + key_at, text + send.unique_at, key_bytes):
                return
            memcpy(cython.address(self.raw[0]), p + raw_at, raw_end - raw_at)
            memcpy(cython.address(self.text[0]), text + at, end - at)
        else:
            if p[key_at : key_at + key_bytes] != text[send.unique_at : send.unique_end]:
                return
            self.raw[: raw_end - raw_at] = p[raw_at:raw_end]
            self.text[: end - at] = text[at:end]
        self.misses = 0
        self.raw_bytes = raw_end - raw_at
        self.text_bytes = 0 if text is p else end - at
        self.key_at = key_at - raw_at
        self.unique_at = send.unique_at - at
        self.unique_end = send.unique_end - at
        # Without tags or keys, both ends are the same.
        self.tags_at = send.tags_at - at if send.tags_end else 0
        self.tags_end = send.tags_end - at if send.tags_end else 0
        self.keys_at = send.keys_at - at if send.keys_end else 0
        self.keys_end = send.keys_end - at if send.keys_end else 0
        self.is_sharded = send.is_sharded


class SendShape:
    """The header of a send that was read last, or a few before. Belongs to the event loop.

    Attributes:
        header: The header.
        size: Its size; 0 if there is none yet.
        places: Start and end of each of the values that change, in their order.
        value_count: Their number: five if it is signed, else four.
        signed: The text that signatures cover.
        misses: The number of headers that were not read since the last that was.
        properties: The shape of their properties.
    """

    def __init__(self) -> None:
        self.header = bytearray(_HEADER_BYTES_MAX)
        self.places = array("q", bytes(16 * _VALUES_MAX))
        self.size = self.misses = self.value_count = 0
        self.properties = PropertyShape()
        self.signed = SignedText()
        self.opaque_at = self.opaque_end = self.queue_at = self.queue_end = 0
        self.born_at = self.born_end = self.raw_at = self.raw_end = 0
        self.topic_at = self.topic_end = 0
        self.key_at = self.key_end = self.mark_at = self.mark_end = 0
        self.flag = self.sys_flag = self.message_flag = self.reconsume_times = self.is_batch = 0
        self.code = 0

    def read(
        self, p: Bytes, at: int, end: int, is_binary: int, scratch: Room, room: int, send: Send
    ) -> bool:
        """Read a header by the shape; False if it has another. See ``send_headers``.

        Args:
            p: The buffer with the header.
            at: The start of the header.
            end: The end of the header.
            is_binary: 1 for the binary encoding, else 0. A shape serves one encoding.
            scratch: Receives the properties without escapes.
            room: The size of ``scratch``.
            send: Receives the contents, with the places of properties if their shape is known.
        """
        if end - at != self.size or not self.size or not self._is_same(p, at):
            return False
        if not read_number(p, at + self.queue_at, at + self.queue_end, _INT_MAX, send):
            return False
        send.queue_id = send.number
        if self.mark_end and not is_quotable(p, at + self.mark_at, at + self.mark_end):
            return False
        if not read_number(p, at + self.born_at, at + self.born_end, _LONG_MAX, send):
            return False
        send.born_ms = send.number
        raw_at = at + self.raw_at
        raw_end = at + self.raw_end
        send.raw_at = raw_at
        send.raw_end = raw_end
        if is_binary:
            send.opaque = _int(p, at + self.opaque_at)
            send.is_unescaped = 0
            send.text_at = raw_at
            send.text_end = raw_end
            send.is_known = self.properties.read(p, raw_at, raw_end, scratch, send)
        else:
            if not read_number(p, at + self.opaque_at, at + self.opaque_end, _INT_MAX, send):
                return False
            send.opaque = send.number
            send.is_known = self.properties.read(p, raw_at, raw_end, scratch, send)
            if not send.is_known:
                if not is_text(p, raw_at, raw_end, 32):
                    return False
                if unescape(p, raw_at, raw_end + 1, scratch, room, send) != raw_end:
                    return False
        send.topic_at = at + self.topic_at
        send.topic_end = at + self.topic_end
        send.mark_at = 0
        send.mark_end = 0
        if self.mark_end:
            send.queue_at = at + self.queue_at
            send.queue_end = at + self.queue_end
            send.born_at = at + self.born_at
            send.born_end = at + self.born_end
            send.key_at = at + self.key_at
            send.key_end = at + self.key_end
            send.mark_at = at + self.mark_at
            send.mark_end = at + self.mark_end
        send.flag = self.flag
        send.sys_flag = self.sys_flag
        send.message_flag = self.message_flag
        send.reconsume_times = self.reconsume_times
        send.is_batch = self.is_batch
        send.code = self.code
        self.misses = 0
        return True

    def learn(self, p: Bytes, at: int, end: int, send: Send) -> None:
        """Take the shape of a header that was read in full, unless others are more frequent."""
        self.misses += 1
        if self.size and self.misses < _MISSES_MAX:
            return
        size = end - at
        if size > _HEADER_BYTES_MAX or not (
            send.opaque_end and send.queue_end and send.born_end and send.raw_end
        ):
            return
        self.misses = 0
        self.size = size
        if cython.compiled:
            memcpy(cython.address(self.header[0]), p + at, size)
        else:
            self.header[:size] = p[at:end]
        self.opaque_at = send.opaque_at - at
        self.opaque_end = send.opaque_end - at
        self.queue_at = send.queue_at - at
        self.queue_end = send.queue_end - at
        self.born_at = send.born_at - at
        self.born_end = send.born_end - at
        self.raw_at = send.raw_at - at
        self.raw_end = send.raw_end - at
        self.topic_at = send.topic_at - at
        self.topic_end = send.topic_end - at
        # Without a key or a signature, both ends are the same.
        self.key_at = send.key_at - at if send.key_end else 0
        self.key_end = send.key_end - at if send.key_end else 0
        self.mark_at = send.mark_at - at if send.mark_end else 0
        self.mark_end = send.mark_end - at if send.mark_end else 0
        self.flag = send.flag
        self.sys_flag = send.sys_flag
        self.message_flag = send.message_flag
        self.reconsume_times = send.reconsume_times
        self.is_batch = send.is_batch
        self.code = send.code
        self._put(0, self.opaque_at, self.opaque_end)
        self._put(1, self.queue_at, self.queue_end)
        self._put(2, self.born_at, self.born_end)
        self._put(3, self.raw_at, self.raw_end)
        self.value_count = 4
        if self.mark_end:
            self._put(4, self.mark_at, self.mark_end)
            self.value_count = 5
            self.signed.learn(p, send)

    def _put(self, count: int, begin: int, end: int) -> None:
        """Add a value to the ``count`` places that are there, which stay in their order."""
        i = 2 * count
        while i and self.places[i - 2] > begin:
            self.places[i] = self.places[i - 2]
            self.places[i + 1] = self.places[i - 1]
            i -= 2
        self.places[i] = begin
        self.places[i + 1] = end

    def _is_same(self, p: Bytes, at: int) -> bool:
        """Tell whether the bytes outside of the values are those of the shape."""
        begin = 0
        for i in range(self.value_count + 1):
            end = self.places[2 * i] if i < self.value_count else self.size
            if cython.compiled:
                if memcmp(p + at + begin, cython.address(self.header[0]) + begin, end - begin):
                    return False
            elif p[at + begin : at + end] != self.header[begin:end]:
                return False
            if i < self.value_count:
                begin = self.places[2 * i + 1]
        return True


def _raw_place(p: Bytes, at: int, end: int, count: int) -> int:
    """Return the place in a JSON string after ``count`` bytes of its text; -1 if it is not sure."""
    while count > 0 and at < end:
        if p[at] != _BACKSLASH:
            at += 1
        elif end - at < 6 or p[at + 1] != 117:  # u
            at += 2
        elif p[at + 2] == 48 and p[at + 3] == 48 and p[at + 4] < 56:  # below 0080: one byte
            at += 6
        else:
            return -1
        count -= 1
    return at if count == 0 else -1


def _int(p: Bytes, at: int) -> int:
    """Read a signed 32-bit number."""
    number: int = p[at] << 8 | p[at + 1]
    number = number << 8 | p[at + 2]
    number = number << 8 | p[at + 3]
    return number - (number >> 31 << 32)
