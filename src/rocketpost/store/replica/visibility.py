"""The part of the log that readers may see: up to a ceiling, and never half a record.

A store that was opened with a ceiling has records after it in its log. Recovery puts them into
queues and index like all others. Here they are removed from the queues again and wait, like records
just appended, until they are confirmed. The index keeps them, and a query skips them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rocketpost.model.ids import QueueOffset
from rocketpost.store.draft import Appended
from rocketpost.store.log.commit_log import CommitLog
from rocketpost.store.log.segmented_log import SegmentedLog
from rocketpost.store.log.walk import walk
from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.store.queue.files import ENTRY, ENTRY_BYTES, FILLER_SIZE
from rocketpost.store.queue.table import QueueTable

_ENTRIES_AT_ONCE: Final = 4096
_QueueEntry = tuple[ConsumeQueue | None, int, int]
_NO_ENTRY: Final[_QueueEntry] = (None, 0, 0)


def find_border(segments: SegmentedLog, queues: QueueTable, position: int, end: int) -> int:
    """Return the last border between two records up to ``position``.

    Args:
        segments: The log.
        queues: Queues that point to records near ``position``.
        position: Any position from the start of the log on.
        end: The end of the log.
    """
    segment = segments.find(position)
    if position >= end or segment is None:
        return min(position, end)
    newest = max((queue.end_before(position)[1] for queue in queues), default=-1)
    at = max(segment.start, newest)
    for begin, record in walk(segments, at, end):
        if begin + len(record) > position:
            return begin if begin <= position else at
        at = begin + len(record)
    return at


def hide_from(
    segments: SegmentedLog, queues: QueueTable, commit_log: CommitLog, position: int
) -> list[Appended]:
    """Remove the entries of records from ``position`` on from their queues.

    Their offsets stay assigned: the next message of a queue follows them.

    Returns:
        Every record from ``position`` on, in the order of the log.
    """
    entries: dict[int, _QueueEntry] = {}
    for queue in queues:
        if queue.last_position >= position:
            next_offset = queue.next_offset
            for offset, at, tags_code in _entries_from(queue, queue.end_before(position)[0]):
                entries[at] = queue, offset, tags_code
            queue.cut_at(position)
            queue.next_offset = next_offset
    hidden: list[Appended] = []
    for begin, record in walk(segments, position, commit_log.end):
        owner, offset, tags_code = entries.get(begin, _NO_ENTRY)
        hidden.append(
            Appended(
                begin,
                len(record),
                QueueOffset(offset),
                commit_log.store_time(begin),
                owner.topic if owner is not None else "",
                owner.queue_id if owner is not None else 0,
                tags_code,
                (),  # the index has its keys
                owner,
            )
        )
    return hidden


def _entries_from(queue: ConsumeQueue, offset: int) -> Iterator[tuple[int, int, int]]:
    """Yield queue offset, position and tags code of the records from an offset on."""
    while offset < queue.end:
        data = queue.read(offset, _ENTRIES_AT_ONCE)
        for at, (position, size, tags_code) in enumerate(ENTRY.iter_unpack(data)):
            if size != FILLER_SIZE:
                yield offset + at, position, tags_code
        assert data
        offset += len(data) // ENTRY_BYTES
