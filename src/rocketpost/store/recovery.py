"""What a store does before it opens: find where the log ends, and make queues and index match it.

With a checkpoint of ours the log is read from there on, whether the stop was clean or not. Without
one (the store was Java's, or the file is damaged) RocketMQ's rules say where to start: after a
clean stop the segment of the newest queue entry, after a crash the newest segment whose first
message is older than the checkpoint. The log ends at the first record that is not whole and true:
size, magic, its own position, CRC. Everything behind is zeroed, so that it can never come back.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from rocketpost.codec.record import decode_record
from rocketpost.errors import CorruptRecord, StoreError
from rocketpost.kernel.record_scan import BLANK, INVALID, Entry, scan_records
from rocketpost.model import sysflag
from rocketpost.model.delay_levels import parse_delay_levels
from rocketpost.model.names import SCHEDULE_TOPIC
from rocketpost.store.checkpoint import Checkpoint
from rocketpost.store.config import StoreConfig
from rocketpost.store.dispatch import deliver_time
from rocketpost.store.drops import DroppedTopics
from rocketpost.store.files import FileSystem
from rocketpost.store.key_index import KeyIndex
from rocketpost.store.layout import is_queue
from rocketpost.store.queue_table import QueueTable
from rocketpost.store.segment import Segment
from rocketpost.store.segmented_log import SegmentedLog

log = logging.getLogger(__name__)

_RECORDS_AT_ONCE: int = 4096
_NEVER: int = 2**63 - 1
_OFFSET_MAX: int = 2**58  # 20 bytes each must stay below the largest file offset
_NOT_IN_QUEUE: int = sysflag.TRANSACTION_PREPARED  # set in PREPARED and in ROLLBACK


class Recovered(NamedTuple):
    """Where the store goes on."""

    end: int
    index_position: int
    store_ms: int


class Recovery:
    """One recovery; used once, before the store's threads start."""

    def __init__(
        self,
        config: StoreConfig,
        files: FileSystem,
        *,
        segments: SegmentedLog,
        queues: QueueTable,
        index: KeyIndex | None,
        drops: DroppedTopics,
        checkpoint: Checkpoint,
        clean: bool,
    ) -> None:
        self._files = files
        self._segments = segments
        self._queues = queues
        self._index = index
        self._drops = drops
        self._times = checkpoint.times
        self._clean = clean
        self._verify_crc = config.verify_crc
        self._delays_ms = parse_delay_levels(config.delay_levels)
        progress = checkpoint.progress
        if progress is not None and not self._fits_log(progress.position):
            log.warning("checkpoint lies outside the commit log position=%s", progress.position)
            progress = None
        self._progress = progress
        self._queue_from = 0
        self._index_from = _NEVER
        self._index_position = 0
        self._store_ms = self._times.log_ms
        self._replayed = 0

    def run_blocking(self) -> Recovered:
        """Recover; returns where the log ends."""
        self._load_queues()
        self._load_index()
        floor = self._progress.position if self._progress is not None else 0
        start = self._start(floor)
        end = self._scan(start, floor)
        self._finish_log(min(start, floor) if floor else start, end)
        self._finish_queues(end)
        if self._index is not None and self._index_from != _NEVER:
            self._index_position = end
        log.info(
            "store recovered clean=%s from=%s end=%s replayed=%s queues=%s",
            self._clean, start, end, self._replayed, len(self._queues),
        )  # fmt: skip
        return Recovered(end, self._index_position, self._store_ms)

    def _fits_log(self, position: int) -> bool:
        if not len(self._segments):
            return position == 0
        return self._segments.find(position) is not None

    def _load_queues(self) -> None:
        progress = self._progress
        self._queues.load_dropped_blocking(before=progress.position if progress else None)
        first = self._segments.first
        log_first = first.start if first is not None else 0
        if progress is None:
            self._queues.load_blocking(before=None, clean=False, log_first=log_first)
            return
        self._queues.load_blocking(before=progress.position, clean=self._clean, log_first=log_first)
        self._queue_from = progress.position
        if self._queues.count() != (progress.queue_count, progress.queue_end_sum):
            log.warning("queue files are missing, they are built again from the commit log")
            self._queue_from = 0

    def _load_index(self) -> None:
        if self._index is None:
            return
        self._index.load(None if self._clean else self._times.index_ms)
        progress = self._progress
        if progress is not None and self._index.end_position >= progress.index_end:
            self._index_from = progress.index_position
            return
        if progress is not None:
            log.warning("index files are missing, they are built again from the commit log")
        self._index_from = self._index.end_position

    def _start(self, floor: int) -> int:
        """Return where reading starts: always a place where a record begins."""
        first = self._segments.first
        if first is None:
            return 0
        if self._progress is None:
            start = self._java_start()
        else:
            start = floor if self._queue_from >= floor else first.start
        if self._index_from < start:
            # The index may be anybody's; only the start of a segment is surely a record.
            segment = self._segments.find(self._index_from)
            start = segment.start if segment is not None else first.start
        return start

    def _java_start(self) -> int:
        segments = self._segments.all()
        if self._clean:
            newest = max((queue.last_position for queue in self._queues), default=-1)
            found = self._segments.find(newest) if newest >= 0 else None
            return found.start if found is not None else segments[0].start
        for segment in reversed(segments):
            store_ms = _first_store_ms(segment)
            if 0 < store_ms <= self._times.safe_ms:
                return segment.start
        return segments[0].start

    def _scan(self, start: int, floor: int) -> int:
        """Read records from ``start`` on, handing each over; returns the end of the last.

        What lies before ``floor`` was durable and whole once. A bad record there is damage, not a
        torn tail: it is reported and skipped, never cut.
        """
        position = start
        while (segment := self._segments.find(position)) is not None:
            entries, at, verdict = scan_records(
                segment.view(),
                position - segment.start,
                position,
                count_max=_RECORDS_AT_ONCE,
                verify_crc=self._verify_crc,
            )
            for entry in entries:
                self._replay(entry)
            position = segment.start + at
            if verdict == INVALID:
                if position >= floor:
                    return position
                log.error("damaged record position=%s, reading goes on at=%s", position, floor)
                position = floor
            elif verdict == BLANK or at == segment.size:
                following = self._segments.after(segment)
                if following is None:
                    return position
                # Cleaning that a crash cut short may have left a gap; the log goes on behind it.
                position = following.start
        return position

    def _replay(self, entry: Entry) -> None:
        position, size, topic, queue_id, queue_offset, sys_flag, store_ms, tags_code, keys = entry
        self._replayed += 1
        self._store_ms = store_ms
        if not is_queue(topic, queue_id) or not 0 <= queue_offset < _OFFSET_MAX:
            log.error("record of no possible queue, nobody will read it position=%s", position)
            return
        if position < self._drops.position(topic):
            if not sys_flag & _NOT_IN_QUEUE:
                self._drops.raise_next(topic, queue_id, queue_offset + 1)
        elif position >= self._queue_from and not sys_flag & _NOT_IN_QUEUE:
            if topic == SCHEDULE_TOPIC:
                tags_code = self._schedule_code(position, size, store_ms, tags_code)
            queue = self._queues.get((topic, queue_id)) or self._queues.make(topic, queue_id)
            queue.put_recovered(queue_offset, position, size, tags_code)
        rolled_back = sys_flag & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_ROLLBACK
        if keys and position >= self._index_from and not rolled_back:
            self._replay_index(topic, keys, position, store_ms)

    def _replay_index(
        self, topic: str, keys: tuple[str, ...], position: int, store_ms: int
    ) -> None:
        assert self._index is not None
        try:
            self._index.put(topic, keys, position, store_ms)  # type: ignore[arg-type]
        except StoreError as error:
            log.error("key index cannot be built position=%s reason=%s", position, error)
            self._index_position = position
            self._index_from = _NEVER

    def _schedule_code(self, position: int, size: int, store_ms: int, tags_code: int) -> int:
        segment = self._segments.find(position)
        assert segment is not None
        at = position - segment.start
        try:
            record = decode_record(segment.view()[at : at + size], verify_crc=False)
        except CorruptRecord:
            return tags_code
        due_ms = deliver_time(record.properties_bytes, store_ms, self._delays_ms)
        return tags_code if due_ms is None else due_ms

    def _finish_log(self, read_from: int, end: int) -> None:
        """Zero what follows ``end``, and make sure that what precedes it is on disk."""
        if not len(self._segments):
            return
        self._segments.remove_after_blocking(end)
        last = self._segments.find(end)
        whole = self._progress is not None and self._clean and end == self._progress.position
        if last is not None and not whole:
            self._zero(last, end - last.start)
        # A process killed between write and sync leaves records that only the page cache holds;
        # readers are about to see them.
        for segment in self._segments.between_from_thread(read_from, end + 1):
            segment.sync_blocking()

    def _zero(self, segment: Segment, offset: int) -> None:
        try:
            segment.zero_from(offset)
        except OSError as error:
            log.warning("room not reserved path=%s reason=%s", segment.path, error.strerror)
            self._files.ftruncate(segment.fd, segment.size)

    def _finish_queues(self, end: int) -> None:
        first = self._segments.first
        if first is None:
            for queue in self._queues:
                queue.remove_files()
                queue.restart_at(queue.end)
        else:
            for queue in self._queues:
                if self._progress is None:
                    queue.cut_at(end)
                next_offset = self._drops.next_offset(queue.topic, queue.queue_id)
                if queue.end < next_offset:
                    # Files of a deleted topic came back; none of its messages may.
                    queue.remove_files()
                    queue.restart_at(next_offset)
                position_min = max(first.start, self._drops.position(queue.topic))
                for path in queue.raise_first(position_min):
                    self._files.unlink(path)
        self._drops.settle(first.start if first is not None else 0, end)
        if self._drops.is_changed:
            self._drops.save_blocking()


def _first_store_ms(segment: Segment) -> int:
    entries, _, _ = scan_records(segment.view(), 0, segment.start, count_max=1, verify_crc=False)
    return entries[0][6] if entries else 0
