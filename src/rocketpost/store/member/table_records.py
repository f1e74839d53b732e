"""Records of the commit log by which the tables of a group's leader reach every member.

They are messages of queue 0 of ``rmq_sys_REPLICATED_TABLES``, beside those of
``store.member.group_records``, with one of these as tag:

    COPY     the first part of a copy of all tables
    TABLES   the first part of a change of some tables
    PART     a further part of either

The body of each is an int32, the number of the part, an int32, the count of parts, and bytes. The
bytes of all parts, one after the other, are compressed by zlib. The parts are adjacent in their
queue. If a part is missing, because its leader was replaced before it was stored, the parts before
it have no effect.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketpost.codec.record import decode_record
from rocketpost.errors import CorruptRecord
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.names import REPLICATED_TABLES_TOPIC
from rocketpost.store.draft import Draft
from rocketpost.store.member.group_records import draft_group_record
from rocketpost.store.queue.files import ENTRY, ENTRY_BYTES, FILLER_SIZE

if TYPE_CHECKING:
    from rocketpost.store.message_store import MessageStore
    from rocketpost.store.queue.consume_queue import ConsumeQueue

COPY_TAG: Final = "COPY"
TABLES_TAG: Final = "TABLES"
PART_TAG: Final = "PART"
PART_BYTES_MAX: Final = 256 * 1024
"""Size of a part; a segment has room for many."""
_PARTS_OF_A_SEGMENT: Final = 8
_HEAD: Final = Struct(">ii")
_COPY_CODE: Final = string_hash(COPY_TAG)
_TABLES_CODE: Final = string_hash(TABLES_TAG)
_PART_CODE: Final = string_hash(PART_TAG)
_ENTRIES_AT_ONCE: Final = 4096
_COMPRESSION: Final = 1


class TableRecord(NamedTuple):
    """A change of tables, put together from its parts."""

    offset: int
    """Queue offset of its first part."""
    position: int
    """Position of its first part in the log."""
    is_copy: bool
    """Whether it has all tables as a whole."""
    data: bytes


class _Part(NamedTuple):
    tags_code: int
    offset: int
    position: int
    number: int
    of: int
    data: bytes


def draft_tables(
    data: bytes, *, is_copy: bool, segment_bytes: int, host: bytes, now_ms: int
) -> list[Draft]:
    """Return the records of a change, to be stored together.

    Args:
        data: The change.
        is_copy: Whether it has all tables as a whole.
        segment_bytes: Size of the log's segments.
        host: Packed address of the leader.
        now_ms: The time.
    """
    packed = zlib.compress(data, _COMPRESSION)
    size = min(PART_BYTES_MAX, segment_bytes // _PARTS_OF_A_SEGMENT)
    parts = [packed[at : at + size] for at in range(0, len(packed), size)]
    first = COPY_TAG if is_copy else TABLES_TAG
    return [
        draft_group_record(
            PART_TAG if number else first,
            _HEAD.pack(number, len(parts)) + part,
            host=host,
            now_ms=now_ms,
        )
        for number, part in enumerate(parts)
    ]


def table_queue(store: MessageStore) -> ConsumeQueue | None:
    """Return the queue of the records; None if it never had one."""
    return store.queue(REPLICATED_TABLES_TOPIC, 0)


def newest_copy(store: MessageStore) -> TableRecord | None:
    """Return the newest whole copy of all tables in the visible log; None if there is none.

    Raises:
        CorruptRecord: A record is damaged.
    """
    queue = table_queue(store)
    if queue is None:
        return None
    first, end = int(queue.first), int(queue.end)
    while end > first:
        begin = max(first, end - _ENTRIES_AT_ONCE)
        entries = list(ENTRY.iter_unpack(queue.read(begin, end - begin)))
        for number in range(len(entries) - 1, -1, -1):
            if entries[number][2] == _COPY_CODE:
                found = next(read_tables(store, begin + number), None)
                if found is not None and found.offset == begin + number:
                    return found
        end = begin
    return None


def read_tables(store: MessageStore, offset: int) -> Iterator[TableRecord]:
    """Yield the whole changes from a queue offset on, up to the end of the visible log.

    Raises:
        CorruptRecord: A record is damaged.
    """
    parts: list[_Part] = []
    for part in _read_parts(store, offset):
        if part.tags_code != _PART_CODE:
            parts = []
        elif not parts or part.number != len(parts) or part.of != parts[0].of:
            parts = []
            continue  # the rest of a change whose beginning is not there
        parts.append(part)
        if len(parts) == part.of:
            yield _join(parts)
            parts = []


def _join(parts: list[_Part]) -> TableRecord:
    first = parts[0]
    try:
        data = zlib.decompress(b"".join(part.data for part in parts))
    except zlib.error as error:
        raise CorruptRecord(f"the tables at {first.position} are damaged: {error}") from None
    return TableRecord(first.offset, first.position, first.tags_code == _COPY_CODE, data)


def _read_parts(store: MessageStore, offset: int) -> Iterator[_Part]:
    queue = table_queue(store)
    if queue is None:
        return
    offset = max(offset, int(queue.first))
    while offset < queue.end:
        data = queue.read(offset, _ENTRIES_AT_ONCE)
        if not data:
            raise CorruptRecord(f"the queue of {REPLICATED_TABLES_TOPIC} cannot be read")
        for number, (position, size, tags_code) in enumerate(ENTRY.iter_unpack(data)):
            if size != FILLER_SIZE and tags_code in (_COPY_CODE, _TABLES_CODE, _PART_CODE):
                yield _parse(store, offset + number, position, size, tags_code)
        offset += len(data) // ENTRY_BYTES


def _parse(store: MessageStore, offset: int, position: int, size: int, tags_code: int) -> _Part:
    view = store.view(position, size)
    if view is None:
        raise CorruptRecord(f"the tables at {position} are not in the log")
    record = decode_record(view)
    body = bytes(record.body)
    if record.topic != REPLICATED_TABLES_TOPIC or len(body) < _HEAD.size:
        raise CorruptRecord(f"the record at {position} has no tables")
    number, count = _HEAD.unpack_from(body)
    if not 0 <= number < count or (number == 0) == (tags_code == _PART_CODE):
        raise CorruptRecord(f"the record at {position} is part {number} of {count}")
    return _Part(tags_code, offset, position, number, count, body[_HEAD.size :])
