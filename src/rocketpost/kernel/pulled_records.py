"""Cutting of the records in a pull response, for a client.

Layout of a record: see ``record_scan``. A record is cut into its fixed head, its body, its topic
and its properties, after its lengths, its topic's encoding and the CRC of its body were checked.
The head stays undecoded: most handlers never look at it. The results are those of
``codec.record.decode_records``, for a third of the work.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, error
from typing import TypeVar
from zlib import crc32

try:
    import cython
except ImportError:
    from rocketpost.kernel import uncompiled as cython

T = TypeVar("T")

_MAGIC_V1 = 0xDAA3_20A7 - 2**32
_MAGIC_V2 = 0xDAA3_20AB - 2**32
_SMALLEST = 91
_HEAD_BYTES = 88
_HOSTS_V6 = 0x30
_V6_BYTES = 12
_CRC_MASK = 0x7FFF_FFFF
_HIGH = 0x1_0000_0000
_FIXED = Struct(">iii8xq8xi44xi")
_INT = Struct(">i")
_SHORT = Struct(">h")
_fixed_of = _FIXED.unpack_from
_int_of = _INT.unpack_from
_short_of = _SHORT.unpack_from


def cut_records(
    data: bytes, make: Callable[[int, int, bytes, bytes, str, bytes], T]
) -> tuple[list[T], int]:
    """Cut consecutive records, up to the first that is not sound.

    Args:
        data: The records.
        make: Called with the queue offset, the sysFlag, the head, the body, the topic and the
            properties of each record.

    Returns:
        What ``make`` returned for each record, and the index after the last of them.
    """
    return _cut_in_place(data, make) if cython.compiled else _cut_unpacked(data, make)


def _cut_unpacked(
    data: bytes, make: Callable[[int, int, bytes, bytes, str, bytes], T]
) -> tuple[list[T], int]:
    made: list[T] = []
    at, end = 0, len(data)
    topic_bytes, topic = b"", ""
    while end - at >= _SMALLEST:
        size, magic, body_crc, queue_offset, sys_flag, body_bytes = _fixed_of(data, at)
        body_at = at + _HEAD_BYTES
        record_end = at + size
        try:
            if sys_flag & _HOSTS_V6:
                body_at += _V6_BYTES * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
                (body_bytes,) = _int_of(data, body_at - 4)
            body_end = body_at + body_bytes
            if magic == _MAGIC_V1:
                topic_at = body_end + 1
                topic_end = topic_at + data[body_end]
            else:
                topic_at = body_end + 2
                topic_end = topic_at + _short_of(data, body_end)[0]
            properties_at = topic_end + 2
            (properties_bytes,) = _short_of(data, topic_end)
        except (error, IndexError):
            break
        if (
            (magic != _MAGIC_V1 and magic != _MAGIC_V2)
            or record_end > end
            or body_bytes < 0
            or topic_end < topic_at
            or properties_bytes < 0
            or properties_at + properties_bytes != record_end
        ):
            break
        if data[topic_at:topic_end] != topic_bytes:
            topic_bytes = data[topic_at:topic_end]
            try:
                topic = str(topic_bytes, "utf-8")
            except UnicodeDecodeError:
                break
        body = data[body_at:body_end]
        if body and crc32(body) & _CRC_MASK != body_crc:
            break
        properties = data[properties_at:record_end]
        made.append(make(queue_offset, sys_flag, data[at:body_at], body, topic, properties))
        at = record_end
    return made, at


def _cut_in_place(
    data: bytes, make: Callable[[int, int, bytes, bytes, str, bytes], T]
) -> tuple[list[T], int]:
    made: list[T] = []
    text = data  # when compiled, a pointer
    at = 0
    end = len(data)
    topic_bytes = b""
    topic = ""
    while end - at >= _SMALLEST:
        size = _int(text, at)
        magic = _int(text, at + 4)
        sys_flag = _int(text, at + 36)
        body_at = at + _HEAD_BYTES
        if sys_flag & _HOSTS_V6:
            body_at += _V6_BYTES * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
        record_end = at + size
        if (
            (magic != _MAGIC_V1 and magic != _MAGIC_V2)
            or size < _SMALLEST
            or record_end > end
            or body_at + 3 > record_end
        ):
            break
        body_bytes = _int(text, body_at - 4)
        body_end = body_at + body_bytes
        if body_bytes < 0 or body_end + 3 > record_end:
            break
        if magic == _MAGIC_V1:
            topic_at = body_end + 1
            topic_length = text[body_end]
        else:
            topic_at = body_end + 2
            topic_length = _short(text, body_end)
        topic_end = topic_at + topic_length
        properties_at = topic_end + 2
        if (
            topic_length < 0
            or properties_at > record_end
            or properties_at + _short(text, topic_end) != record_end
        ):
            break
        name = text[topic_at:topic_end]
        if name != topic_bytes:
            topic_bytes = name
            try:
                topic = str(name, "utf-8")
            except UnicodeDecodeError:
                break
        body = text[body_at:body_end]
        if body_bytes:
            crc = crc32(body)
            if crc & _CRC_MASK != _int(text, at + 8):
                break
        properties = text[properties_at:record_end]
        queue_offset = _int(text, at + 20) * _HIGH + _unsigned(text, at + 24)
        made.append(make(queue_offset, sys_flag, text[at:body_at], body, topic, properties))
        at = record_end
    return made, at


def _short(text: bytes, at: int) -> int:
    """Return a signed number of 2 bytes."""
    number = text[at] << 8 | text[at + 1]
    return number - (number >> 15 << 16)


def _int(text: bytes, at: int) -> int:
    """Return a signed number of 4 bytes."""
    number = _unsigned(text, at)
    return number - (number >> 31 << 32)


def _unsigned(text: bytes, at: int) -> int:
    """Return a number of 4 bytes."""
    number = text[at] << 24 | text[at + 1] << 16 | text[at + 2] << 8 | text[at + 3]
    return number  # noqa: RET504 - a C type when compiled
