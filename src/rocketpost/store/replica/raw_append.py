"""Appends of a leader's records unchanged: the same bytes at the same position.

A chunk is a run of whole records of one segment. It may end with the filler that ends the segment,
which then extends to the segment's last byte. A chunk is checked before anything is written: each
record by size, magic, stated position, body CRC or checksum, and queue offset. A chunk with one bad
record is refused.

Plain records become rows of numbers (``kernel.record_rows``), as those of a wave do. Others are
read one by one: the first of a queue that the scanner does not know, delayed and transactional
ones, and every record if the kernel is not compiled. Both ways have the same results.

While a chunk is checked, the next offsets of queues are raised, since the scanner compares with
them. A refusal, or a failed write, lowers them again. Queues are made after the write.
"""

from __future__ import annotations

from array import array
from struct import Struct
from typing import Final, NamedTuple

from rocketpost.errors import CorruptRecord, StoreError
from rocketpost.kernel import FORM
from rocketpost.kernel.hashing import extend_state
from rocketpost.kernel.record_rows import QueueNames, RowScanner
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
from rocketpost.model.names import SCHEDULE_TOPIC
from rocketpost.store.apply import ApplyRules, Effects, is_possible
from rocketpost.store.deleted_topics import DeletedTopics
from rocketpost.store.dispatch.dispatcher import Dispatcher
from rocketpost.store.dispatch.row_span import PAIR, ROW, RowSpan
from rocketpost.store.draft import Appended
from rocketpost.store.integrity.damage import NO_CHECKSUM
from rocketpost.store.integrity.record_evidence import (
    RECORD_BYTES_MIN,
    failed_check,
    lacks_checksum,
)
from rocketpost.store.log.commit_log import BLANK_BYTES, CommitLog
from rocketpost.store.log.segmented_log import SegmentedLog
from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.store.queue.table import QueueTable
from rocketpost.store.replica.deletions import QueueRestarted
from rocketpost.store.replica.late_queues import LateQueues

ROW_COUNT: Final = 16_384
"""Rows of one set of buffers; a chunk that has more continues in another set."""
KEY_COUNT: Final = 2 * ROW_COUNT

_HEAD: Final = Struct(">iIIiiqq")
_MARK: Final = Struct(">iI")


class RawChunk(NamedTuple):
    """A chunk that was appended."""

    end: Position
    store_ms: int
    """Newest store time in it; 0 if it held only the filler."""


class SingleRecord(NamedTuple):
    """A checked record that is not a row."""

    entry: Entry
    effects: Effects
    queue: ConsumeQueue | None
    """Its queue; None if it has none, or the queue does not exist yet."""

    @property
    def end(self) -> int:
        """The position after the record."""
        return self.entry[0] + self.entry[1]


Checked = list[SingleRecord | RowSpan]
"""Records of a sound chunk, in the order of the log."""


class RawAppender:
    """Checks, writes and applies chunks of a leader's log. Belongs to the loop thread.

    Args:
        commit_log: The log to append to.
        segments: Its segments.
        queues: The queues of the records.
        deleted_topics: Deleted topics, whose queues do not begin at 0.
        dispatcher: Gets the records, which wait there to be confirmed.
        delays_ms: Delay of each level of the schedule topic.
        require_checksum: Whether every record must have a checksum.
        late_queues: Records that some queues do not begin at their first offset.
        wants_rows: Whether plain records become rows.
    """

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
        late_queues: LateQueues,
        wants_rows: bool = FORM.is_compiled,
    ) -> None:
        self._log = commit_log
        self._segments = segments
        self._segment_bytes = segments.segment_bytes
        self._queues = queues
        self._deleted_topics = deleted_topics
        self._dispatcher = dispatcher
        self._pending = dispatcher.pending
        self._require_checksum = require_checksum
        self.late_queues = late_queues
        self._rules = ApplyRules(delays_ms=delays_ms, deleted_topics=deleted_topics)
        self.wants_rows = wants_rows
        """Whether plain records become rows; may be changed between two chunks."""
        self._names = QueueNames()
        self._known: set[tuple[str, int]] = set()
        self._scanner = RowScanner(self._names, dispatcher.indexing is not None, require_checksum)
        self._slots_seen = -1
        self._is_late = False
        self._rows = self._times = self._keys = array("q")
        self._last: RowSpan | None = None

    def append(self, position: int, data: bytes | memoryview) -> RawChunk:
        """Append a chunk whose first byte has ``position``; its records are not visible yet.

        Raises:
            QueueRestarted: A record begins its queue again; nothing was changed.
            CorruptRecord: A record is not sound or not the next of its queue; nothing was changed.
            StoreError: The chunk does not belong at the end of the log; nothing was changed.
            StoreFull: There is no room; nothing was changed.
            StoreBroken: The write failed, and no more may be written.
        """
        size = len(data)
        self._check_place(position, size)
        if self.wants_rows:
            self._prepare_scanner()
        checked: Checked = []
        try:
            # A start before the first flush must not miss the segments before it.
            self._is_late = position > self._log.end
            self._check_records(position, data, checked)
            if self._is_late:
                self.late_queues.note()
            self._log.write_raw(position, data)
        except StoreError:
            self._withdraw(checked)
            raise
        return RawChunk(Position(position + size), self._apply(checked))

    def _check_place(self, position: int, size: int) -> None:
        log, segment_bytes = self._log, self._segment_bytes
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

    def _prepare_scanner(self) -> None:
        slots = self._queues.slots
        if slots.change_count != self._slots_seen:
            self._slots_seen = slots.change_count
            self._names.clear()
            self._known.clear()
            self._scanner.use_offsets(slots.next_offsets)
        if not self._rows:
            self._renew_buffers()
        elif not self._pending and self._scanner.row_at:
            self._scanner.rewind()  # nothing that waits is in them
            self._last = None

    def _renew_buffers(self) -> None:
        self._rows = array("q", bytes(8 * ROW * ROW_COUNT))
        self._times = array("q", bytes(8 * ROW_COUNT))
        self._keys = array("q", bytes(8 * PAIR * KEY_COUNT))
        self._scanner.use_buffers(self._rows, self._times, self._keys)
        self._last = None

    def _check_records(self, position: int, data: bytes | memoryview, checked: Checked) -> None:
        """Check the records of a chunk, and add them to ``checked`` as far as they are sound."""
        room_end = position + self._segment_bytes - position % self._segment_bytes
        records_end = room_end - BLANK_BYTES
        at, size = 0, len(data)
        new_queues: dict[tuple[str, int], int] = {}
        while at < size:
            if self.wants_rows:
                at = self._scan(position, data, at, records_end, checked)
                if at == size:
                    return
            entries, after, verdict = scan_records(data, at, position + at, count_max=1)
            if verdict == BLANK:
                _check_blank(data, at, position + at, room_end)
                return
            if verdict == INVALID:
                raise _refusal(position + at, why_refused(data, at, position + at))
            checked.append(self._check_one(entries[0], data, at, new_queues))
            at = after
        last = checked[-1]
        if last.end > records_end:
            assert isinstance(last, SingleRecord)
            raise _refusal(
                last.entry[0], f"it ends at {last.end} and leaves no room for the filler"
            )

    def _scan(
        self, position: int, data: bytes | memoryview, at: int, records_end: int, checked: Checked
    ) -> int:
        """Add the plain records from byte ``at`` on; return where the first other one begins."""
        scanner = self._scanner
        while True:
            row, key = scanner.row_at, scanner.key_at
            at = scanner.scan(data, at, position, records_end)
            if scanner.row_at > row:
                self._add_spans(row, scanner.row_at, key, scanner.key_at, checked)
            # A record with more keys than the buffers have room for is read on its own.
            if not scanner.is_full or not scanner.row_at:
                return at
            self._renew_buffers()

    def _add_spans(self, row: int, row_end: int, key: int, key_end: int, checked: Checked) -> None:
        """Add rows as spans, in each of which the store times rise."""
        rows, times, keys = self._rows, self._times, self._keys
        span = RowSpan(rows, row, row_end, keys, key, key_end, times[row_end - 1], times)
        checked.append(span)
        if not self._scanner.has_fallen:  # nearly always
            return
        for begin in _falls(times, row, row_end):
            rest = span.split_at(rows[begin * ROW])
            assert rest is not None
            checked.append(rest)
            span = rest

    def _check_one(
        self,
        entry: Entry,
        data: bytes | memoryview,
        at: int,
        new_queues: dict[tuple[str, int], int],
    ) -> SingleRecord:
        position, size, topic, queue_id, queue_offset, *_ = entry
        if not is_possible(entry):
            raise _refusal(
                position,
                f"no queue can be {topic!r}/{queue_id} or have the offset {queue_offset}",
            )
        if self._require_checksum and lacks_checksum(data[at : at + size]):
            raise _refusal(position, NO_CHECKSUM)
        effects = self._rules.effects_of(entry, data, at)
        if not effects.is_in_queue:
            return SingleRecord(entry, effects, None)
        place = topic, queue_id
        queue = self._queues.get(place)
        if queue is not None:
            wanted = int(queue.next_offset)
        elif place in new_queues:
            wanted = new_queues[place]
        else:
            wanted = self._first_offset(topic, queue_id, queue_offset)
        if queue_offset == 0 < wanted:
            raise QueueRestarted(topic, queue_id, position)
        if queue_offset != wanted:
            raise _refusal(
                position,
                f"it has the offset {queue_offset} of queue {topic}/{queue_id}, whose "
                f"next offset is {wanted}",
            )
        if queue is None:
            new_queues[place] = queue_offset + 1
        else:
            queue.next_offset = QueueOffset(queue_offset + 1)
            self._introduce(queue)
        return SingleRecord(entry, effects, queue)

    def _first_offset(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the offset that the first record of a new queue must have."""
        known = self._deleted_topics.next_offset(topic, queue_id)
        has_expired = self._log.first > 0 or not len(self._segments)
        if not has_expired or queue_offset <= known:
            return known
        self._is_late = True  # the records before it have expired at the leader
        return queue_offset

    def _introduce(self, queue: ConsumeQueue) -> None:
        """Let the scanner take the further records of a queue, unless all are special."""
        place = queue.topic, queue.queue_id
        if not self.wants_rows or queue.topic == SCHEDULE_TOPIC or place in self._known:
            return
        self._known.add(place)
        state = extend_state(0, queue.topic + "#")
        self._names.add(queue.topic.encode(), queue.queue_id, queue.slot, state)

    def _withdraw(self, checked: Checked) -> None:
        """Release the queue offsets of records that are not appended."""
        for each in reversed(checked):
            if isinstance(each, RowSpan):
                each.give_back(self._queues.slots)
            elif each.queue is not None:
                each.queue.next_offset = QueueOffset(each.entry[4])

    def _apply(self, checked: Checked) -> int:
        """Make the records wait to be confirmed; return the newest store time."""
        newest_ms = 0
        for each in checked:
            if isinstance(each, RowSpan):
                newest_ms = max(newest_ms, each.store_ms)
                self._add_rows(each)
            else:
                newest_ms = max(newest_ms, each.entry[6])
                self._add_single(each)
        return newest_ms

    def _add_rows(self, span: RowSpan) -> None:
        """Add a span, or extend the last one that waits."""
        last = self._last
        if (
            last is not None
            and self._pending
            and self._pending[-1] is last
            and last.row_end == span.first_row
            and last.store_ms <= span.times[span.first_row]  # type: ignore[index]
        ):
            last.row_end = span.row_end
            last.key_end = span.key_end
            last.store_ms = span.store_ms
            return
        self._last = span
        self._dispatcher.add_rows(span)

    def _add_single(self, single: SingleRecord) -> None:
        position, size, topic, queue_id, queue_offset, _, store_ms, _, _ = single.entry
        effects, queue = single.effects, single.queue
        if effects.is_in_queue and queue is None:
            queue = self._queues.get((topic, queue_id))
            if queue is None:
                queue = self._queues.make(topic, queue_id, start=queue_offset)
                self._introduce(queue)
            queue.next_offset = QueueOffset(queue_offset + 1)
        self._pending.append(
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


def _falls(times: array[int], row: int, row_end: int) -> list[int]:
    """Return the rows whose store time is before that of the preceding row."""
    return [at for at in range(row + 1, row_end) if times[at] < times[at - 1]]


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
