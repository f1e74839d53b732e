"""Recovery of a store before it opens: finds the end of the log, fits queues and index to it.

With our own checkpoint the log is read from there on, whether the stop was clean or not. Without
one (a Java broker wrote it, or it is damaged) RocketMQ's rules decide where to start: after a clean
stop the segment of the newest queue entry, after a crash the newest segment whose first message is
older than the checkpoint.

The log ends at the first position without a sound record (size, magic, its own position, CRC) that
no sound record follows, but never before a position known to have been durable. Everything after
the end is zeroed, so that it can never reappear. If a sound record follows, the bytes are damaged,
not torn: they are kept and reported, and the log continues after them.

A power cut is different: any page that was not synced may be lost while a later one survives.
Records rely on earlier ones (a commit before the mark that ends its transaction, a copy before the
acknowledgement of its original). So if the machine was restarted, the log ends at the first
position after the durable one without a sound record; the bytes after it are moved to a file. A
record that was written whole is no such position: it is damaged, wherever it is (``torn_writes``).
"""

from __future__ import annotations

import logging

from rocketpost.errors import StoreError
from rocketpost.kernel.record_scan import BLANK, INVALID, Entry, parse_record, scan_records
from rocketpost.model.delay_levels import parse_delay_levels
from rocketpost.store.apply import NOT_IN_QUEUE, ApplyRules, is_possible
from rocketpost.store.config import RECORD_SLACK_BYTES, StoreConfig
from rocketpost.store.log.contents import StoreContents
from rocketpost.store.log.cut_tail import keep_cut_tail
from rocketpost.store.log.segment import Segment
from rocketpost.store.queue.replay import PlacedEntry, QueueReplay
from rocketpost.store.recovery.losses import Losses
from rocketpost.store.recovery.missing import MissingLog
from rocketpost.store.recovery.resync import BadRange, Resync
from rocketpost.store.recovery.torn_writes import find_written_end
from rocketpost.store.recovery.values import RecoveryInput, RecoveryResult

logger = logging.getLogger(__name__)

_RECORDS_AT_ONCE: int = 4096
_NEVER: int = 2**63 - 1
_FAR: int = 2**40


class Recovery:
    """One recovery; used once, before the store's threads start."""

    def __init__(
        self,
        config: StoreConfig,
        contents: StoreContents,
        *,
        found: RecoveryInput,
        now_ms: int,
    ) -> None:
        self._files = contents.files
        self._cut_tails = contents.layout.cut_tails
        self._segments = contents.segments
        self._queues = contents.queues
        self._index = contents.index
        self._deleted_topics = contents.deleted_topics
        self._times = found.checkpoint.times
        self._clean = found.clean
        self._has_late_queues = found.has_late_queues
        self._cut = found.cut
        self._verify_crc = config.verify_crc
        self._record_bytes_max = config.message_bytes_max + RECORD_SLACK_BYTES
        self._rules = ApplyRules(
            delays_ms=parse_delay_levels(config.delay_levels),
            deleted_topics=contents.deleted_topics,
        )
        self._is_foreign = found.checkpoint.progress is None
        self._extent = found.trusted_extent()
        self._lost_power = self._extent is not None and self._extent.is_from_earlier_boot(
            found.boot
        )
        self._missing = MissingLog(
            contents.segments, contents.damage, accept=found.accept_missing, now_ms=now_ms
        )
        self._losses = Losses(contents.damage, now_ms=now_ms)
        progress = found.checkpoint.progress
        self._claimed_end = max(
            progress.position if progress is not None else 0,
            self._extent.durable if self._extent is not None else 0,
        )
        if progress is not None and not self._fits_log(progress.position):
            logger.warning("checkpoint lies outside the commit log position=%s", progress.position)
            progress = None
        self._progress = progress
        self._queue_from = 0
        self._index_from = _NEVER
        self._index_position = 0
        self._store_ms = self._times.log_ms
        self._replayed = 0

    def run_blocking(self) -> RecoveryResult:
        """Recover the store; returns the positions at which it continues.

        Raises:
            StoreError: Files of the log are missing; nothing was changed.
        """
        self._check_missing(first=self._claimed_first, end=self._claimed_end)
        self._load_queues()
        self._load_index()
        # Bytes before this were durable, so no crash has torn them.
        floor = self._missing.resume_at(self._claimed_end)
        start = self._start(floor)
        self._resync = Resync(self._segments)
        self._replay_queues = QueueReplay(
            self._queues,
            begins_anywhere=self._has_late_queues or self._is_from_expired_start(start),
            is_foreign=self._is_foreign,
            claim_at=self._claim_at,
            on_contradiction=self._losses.add_misplaced,
        )
        self._losses.unknown_from = self._queue_from
        self._check_before(start)
        end = self._scan(start, _NEVER, floor)
        self._replay_queues.finish()
        self._finish_log(start, end)
        self._finish_queues(end)
        self._losses.report(self._segments, end)
        if self._index is not None and self._index_from != _NEVER:
            self._index_position = end
        logger.info(
            "store recovered clean=%s from=%s end=%s replayed=%s queues=%s",
            self._clean, start, end, self._replayed, len(self._queues),
        )  # fmt: skip
        return RecoveryResult(end, self._index_position, self._store_ms)

    @property
    def _claimed_first(self) -> int | None:
        """Position at or before which the log begins, if the files say so.

        They do not if they know an empty log: a follower's log may have begun later since.
        """
        extent = self._extent
        if extent is None:
            return None
        is_empty = max(extent.durable, self._claimed_end) <= extent.first
        return None if is_empty and self._has_late_queues else extent.first

    def _check_missing(self, *, first: int | None, end: int) -> None:
        for begin, stop in self._missing.check(first=first, end=end):
            if not self._clean:  # after a clean stop the queue files are complete
                self._losses.add_missing(begin, stop)

    def _check_entries_beyond(self, log_end: int) -> None:
        """Refuse a log that ends before the records of queue entries.

        A single such entry may itself be damaged; it is cut off with all entries past the log.
        """
        beyond = [queue for queue in self._queues if queue.last_position >= log_end]
        if sum(queue.end - queue.first_at(log_end) for queue in beyond) > 1:
            newest = max(queue.last_position for queue in beyond)
            self._check_missing(first=self._claimed_first, end=newest + 1)
            self._claimed_end = max(self._claimed_end, newest + 1)

    def _fits_log(self, position: int) -> bool:
        first, last = self._segments.first, self._segments.last
        if first is None or last is None:
            return position == 0
        # The end of the last segment fits too: the next one may be lost before it had a record.
        return self._segments.find(position) is not None or position == last.end

    def _load_queues(self) -> None:
        progress = self._progress
        self._queues.load_deleted_blocking(before=progress.position if progress else None)
        first, last = self._segments.first, self._segments.last
        log_first = first.start if first is not None else 0
        limit = max(self._claimed_end, last.end if last is not None else 0)
        if self._cut is not None:
            limit = self._cut
        if progress is None:
            self._queues.load_blocking(
                before=None, clean=False, log_first=log_first, limit=limit + _FAR
            )
            if self._cut is None:
                self._check_entries_beyond(last.end if last is not None else 0)
            return
        self._queues.load_blocking(
            before=progress.position,
            clean=self._clean,
            log_first=log_first,
            limit=limit,
            is_cut=self._cut is not None,
        )
        self._queue_from = progress.position
        start_sum = self._extent.queue_start_sum if self._extent is not None else _NEVER
        counted = self._queues.count()
        if counted != (progress.queue_count, progress.queue_end_sum) or (
            self._queues.start_sum() > start_sum
        ):
            logger.error("queue files are missing, they are rebuilt from the commit log")
            self._queues.check_all_blocking(limit=progress.position, start_sum=start_sum)
            self._queues.is_incomplete = True
        if self._queues.is_incomplete:
            self._queue_from = 0

    def _load_index(self) -> None:
        if self._index is None:
            return
        self._index.load(None if self._clean else self._times.index_ms)
        if self._cut is not None:
            self._index.cut_blocking(self._cut)
        progress = self._progress
        if progress is not None and self._index.end_position >= progress.index_end:
            self._index_from = progress.index_position
            return
        if progress is not None:
            logger.warning("index files are missing, they are rebuilt from the commit log")
        self._index_from = self._index.end_position

    def _is_from_expired_start(self, start: int) -> bool:
        first = self._segments.first
        return first is not None and 0 < first.start == start

    def _start(self, floor: int) -> int:
        """Return the position at which reading starts, always the start of a record."""
        first = self._segments.first
        if first is None:
            return floor
        if self._queues.is_incomplete:
            start = first.start
        elif self._progress is None:
            start = self._java_start()
        else:
            start = self._progress.position if self._queue_from else first.start
        if self._index_from < start:
            # The index may be foreign; only the start of a segment is surely that of a record.
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

    # -- reading

    def _check_before(self, start: int) -> None:
        """Check a few records before ``start``, which are not read otherwise; report damage.

        The first record of a segment shows whether it was zeroed, overwritten or restored from a
        backup. Of the newest segment, the last record in a queue is checked too.
        """
        if self._is_foreign:
            return
        newest = max((queue.last_position for queue in self._queues), default=-1)
        for segment in self._segments.all():
            if segment.start >= start:
                break
            heads = [segment.start]
            if segment.start <= newest < min(start, segment.end):
                heads.append(newest)
            is_short = segment.start in self._segments.cut_short
            if is_short or not all(self._is_sound(segment, head) for head in heads):
                logger.error("segment is damaged and will be read path=%s", segment.path)
                store_ms = self._store_ms
                self._scan(segment.start, min(segment.end, start), min(segment.end, start))
                self._store_ms = store_ms
            segment.unmap()

    def _is_sound(self, segment: Segment, position: int) -> bool:
        at = position - segment.start
        _, _, verdict = scan_records(segment.view(), at, position, count_max=1)
        return verdict != INVALID

    def _claim_at(self, position: int) -> tuple[str, int, int] | None:
        segment = self._segments.find(position)
        if segment is None:
            return None
        entry = parse_record(segment.view(), position - segment.start, position, True)
        return None if entry is None else entry[2:5]

    def _scan(self, start: int, stop: int, floor: int) -> int:
        """Read and replay the records from ``start`` on; returns the end of the log.

        Args:
            start: The start of a record.
            stop: Position at which to stop; no record that begins here or later is read.
            floor: Position before which the log does not end.
        """
        position = start
        before: Segment | None = None
        while position < stop:
            segment = self._segments.find(position)
            if before is not None and segment is not before:
                before.unmap()  # each map keeps a descriptor, and there may be more segments
            before = segment
            if segment is None:
                following = self._segments.first_from(position)
                if following is None:
                    return max(position, floor)
                position = following.start
                continue
            entries, at, verdict = scan_records(
                segment.view(),
                position - segment.start,
                position,
                count_max=_RECORDS_AT_ONCE,
                verify_crc=self._verify_crc,
            )
            for entry in entries:
                if entry[0] >= stop:
                    return entry[0]
                self._replay(entry, segment)
            position = segment.start + at
            if position >= stop:
                break
            if verdict == BLANK and _is_blank(segment, at):
                position = segment.end
            elif verdict in (BLANK, INVALID):
                resumed = self._pass(position, floor)
                if resumed is None:
                    return position
                position = resumed
        return position

    def _pass(self, position: int, floor: int) -> int | None:
        """Return where the log continues after bytes that are no record; None if it ends there."""
        # A Java broker cuts its log without erasing the rest. Records left there are older than
        # those that it wrote since.
        self._resync.store_ms_min = self._store_ms if self._is_foreign else None
        following = self._resync.find(position, bytes_max=self._look_bytes(position))
        if self._lost_power and position >= floor:
            whole = self._find_whole(position, following)
            if whole is None:
                if following is not None:
                    keep_cut_tail(self._files, self._segments, position, self._cut_tails)
                return None
            following = whole
        if following is None:
            if position >= floor:
                return None
            following = floor
        for bad in self._resync.ranges(position, following):
            self._take_damage(bad)
        return following

    def _find_whole(self, position: int, following: int | None) -> int | None:
        """Return the end of bytes that are damaged, not torn; None if a power cut may be the cause.

        A Java broker may have left bytes of its own there.
        """
        segment = self._segments.find(position)
        if segment is None or self._is_foreign:
            return None
        bytes_max = self._record_bytes_max
        return find_written_end(segment, position, following, record_bytes_max=bytes_max)

    def _look_bytes(self, position: int) -> int | None:
        """Return how many bytes to search for more records; None for all segments.

        After a clean stop the checkpoint states the end of the log. To search the length of one
        record after it is enough; the rest of a segment would take longer than the whole start.
        """
        is_exact = self._clean and position == self._claimed_end
        return self._record_bytes_max if is_exact else None

    def _take_damage(self, bad: BadRange) -> None:
        is_known = self._put_lost(bad)
        self._losses.add(bad, is_known=is_known)
        if bad.begin >= self._queue_from and not is_known:
            self._replay_queues.has_unknown_losses = True

    def _put_lost(self, bad: BadRange) -> bool:
        """Keep the offset of a damaged record; False if its queue is not known."""
        entry = bad.entry
        if entry is None or not is_possible(entry):
            return False
        position, size, topic, queue_id, queue_offset, sys_flag, *_ = entry
        is_in_queue = not sys_flag & NOT_IN_QUEUE and position >= self._deleted_topics.position(
            topic, queue_id
        )
        if is_in_queue and position >= self._queue_from:
            placed = PlacedEntry(queue_offset, position, size, 0)
            # If the body is sound, then topic, queue or offset may be damaged.
            if bad.is_body_sound and not self._replay_queues.awaits(topic, queue_id, placed):
                return False
            self._replay_queues.put_lost(topic, queue_id, placed)
        return True

    def _replay(self, entry: Entry, segment: Segment) -> None:
        position, size, topic, queue_id, queue_offset, _, store_ms, _, _ = entry
        self._replayed += 1
        self._store_ms = store_ms
        effects = self._rules.effects_of(entry, segment.view(), position - segment.start)
        placed = PlacedEntry(queue_offset, position, size, effects.tags_code)
        if not is_possible(entry):
            reason = "topic, queue id or queue offset is impossible"
            self._losses.add_misplaced(placed, topic, queue_id, reason)
            self._replay_queues.has_unknown_losses = True
            return
        if effects.is_in_queue and effects.is_deleted:
            if position >= self._deleted_topics.restart_position(topic, queue_id):
                self._deleted_topics.raise_next(topic, queue_id, queue_offset + 1)
        elif effects.is_in_queue and position >= self._queue_from:
            self._replay_queues.put(topic, queue_id, placed)
        if effects.keys and position >= self._index_from:
            self._replay_index(topic, effects.keys, position, store_ms)

    def _replay_index(
        self, topic: str, keys: tuple[str, ...], position: int, store_ms: int
    ) -> None:
        assert self._index is not None
        try:
            self._index.put(topic, keys, position, store_ms)  # type: ignore[arg-type]
        except StoreError as error:
            logger.error("key index cannot be built position=%s reason=%s", position, error)
            self._index_position = position
            self._index_from = _NEVER

    # -- finishing

    def _finish_log(self, read_from: int, end: int) -> None:
        """Zero the log after ``end``, and make sure that the log before it is on disk."""
        if not len(self._segments):
            return
        self._segments.remove_after_blocking(end)
        last = self._segments.find(end)
        whole = self._progress is not None and self._clean and end == self._claimed_end
        if last is not None and not whole:
            last.erase_from(end - last.start)
        # A process killed between write and sync leaves records that only the page cache holds;
        # readers are about to see them.
        for segment in self._segments.between_from_thread(min(read_from, end), end + 1):
            segment.sync_blocking()
            if segment.end <= end:
                segment.close_descriptor()

    def _finish_queues(self, end: int) -> None:
        first = self._segments.first
        log_first = first.start if first is not None else end
        if self._progress is None:
            for queue in self._queues:
                known_end = queue.end
                queue.cut_at(end)
                if self._cut is not None:
                    continue
                if queue.end < known_end:
                    logger.error(
                        "queue has entries past the end of the log topic=%s queue=%s offset=%s"
                        " count=%s", queue.topic, queue.queue_id, queue.end, known_end - queue.end,
                    )  # fmt: skip
                queue.fill_to(known_end)
        self._queues.fill_to_known_ends()
        for queue in self._queues:
            queue.fill_to(queue.end + self._losses.count_after(queue.last_position))
            next_offset = self._deleted_topics.next_offset(queue.topic, queue.queue_id)
            if queue.end < next_offset:
                # Files of a deleted topic have reappeared; its messages must not.
                queue.remove_files()
                queue.restart_at(next_offset)
            dead_before = self._deleted_topics.position(queue.topic, queue.queue_id)
            for path in queue.raise_first(max(log_first, dead_before)):
                self._files.unlink(path)
        self._deleted_topics.settle(log_first, end)
        if self._deleted_topics.is_changed:
            self._deleted_topics.save_blocking()
        elif not self._deleted_topics.is_copied:
            self._copy_deletions()

    def _copy_deletions(self) -> None:
        try:
            self._deleted_topics.save_blocking()
        except OSError as error:
            # One of the two files is sound and up to date; there may be no room for the other.
            logger.warning("list of deleted topics not copied reason=%s", error.strerror)
            self._deleted_topics.is_changed = False


def _is_blank(segment: Segment, at: int) -> bool:
    """Tell whether the blank at ``at`` ends the segment."""
    return int.from_bytes(segment.view()[at : at + 4], "big") == segment.size - at


def _first_store_ms(segment: Segment) -> int:
    entries, _, _ = scan_records(segment.view(), 0, segment.start, count_max=1, verify_crc=False)
    return entries[0][6] if entries else 0
