"""Checking records against the queue entries that lead to them.

Layout of a record: see ``record_scan``. A record is sound if its size, magic, position, queue and
queue offset are those of the entry, its topic that of the queue, its lengths add up, and its body
has the CRC that it states. No checksum covers the rest: flag, times, hosts and properties.
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

_MAGIC_V1 = 0xDAA3_20A7
_MAGIC_V2 = 0xDAA3_20AB
_SMALLEST = 91
_HEAD = Struct(">iIIiiqqi")
_INT = Struct(">i")
_SHORT = Struct(">h")
_head_of = _HEAD.unpack_from
_int_of = _INT.unpack_from
_short_of = _SHORT.unpack_from


def find_unsound(
    data: bytes | memoryview,
    start: int,
    units: list[tuple[int, int, int]],
    offset: int,
    queue_id: int,
    topic: bytes,
) -> list[int]:
    """Return the indexes of the ``units`` whose records are not sound.

    Args:
        data: A whole segment.
        start: The position of its first byte.
        units: Entries as (ordinal, position, record size).
        offset: The queue offset of ordinal 0.
        queue_id: The queue of all entries.
        topic: Its topic, as UTF-8.
    """
    unsound: list[int] = []
    data_bytes = len(data)
    topic_bytes = len(topic)
    index = -1
    for ordinal, position, size in units:
        index += 1
        at = position - start
        end = at + size
        if at < 0 or size < _SMALLEST or end > data_bytes:
            unsound.append(index)
            continue
        stated_size, magic, body_crc, stated_queue, _, stated_offset, stated, sys_flag = _head_of(
            data, at
        )
        if (
            stated_size != size
            or stated != position
            or stated_queue != queue_id
            or stated_offset != offset + ordinal
        ):
            unsound.append(index)
            continue
        body_at = at + 88
        if sys_flag & 0x30:
            body_at += 24 if sys_flag & 0x30 == 0x30 else 12
        (body_bytes,) = _int_of(data, body_at - 4)
        body_end = body_at + body_bytes
        topic_at = body_end + (1 if magic == _MAGIC_V1 else 2)
        properties_at = topic_at + topic_bytes + 2
        if body_bytes < 0 or properties_at > end:
            unsound.append(index)
            continue
        if magic == _MAGIC_V1:
            stated_bytes = data[body_end]
        elif magic == _MAGIC_V2:
            (stated_bytes,) = _short_of(data, body_end)
        else:
            unsound.append(index)
            continue
        if (
            stated_bytes != topic_bytes
            or properties_at + _short_of(data, properties_at - 2)[0] != end
            or data[topic_at : topic_at + topic_bytes] != topic
            or (body_bytes and crc32(data[body_at:body_end]) & 0x7FFF_FFFF != body_crc)
        ):
            unsound.append(index)
    return unsound
