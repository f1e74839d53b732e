"""Checks of a single record: its fields, its soundness, and the reason if it is damaged."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from rocketpost.codec.record import decode_record, locate
from rocketpost.errors import CorruptRecord
from rocketpost.kernel.record_scan import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    judge_checksum,
    parse_record,
)
from rocketpost.kernel.record_scan import NO_CHECKSUM as _ABSENT
from rocketpost.store.apply import code_of_record
from rocketpost.store.integrity.damage import BAD_BODY, BAD_RECORD, NO_CHECKSUM

RECORD_BYTES_MIN: Final = 91
_HEAD: Final = Struct(">iIIiiqq")
_MARK: Final = Struct(">iI")
_LIKENESS: Final = 3

Place = tuple[str, int, int]
"""Topic, queue id and queue offset of a message."""


class FoundRecord(NamedTuple):
    """The fields of a record; ``is_sound`` if it matches its CRC or checksum."""

    position: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_ms: int
    tags_code: int
    is_sound: bool

    @property
    def place(self) -> Place:
        """Topic, queue id and queue offset of the message."""
        return self.topic, self.queue_id, self.queue_offset


def read_record(
    data: bytes | memoryview, at: int, position: int, *, require_checksum: bool = False
) -> FoundRecord | None:
    """Return the fields of the record at byte ``at`` of ``data``; None if it is not whole."""
    entry = parse_record(data, at, position, True)
    is_sound = entry is not None
    if entry is not None and require_checksum:
        is_sound = not lacks_checksum(data[at : at + entry[1]])
    if entry is None:
        entry = parse_record(data, at, position, False)
        if entry is None:
            return None
    return FoundRecord(*entry[:8], is_sound)


def is_blank(data: bytes | memoryview, at: int) -> bool:
    """Tell whether the filler that ends a segment begins at byte ``at``."""
    if len(data) - at < _MARK.size:
        return False
    magic: int = _MARK.unpack_from(data, at)[1]
    return magic == MAGIC_BLANK


def entry_code(found: FoundRecord, record: bytes | memoryview, delays_ms: tuple[int, ...]) -> int:
    """Return the tags code of the queue entry of a record."""
    return code_of_record(record, found.topic, found.tags_code, found.store_ms, delays_ms)


def resembles(data: bytes | memoryview, position: int, size: int, place: Place) -> bool:
    """Tell whether bytes are the record that an entry points to, except for some damage."""
    if len(data) < _HEAD.size:
        return False
    stated_size, magic, _, queue_id, _, queue_offset, stated = _HEAD.unpack_from(data)
    alike = (
        stated_size == size,
        magic in (MAGIC_V1, MAGIC_V2),
        queue_id == place[1],
        queue_offset == place[2],
        stated == position,
    )
    return alike.count(True) >= _LIKENESS


def stated_place(data: bytes | memoryview, at: int, position: int) -> tuple[int, int] | None:
    """Return the queue id and queue offset stated by a record that cannot be read.

    None if neither its magic nor its position shows that a record begins there.
    """
    if len(data) - at < _HEAD.size:
        return None
    _, magic, _, queue_id, _, queue_offset, stated = _HEAD.unpack_from(data, at)
    if magic not in (MAGIC_V1, MAGIC_V2) and stated != position:
        return None
    return queue_id, queue_offset


def why_unsound(data: bytes | memoryview, position: int, size: int, place: Place) -> str:
    """Return the defect of the record of an entry; ``data`` begins with the record."""
    if len(data) < RECORD_BYTES_MIN:
        return "it is cut short"
    stated_size, magic, _, queue_id, _, queue_offset, stated = _HEAD.unpack_from(data)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return f"magic {magic:#010x} is not that of a record"
    for name, found, wanted in (
        ("size", stated_size, size),
        ("position", stated, position),
        ("queue id", queue_id, place[1]),
        ("queue offset", queue_offset, place[2]),
    ):
        if found != wanted:
            return f"it states the {name} {found} instead of {wanted}"
    entry = parse_record(data, 0, position, False)
    if entry is None:
        return "its lengths do not add up to its size, or its text is cut short"
    if entry[2] != place[0]:
        return f"it states the topic {entry[2]!r}"
    return failed_check(data[:size])


def failed_check(record: bytes | memoryview) -> str:
    """Return the check that a well-formed record fails."""
    try:
        decode_record(record)
    except CorruptRecord:
        return BAD_BODY
    return NO_CHECKSUM if lacks_checksum(record) else BAD_RECORD


def lacks_checksum(record: bytes | memoryview) -> bool:
    """Tell whether a well-formed record has no checksum property."""
    *_, properties_at = locate(record)
    return judge_checksum(record, 0, properties_at, len(record)) == _ABSENT
