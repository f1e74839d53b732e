"""Rules that decide how a record of the commit log enters its queue and the key index.

    transaction state   queue entry   key index
    none, COMMIT        yes           yes
    PREPARED            no            yes
    ROLLBACK            no            no

The tags code of an entry is the hash of the record's TAGS; in the schedule topic it is the time at
which the message is due. A record before the position at which its topic was deleted has no entry,
but its queue offset counts as assigned.

Live appends, appends of a leader's records, recovery and the integrity checks all follow these
rules. Live appends call the single rules, since they have a draft and no record yet. The others
call :meth:`ApplyRules.effects_of`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rocketpost.codec.properties import decode_properties
from rocketpost.codec.record import decode_record
from rocketpost.errors import CorruptRecord
from rocketpost.kernel.record_scan import Entry
from rocketpost.model import sysflag
from rocketpost.model.names import SCHEDULE_TOPIC
from rocketpost.store.deleted_topics import DeletedTopics
from rocketpost.store.layout import is_queue

NOT_IN_QUEUE: Final = sysflag.TRANSACTION_PREPARED
"""The sysFlag bit of records without a queue entry: it is set in PREPARED and in ROLLBACK."""
QUEUE_OFFSET_MAX: Final = 2**58
"""Bound of queue offsets: 20 bytes each must stay below the largest file offset."""

_UNKNOWN_LEVEL_MS: Final = 1000
_LEVEL_DIGITS_MAX: Final = 9


class Effects(NamedTuple):
    """Effects of one record on its queue and on the key index."""

    is_in_queue: bool
    """Whether the record has a place in its queue."""
    is_deleted: bool
    """Whether its topic was deleted later, so that its place stays empty."""
    tags_code: int
    keys: tuple[str, ...]
    """Keys under which the record is indexed."""


class ApplyRules:
    """Computes the effects of a record.

    Args:
        delays_ms: Delay of each level of the schedule topic.
        deleted_topics: Deleted topics.
    """

    def __init__(self, *, delays_ms: tuple[int, ...], deleted_topics: DeletedTopics) -> None:
        self._delays_ms = delays_ms
        self._deleted_topics = deleted_topics

    def effects_of(self, entry: Entry, data: bytes | memoryview, at: int) -> Effects:
        """Return the effects of the record at byte ``at`` of ``data``."""
        position, size, topic, queue_id, _, sys_flag, store_ms, tags_code, keys = entry
        is_in_queue = not sys_flag & NOT_IN_QUEUE
        if topic == SCHEDULE_TOPIC and is_in_queue:
            record = data[at : at + size]
            tags_code = code_of_record(record, topic, tags_code, store_ms, self._delays_ms)
        is_deleted = position < self._deleted_topics.position(topic, queue_id)
        return Effects(is_in_queue, is_deleted, tags_code, indexed_keys(sys_flag, keys))


def is_possible(entry: Entry) -> bool:
    """Tell whether a queue can hold this record; damaged fields may hold any value."""
    return is_queue(entry[2], entry[3]) and 0 <= entry[4] < QUEUE_OFFSET_MAX


def indexed_keys(sys_flag: int, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys under which a record is indexed: none if it rolls a transaction back."""
    is_rollback = sys_flag & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_ROLLBACK
    return () if is_rollback else keys


def schedule_code(
    properties: bytes, tags_code: int, store_ms: int, delays_ms: tuple[int, ...]
) -> int:
    """Return the tags code of an entry of the schedule topic: the time at which it is due.

    Without a valid DELAY property it is the ordinary tags code.
    """
    text = decode_properties(properties).get("DELAY", "")
    if not text.isdecimal() or len(text) > _LEVEL_DIGITS_MAX or int(text) <= 0:
        return tags_code
    if not delays_ms:
        return store_ms + _UNKNOWN_LEVEL_MS
    return store_ms + delays_ms[min(int(text), len(delays_ms)) - 1]


def code_of_record(
    record: bytes | memoryview,
    topic: str,
    tags_code: int,
    store_ms: int,
    delays_ms: tuple[int, ...],
) -> int:
    """Return the tags code of the queue entry of a record."""
    if topic != SCHEDULE_TOPIC:
        return tags_code
    try:
        properties = decode_record(record, verify_crc=False).properties_bytes
    except CorruptRecord:
        return tags_code
    return schedule_code(properties, tags_code, store_ms, delays_ms)
