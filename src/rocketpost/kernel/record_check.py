"""Checks of records against the queue entries that point to them.

Layout of a record: see ``record_scan``. A record is sound if its size, magic, position, queue and
queue offset match the entry, its topic matches the queue, its lengths add up, and its body matches
its CRC. That does not cover flag, times, hosts and properties. A record that ends with a checksum
property is checked by that checksum instead, which covers all of it.
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

from rocketpost.kernel.record_scan import CHECKSUM_FAILS, NO_CHECKSUM, judge_checksum

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
    checksum_required: bool = False,
) -> list[int]:
    """Return the indexes of the ``units`` whose records are not sound.

    Args:
        data: A whole segment.
        start: The position of its first byte.
        units: Entries as (ordinal, position, record size).
        offset: The queue offset of ordinal 0.
        queue_id: The queue of all entries.
        topic: The topic of the queue, in UTF-8.
        checksum_required: Whether a record without a checksum property is unsound.
    """
    unsound: list[int] = []
    data_bytes = len(data)
    # The topic as in a record, with its length in front; longer topics need two bytes for it.
    long_name = _SHORT.pack(len(topic)) + topic
    short_name = long_name[1:] if len(topic) < 256 else b""
    long_bytes = len(long_name)
    short_bytes = len(short_name) or data_bytes
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
            if body_at > end:
                unsound.append(index)
                continue
        (body_bytes,) = _int_of(data, body_at - 4)
        body_end = body_at + body_bytes
        if magic == _MAGIC_V1:
            topic_end = body_end + short_bytes
            name = short_name
        elif magic == _MAGIC_V2:
            topic_end = body_end + long_bytes
            name = long_name
        else:
            unsound.append(index)
            continue
        properties_at = topic_end + 2
        if (
            body_bytes < 0
            or properties_at > end
            or properties_at + _short_of(data, topic_end)[0] != end
            or data[body_end:topic_end] != name
        ):
            unsound.append(index)
            continue
        if data[end - 12] == 1:  # the end of a property name; a checksum may follow
            checksum = judge_checksum(data, at, properties_at, end)
            if checksum != NO_CHECKSUM:
                if checksum == CHECKSUM_FAILS:
                    unsound.append(index)
                continue
        if checksum_required or (
            body_bytes and crc32(data[body_at:body_end]) & 0x7FFF_FFFF != body_crc
        ):
            unsound.append(index)
    return unsound
