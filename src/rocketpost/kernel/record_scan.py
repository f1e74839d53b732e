"""A walk over the records of a commit-log segment, and checks against the entries of queues.

Layout of a record, big-endian (both hosts IPv4; a sysFlag bit each makes them 12 bytes longer):

    total size 4, magic 4, body crc 4, queue id 4, flag 4, queue offset 8, physical offset 8,
    sysFlag 4, born time 8, born host 8, store time 8, store host 8, reconsume times 4,
    prepared offset 8, body 4 + n, topic 1 + n (version 2: 2 + n), properties 2 + n

A record counts only if size, magic, physical offset, lengths and body CRC all agree and no part of
its text is still zeros. If its last property is ``__CRC32#`` (a checksum of everything before it,
ten digits, last digit first), that must agree instead of the body CRC. ``codec.record`` decodes
records for users; here an error is a verdict, since a scan expects to meet one.

A record that a queue entry points to is sound (:func:`find_unsound`) if its size, magic, position,
queue and queue offset match the entry, its topic matches the queue, its lengths add up, and its
body matches its CRC, or its checksum property. The CRC does not cover flag, times, hosts and
properties; the checksum covers all of the record.
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

from rocketpost.kernel.hashing import string_hash

MORE = 0
"""The buffer or the count ended first; continue at the returned index."""
BLANK = 1
"""The filler at the end of a segment; continue in the next one."""
INVALID = 2
"""No record starts at the returned index."""

MAGIC_V1 = 0xDAA3_20A7
MAGIC_V2 = 0xDAA3_20AB
MAGIC_BLANK = 0xCBD4_3194

NO_CHECKSUM = 0
"""The record does not end with a checksum property."""
CHECKSUM_HOLDS = 1
CHECKSUM_FAILS = 2

_HEAD = Struct(">iIIiiqqi")
_CHECKSUM_NAME = b"__CRC32#\x01"
_CHECKSUM_BYTES = 20
_SMALLEST = 91
_HOLE = bytes(512)
_MARK = Struct(">iI")
_INT = Struct(">i")
_LONG = Struct(">q")
_SHORT = Struct(">h")
_head_of = _HEAD.unpack_from
_int_of = _INT.unpack_from
_short_of = _SHORT.unpack_from

Entry = tuple[int, int, str, int, int, int, int, int, tuple[str, ...]]
"""Position, size, topic, queue id, queue offset, sysFlag, store time, tags hash, index keys."""


def scan_records(
    data: bytes | memoryview, start: int, position: int, *, count_max: int, verify_crc: bool = True
) -> tuple[list[Entry], int, int]:
    """Walk over records from ``start`` on.

    Args:
        data: A segment, or a part of one.
        start: The start of the first record in ``data``.
        position: The commit-log position of that byte.
        count_max: The maximum number of records.
        verify_crc: Whether to check bodies against their CRC.

    Returns:
        The records, the index in ``data`` after the last of them, and a verdict about the bytes
        there: MORE, BLANK or INVALID.
    """
    entries: list[Entry] = []
    shift = position - start
    at = start
    end = len(data)
    while len(entries) < count_max and at < end:
        if end - at < _MARK.size:
            return entries, at, INVALID
        size, magic = _MARK.unpack_from(data, at)
        if magic == MAGIC_BLANK:
            return entries, at, BLANK
        entry = parse_record(data, at, at + shift, verify_crc)
        if entry is None:
            return entries, at, INVALID
        entries.append(entry)
        at += size
    return entries, at, MORE


def record_starts(
    data: bytes | memoryview, start: int, *, count_max: int, bytes_max: int
) -> tuple[list[int], int]:
    """Walk over records by their sizes alone, without checking what is inside.

    Returns:
        The start of each record, and the index after the last: the end, a bound, or bytes that are
        not a record.
    """
    starts: list[int] = []
    at = start
    end = len(data)
    while end - at >= _SMALLEST and len(starts) < count_max and at - start < bytes_max:
        size, magic = _MARK.unpack_from(data, at)
        if magic not in (MAGIC_V1, MAGIC_V2) or not _SMALLEST <= size <= end - at:
            break
        starts.append(at)
        at += size
    return starts, at


def parse_record(
    data: bytes | memoryview, at: int, position: int, verify_crc: bool
) -> Entry | None:
    """Return the contents of the record at ``at``, or None if it is incomplete or damaged."""
    end = len(data)
    if end - at < _SMALLEST:
        return None
    size, magic, body_crc, queue_id, _, queue_offset, stated, sys_flag = _HEAD.unpack_from(data, at)
    if stated != position or magic not in (MAGIC_V1, MAGIC_V2):
        return None
    if not _SMALLEST <= size <= end - at:
        return None
    end = at + size
    store_at = at + (68 if sys_flag & 0x10 else 56)
    body_at = store_at + (44 if sys_flag & 0x20 else 32)  # after the body's length
    if body_at > end:
        return None
    (body_bytes,) = _INT.unpack_from(data, body_at - 4)
    topic_at = body_at + body_bytes + (1 if magic == MAGIC_V1 else 2)
    if body_bytes < 0 or topic_at > end:
        return None
    if magic == MAGIC_V1:
        topic_bytes = data[topic_at - 1]
    else:
        (topic_bytes,) = _SHORT.unpack_from(data, topic_at - 2)
    properties_at = topic_at + topic_bytes + 2
    if topic_bytes < 0 or properties_at > end:
        return None
    (properties_bytes,) = _SHORT.unpack_from(data, properties_at - 2)
    if properties_bytes < 0 or properties_at + properties_bytes != end:
        return None
    if verify_crc:
        checksum = judge_checksum(data, at, properties_at, end)
        if checksum == CHECKSUM_FAILS:
            return None
        if checksum == NO_CHECKSUM and body_bytes:
            body = data[body_at : body_at + body_bytes]
            if crc32(body) & 0x7FFF_FFFF != body_crc:
                return None
    name = bytes(data[topic_at : topic_at + topic_bytes])
    properties = bytes(data[properties_at:end])
    if is_torn(name, properties):
        return None
    try:
        topic = name.decode()
    except UnicodeDecodeError:
        return None
    tags_hash, keys = index_words(properties)
    (store_ms,) = _LONG.unpack_from(data, store_at)
    return position, size, topic, queue_id, queue_offset, sys_flag, store_ms, tags_hash, keys


def judge_checksum(data: bytes | memoryview, at: int, properties_at: int, end: int) -> int:
    """Compare the record from ``at`` to ``end`` with the checksum in its last property.

    Returns:
        NO_CHECKSUM, CHECKSUM_HOLDS or CHECKSUM_FAILS.
    """
    if end - properties_at < _CHECKSUM_BYTES or data[end - 12] != 1:
        return NO_CHECKSUM
    tail = bytes(data[end - _CHECKSUM_BYTES : end])
    is_named = tail.startswith(_CHECKSUM_NAME) and tail.endswith(b"\x02")
    digits = tail[18:8:-1]
    if not digits.isdigit():
        return CHECKSUM_FAILS if is_named else NO_CHECKSUM
    found = crc32(data[at : end - _CHECKSUM_BYTES]) & 0x7FFF_FFFF
    if is_named:
        return CHECKSUM_HOLDS if found == int(digits) else CHECKSUM_FAILS
    # If the digits are right, this is the checksum and its name is damaged.
    return CHECKSUM_FAILS if found == int(digits) else NO_CHECKSUM


def is_torn(name: bytes, properties: bytes) -> bool:
    """Tell whether a topic or properties are partly zeros, as after a torn write.

    The CRC covers only the body, and a segment is zeros where nothing was written. Text never ends
    in a NUL or contains a sector of them, so such a record was cut by a crash.
    """
    return b"\0" in name or properties.endswith(b"\0") or _HOLE in properties


def index_words(properties: bytes) -> tuple[int, tuple[str, ...]]:
    """Return the hash of TAGS (0 if absent), and the words to index: UNIQ_KEY and those of KEYS."""
    padded = b"\x02" + properties
    tags = _property(padded, b"\x02TAGS\x01")
    unique = _property(padded, b"\x02UNIQ_KEY\x01")
    words = _property(padded, b"\x02KEYS\x01")
    keys = tuple(filter(None, words.split(" "))) if words else ()
    return (string_hash(tags) if tags else 0), ((unique, *keys) if unique else keys)


def _property(padded: bytes, mark: bytes) -> str:
    """Return the last value of ``mark``, which a map filled from left to right would keep."""
    at = padded.rfind(mark)
    if at < 0:
        return ""
    at += len(mark)
    end = padded.find(b"\x02", at)
    # Senders may write anything; that must not invalidate the record and all after it.
    return padded[at : end if end >= 0 else len(padded)].decode("utf-8", "replace")


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
        if magic == MAGIC_V1:
            topic_end = body_end + short_bytes
            name = short_name
        elif magic == MAGIC_V2:
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
