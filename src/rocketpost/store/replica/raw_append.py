"""Appends of a leader's records unchanged: the same bytes at the same position.

A chunk is a run of whole records of one segment. It may end with the filler that ends the segment,
which then extends to the segment's last byte. A chunk is checked before anything changes: each
record by size, magic, stated position, body CRC or checksum, and queue offset. A chunk with one bad
record is refused.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from rocketpost.errors import CorruptRecord, StoreError
from rocketpost.kernel.record_scan import (
    BLANK,
    INVALID,
    MAGIC_V1,
    MAGIC_V2,
    Entry,
    parse_record,
    scan_records,
)
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.store.apply import ApplyRules, Effects, is_possible
from rocketpost.store.deleted_topics import DeletedTopics
from rocketpost.store.dispatch.dispatcher import Dispatcher
from rocketpost.store.draft import Appended
from rocketpost.store.integrity.damage import NO_CHECKSUM
from rocketpost.store.integrity.record_evidence import (
    RECORD_BYTES_MIN,
    failed_check,
    lacks_checksum,
)
from rocketpost.store.log.commit_log import BLANK_BYTES, CommitLog
from rocketpost.store.log.segmented_log import SegmentedLog
from rocketpost.store.queue.table import QueueTable

_HEAD: Final = Struct(">iIIiiqq")
_MARK: Final = Struct(">iI")

Checked = list[tuple[Entry, Effects]]
"""Records of a sound chunk, each with its effects."""


class RawChunk(NamedTuple):
    """A chunk that was appended."""

    end: Position
    store_ms: int
    """Newest store time in it; 0 if it held only the filler."""


class RawAppender:
    """Checks, writes and applies chunks of a leader's log. Belongs to the loop thread."""

    def __init__(
        self,
        *,
        commit_log: CommitLog,
        segments: SegmentedLog,
        queues: QueueTable,
        deleted_topics: DeletedTopics,
        dispatcher: Dispatcher,
        delays_ms: tuple[int, ...],
        require_checksum: bool,
    ) -> None:
        self._log = commit_log
        self._segments = segments
        self._queues = queues
        self._deleted_topics = deleted_topics
        self._dispatcher = dispatcher
        self._require_checksum = require_checksum
        self._rules = ApplyRules(delays_ms=delays_ms, deleted_topics=deleted_topics)

    def append(self, position: int, data: bytes | memoryview) -> RawChunk:
        """Append a chunk whose first byte has ``position``; its records are not visible yet.

        Raises:
            CorruptRecord: A record is not sound or not the next of its queue; nothing was changed.
            StoreError: The chunk does not belong at the end of the log; nothing was changed.
            StoreFull: There is no room; nothing was changed.
            StoreBroken: The write failed, and no more may be written.
        """
        self._check_place(position, len(data))
        checked = self._check_records(position, data)
        self._log.write_raw(position, data)
        for entry, effects in checked:
            self._apply(entry, effects)
        return RawChunk(
            Position(position + len(data)), max((entry[6] for entry, _ in checked), default=0)
        )

    def _check_place(self, position: int, size: int) -> None:
        log, segment_bytes = self._log, self._segments.segment_bytes
        if log.end != log.written:
            raise StoreError(f"messages at {log.written} are not committed yet; commit them first")
        if not len(self._segments):
            if position % segment_bytes or position < log.end:
                raise StoreError(
                    f"position {position} cannot begin an empty log: it must be a multiple of"
                    f" mappedFileSizeCommitLog={segment_bytes}, from {log.end} on"
                )
        elif position != log.end:
            raise StoreError(f"position {position} is not the end of the log, {log.end}")
        if not size:
            raise StoreError(f"the chunk at {position} is empty")
        room = segment_bytes - position % segment_bytes
        if size > room:
            raise StoreError(
                f"the chunk at {position} has {size} bytes, but its segment has only {room} left"
            )

    def _check_records(self, position: int, data: bytes | memoryview) -> Checked:
        entries, at, verdict = scan_records(data, 0, position, count_max=len(data))
        room_end = position + self._segments.segment_bytes - position % self._segments.segment_bytes
        if verdict == BLANK:
            _check_blank(data, at, position + at, room_end)
        elif verdict == INVALID:
            raise _refusal(position + at, why_refused(data, at, position + at))
        elif position + at > room_end - BLANK_BYTES:
            last = entries[-1]
            raise _refusal(
                last[0], f"it ends at {last[0] + last[1]} and leaves no room for the filler"
            )
        next_offsets: dict[tuple[str, int], int] = {}
        return [
            (entry, self._check_place_in_queue(entry, data, position, next_offsets))
            for entry in entries
        ]

    def _check_place_in_queue(
        self,
        entry: Entry,
        data: bytes | memoryview,
        chunk_position: int,
        next_offsets: dict[tuple[str, int], int],
    ) -> Effects:
        position, size, topic, queue_id, queue_offset, *_ = entry
        if not is_possible(entry):
            raise _refusal(
                position,
                f"no queue can be {topic!r}/{queue_id} or have the offset {queue_offset}",
            )
        at = position - chunk_position
        if self._require_checksum and lacks_checksum(data[at : at + size]):
            raise _refusal(position, NO_CHECKSUM)
        effects = self._rules.effects_of(entry, data, at)
        if not effects.is_in_queue:
            return effects
        wanted = next_offsets.get((topic, queue_id))
        if wanted is None:
            wanted = self._next_offset(topic, queue_id, queue_offset)
        if queue_offset != wanted:
            raise _refusal(
                position,
                f"it has the offset {queue_offset} of queue {topic}/{queue_id}, whose "
                f"next offset is {wanted}",
            )
        next_offsets[topic, queue_id] = queue_offset + 1
        return effects

    def _next_offset(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the offset that the next record of a queue must have."""
        queue = self._queues.get((topic, queue_id))
        if queue is not None:
            return int(queue.next_offset)
        known = self._deleted_topics.next_offset(topic, queue_id)
        has_expired = self._log.first > 0 or not len(self._segments)
        # The records before it may have expired at the leader.
        return queue_offset if has_expired and queue_offset > known else known

    def _apply(self, entry: Entry, effects: Effects) -> None:
        position, size, topic, queue_id, queue_offset, _, store_ms, _, _ = entry
        queue = None
        if effects.is_in_queue:
            queue = self._queues.get((topic, queue_id))
            if queue is None:
                queue = self._queues.make(topic, queue_id, start=queue_offset)
            queue.next_offset = QueueOffset(queue_offset + 1)
        self._dispatcher.pending.append(
            Appended(
                Position(position),
                size,
                QueueOffset(queue_offset),
                store_ms,
                topic,
                queue_id,
                effects.tags_code,
                effects.keys,
                queue,
            )
        )


def why_refused(data: bytes | memoryview, at: int, position: int) -> str:
    """Return the reason why no whole and sound record is at byte ``at`` of ``data``."""
    left = len(data) - at
    if left < RECORD_BYTES_MIN:
        return f"it is cut short: {left} bytes are not a whole record"
    size, magic, _, _, _, _, stated = _HEAD.unpack_from(data, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return f"magic {magic:#010x} is not that of a record"
    if stated != position:
        return f"it states the position {stated}"
    if size < RECORD_BYTES_MIN:
        return f"it states a size of {size} bytes, which is too small"
    if size > left:
        return f"it is cut short: {left} of {size} bytes are there"
    if parse_record(data, at, position, False) is None:
        return "its lengths do not add up to its size, or its text holds zeros"
    return failed_check(data[at : at + size])


def _check_blank(data: bytes | memoryview, at: int, position: int, segment_end: int) -> None:
    stated = _MARK.unpack_from(data, at)[0]
    left = segment_end - position
    if stated != left:
        raise _refusal(
            position, f"the filler states {stated} bytes, but its segment has {left} left"
        )
    if len(data) - at != left:
        raise _refusal(
            position, f"the filler is cut short: {len(data) - at} of {left} bytes are there"
        )


def _refusal(position: int, why: str) -> CorruptRecord:
    return CorruptRecord(f"the record at {position} is refused: {why}")
