"""The scrub: a slow thread that reads the commit log and reports damage in it.

Bits also flip in messages that no client reads. In each round, the scrub reads every record of the
sealed segments from the files, and those records of the newest segment that are durable and no
longer trusted as new. A record is checked and compared with its queue entry: a damaged record is
added to the register of damage, a damaged entry is mended. A round begins one interval after the
start of the previous one. Its progress is kept in ``scrub.json``, so that a restart continues
there.

Files are read by ``pread`` and not through a map: an unreadable sector is then an error that can be
reported, where a map would end the process. The reads add no pages to the page cache, and the
thread works for at most a twentieth of the time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from rocketpost.errors import StoreError
from rocketpost.kernel.record_scan import MAGIC_BLANK, parse_record
from rocketpost.model.clock import Clock
from rocketpost.store.config import StoreConfig
from rocketpost.store.files import FileSystem
from rocketpost.store.integrity.damage import BAD_BODY, NO_CHECKSUM, Damage, DamageRegister
from rocketpost.store.integrity.record_evidence import (
    RECORD_BYTES_MIN,
    FoundRecord,
    failed_check,
    lacks_checksum,
    why_unsound,
)
from rocketpost.store.integrity.scrub_entries import EntryCheck
from rocketpost.store.log.segment import Segment
from rocketpost.store.log.segmented_log import SegmentedLog
from rocketpost.store.tables import TableFile

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 64 * 1024
"""Bytes read and checked at once: about half a millisecond of the interpreter's time."""
WORK_SHARE: Final = 20
PAGE_BYTES: Final = 4096
_IDLE_SECONDS_MAX: Final = 60.0
_MAGIC: Final = b"\xda\xa3\x20"
_MAGIC_AT: Final = 4
_BLANK_MAGIC: Final = MAGIC_BLANK.to_bytes(4, "big")
_HOUR_MS: Final = 3_600_000


class ScrubState(msgspec.Struct):
    """Progress of the scrub: the contents of ``scrub.json``."""

    position: int = 0
    """Position before which everything was read in this round."""
    begun_ms: int = 0
    """Start time of this round; 0 if none began."""
    is_done: bool = True
    """Whether the round is over."""
    rounds: int = 0
    """Number of finished rounds."""


class Scrub:
    """Owns the scrub thread."""

    def __init__(
        self,
        config: StoreConfig,
        files: FileSystem,
        path: str,
        *,
        segments: SegmentedLog,
        entries: EntryCheck,
        damage: DamageRegister,
        durable: Callable[[], int],
        clock: Clock,
    ) -> None:
        self.config = config
        """Settings with the rate and interval; may be replaced while the thread runs."""
        self._files = files
        self._segments = segments
        self._entries = entries
        self._damage = damage
        self._durable = durable
        self._clock = clock
        self._old_end = 0  # records before this position are too old to be trusted
        self._marked_end = 0
        self._marked_ms = 0
        self._table = TableFile(path, files=files, decode=_decode, empty=ScrubState)
        self._state = ScrubState()
        self._is_loaded = False
        self._stopping = False
        self._worker = files.make_worker("store-scrub", self._step)
        self.found_count = 0
        """Number of damaged ranges found since the start."""

    def start(self, end: int) -> None:
        """Start the thread; after a minute it checks whether a round is due.

        Args:
            end: The end of the recovered log.
        """
        self._old_end = self._marked_end = end
        self._marked_ms = self._clock.now_ms()
        self._worker.start(_IDLE_SECONDS_MAX)

    def lower_from_thread(self, position: int) -> None:
        """Reset progress to ``position``, where the log was cut, if it is after that."""
        self._old_end = min(self._old_end, position)
        self._marked_end = min(self._marked_end, position)
        self._state.position = min(self._state.position, position)

    def configure(self, config: StoreConfig) -> None:
        """Set another rate and interval. Thread-safe."""
        self.config = config
        self._worker.wake()

    def close_blocking(self) -> None:
        """Stop the thread."""
        self._stopping = True
        self._worker.close_blocking()

    def describe_from_thread(self) -> str:
        """Return the progress of the scrub as text for people."""
        state = self._state
        if not self.config.scrub_enabled:
            return "off"
        sealed = self._sealed()
        if state.is_done:
            return f"idle, {state.rounds} rounds done"
        done = sum(1 for segment in sealed if segment.end <= state.position)
        return f"round {state.rounds + 1}, {done} of {len(sealed)} segments read"

    @property
    def mended_count(self) -> int:
        """Number of queue entries mended since the start."""
        return self._entries.mended_count

    def run_round_blocking(self) -> None:
        """Read the segments that this round has not read yet; returns early if stopped."""
        if self._state.is_done:
            self._state = ScrubState(0, self._clock.now_ms(), False, self._state.rounds)
        while not self._stopping and self.config.scrub_enabled:
            left = [each for each in self._sealed() if each.end > self._state.position]
            if not left:
                if not self._read_newest():
                    continue
                self._state.is_done = True
                self._state.rounds += 1
                self._save()
                return
            self._entries.forget_entries()
            if self._read_segment(left[0]):
                self._state.position = left[0].end
                self._save()

    def load_blocking(self) -> None:
        """Load the progress of the scrub from the store's last run."""
        try:
            self._state = self._table.load_blocking()
        except (StoreError, OSError) as error:
            logger.warning("state of the scrub cannot be read, a new round begins reason=%s", error)

    def _step(self) -> float:
        if not self._is_loaded:
            self._is_loaded = True
            self.load_blocking()
        self._move_mark()
        try:
            if self.config.scrub_enabled and self._is_due():
                self.run_round_blocking()
        except OSError as error:
            logger.error("scrub of the commit log failed, it will be retried reason=%s", error)
        return _IDLE_SECONDS_MAX

    def _is_due(self) -> bool:
        state = self._state
        if not state.is_done:
            return True
        passed_ms = self._clock.now_ms() - state.begun_ms
        return not 0 <= passed_ms < self.config.scrub_interval_hours * _HOUR_MS

    def _sealed(self) -> list[Segment]:
        """Return the segments that are no longer written.

        The last visible segment does not count, even if the next one exists already: a write that
        found no room can leave a next segment behind.
        """
        end = self._entries.visible_end()
        return [segment for segment in self._segments.all_from_thread() if segment.end <= end]

    def _move_mark(self) -> int:
        """Return the position before which records are durable and no longer trusted as new."""
        now_ms = self._clock.now_ms()
        if not 0 <= now_ms - self._marked_ms < self.config.read_check_interval_ms:
            self._old_end = self._marked_end
            self._marked_ms = now_ms
            self._marked_end = min(self._entries.visible_end(), self._durable())
        return self._old_end

    def _read_newest(self) -> bool:
        """Check the part of the newest segment that is old enough; False if it was left early."""
        end = self._move_mark()
        segment = self._segments.find(end)
        if segment is None or segment.end <= self._entries.visible_end():
            return True  # sealed by now: the next round reads all of it
        return self._read_segment(segment, end - segment.start)

    def _read_segment(self, segment: Segment, size: int | None = None) -> bool:
        """Check the records of a segment, or of its first bytes; False if it was left early."""
        try:
            fd = self._files.open(segment.path)
        except FileNotFoundError:
            return True  # it has expired
        try:
            return _SegmentScrub(self, segment, fd, segment.size if size is None else size).run()
        finally:
            self._files.close(fd)

    def pause(self, size: int, spent: float) -> bool:
        """Wait to keep the rate, after ``size`` bytes in ``spent`` seconds; False to stop."""
        wait = max(size / self.config.scrub_bytes_per_second, spent * (WORK_SHARE - 1))
        deadline = time.monotonic() + wait
        while not self._stopping and (left := deadline - time.monotonic()) > 0:
            self._worker.pause(left)
        return not self._stopping and self.config.scrub_enabled

    def read(self, fd: int, size: int, at: int) -> tuple[bytes, str]:
        """Return bytes of a file, with zeros for unreadable ones, and the reason for those."""
        try:
            data = self._files.read_aside(fd, size, at)
            if len(data) == size:
                return data, ""
            return data + bytes(size - len(data)), "it cannot be read: the file was cut short"
        except OSError as error:
            reason = f"it cannot be read: {error.strerror}"
        pages = []
        for page in range(at, at + size, PAGE_BYTES):
            wanted = min(PAGE_BYTES, at + size - page)
            try:
                pages.append(self._files.read_aside(fd, wanted, page).ljust(wanted, b"\0"))
            except OSError:
                pages.append(bytes(wanted))
        return b"".join(pages), reason

    def report(self, segment: Segment, damage: Damage) -> None:
        """Register damage, unless its segment has expired since."""
        if self._segments.find(damage.begin) is segment and self._damage.report_from_thread(damage):
            self.found_count += 1

    def check_entry(self, found: FoundRecord, record: bytes) -> str | None:
        """Compare a sound record with its queue entry; returns a mismatch of place, or None."""
        return self._entries.check_from_thread(found, record)

    def place_of(self, position: int, head: bytes) -> tuple[str | None, int, int]:
        """Return the place of an unreadable record, from the entry that points to it."""
        return self._entries.place_of_from_thread(position, head)

    def now_ms(self) -> int:
        """Return the time."""
        return self._clock.now_ms()

    def _save(self) -> None:
        try:
            self._table.save_blocking(msgspec.json.encode(self._state))
        except OSError as error:
            logger.warning("state of the scrub not saved reason=%s", error.strerror)


class _SegmentScrub:
    """Walks the records in the first bytes of a segment. Used once, by the scrub thread."""

    def __init__(self, scrub: Scrub, segment: Segment, fd: int, size: int) -> None:
        self._scrub = scrub
        self._segment = segment
        self._fd = fd
        self._size = size
        self._data = b""
        self._start = 0  # of ``_data`` in the file
        self._why_unreadable = ""

    def run(self) -> bool:
        """Check all records; False if the scrub is to stop."""
        at = 0
        while at < self._size:
            began, before = time.thread_time(), at
            at = self._check_some(at)
            if not self._scrub.pause(at - before, time.thread_time() - began):
                return False
        return True

    def _check_some(self, at: int) -> int:
        """Check about a chunk of records from ``at`` on; returns where to continue."""
        stop = min(at + CHUNK_BYTES, self._size)
        while at < stop:
            self._fill(at, RECORD_BYTES_MIN)
            local = at - self._start
            if len(self._data) - local < 8:
                return self._segment.size
            size = int.from_bytes(self._data[local : local + 4], "big", signed=True)
            if self._data[local + _MAGIC_AT : local + 8] == _BLANK_MAGIC:
                return self._segment.size
            if RECORD_BYTES_MIN <= size <= self._segment.size - at:
                self._fill(at, size)
            local = at - self._start
            position = self._segment.start + at
            entry = parse_record(self._data, local, position, True)
            if entry is None:
                at = self._pass_damage(at)
                continue
            found = FoundRecord(*entry[:8], True)
            record = self._data[local : local + found.size]
            reason = self._scrub.check_entry(found, record)
            if self._scrub.config.require_checksum and lacks_checksum(record):
                reason = NO_CHECKSUM
            if reason is not None:
                self._report(at, at + found.size, reason, (None, -1, -1))
            at += found.size
        return at

    def _fill(self, at: int, size: int) -> None:
        """Read at least ``size`` bytes from ``at`` on, unless the file ends before."""
        size = min(size, self._segment.size - at)
        if self._start <= at and at + size <= self._start + len(self._data):
            return
        wanted = min(max(size, CHUNK_BYTES), self._segment.size - at)
        self._data, self._why_unreadable = self._scrub.read(self._fd, wanted, at)
        self._start = at

    def _pass_damage(self, at: int) -> int:
        """Report the damage at ``at``; returns where the next record begins."""
        position = self._segment.start + at
        local = at - self._start
        entry = parse_record(self._data, local, position, False)
        if entry is not None:
            reason = failed_check(self._data[local : local + entry[1]])
            place: tuple[str | None, int, int] = (entry[2], entry[3], entry[4])
            if reason != BAD_BODY:  # its stated place may be damaged too
                head = self._data[local : local + RECORD_BYTES_MIN]
                place = self._scrub.place_of(position, head)
            self._report(at, at + entry[1], reason, place)
            return at + entry[1]
        head = self._data[local : local + RECORD_BYTES_MIN]
        end = min(self._next_head(at), self._size)
        topic, queue_id, queue_offset = self._scrub.place_of(position, head)
        reason = self._why_unreadable or "no sound record"
        if topic is not None and not self._why_unreadable:
            reason = why_unsound(head, position, end - at, (topic, queue_id, queue_offset))
        self._report(at, end, reason, (topic, queue_id, queue_offset))
        return end

    def _next_head(self, at: int) -> int:
        """Return where the next sound record or the blank begins; the end if there is none."""
        local = at - self._start
        stated = at + int.from_bytes(self._data[local : local + 4], "big", signed=True)
        if at < stated < self._segment.size and self._begins_record(stated):
            return stated
        search = at + 1
        while search < self._segment.size:
            self._fill(search, RECORD_BYTES_MIN)
            end = self._start + len(self._data)
            marks = [
                self._start + found - _MAGIC_AT
                for mark in (_MAGIC, _BLANK_MAGIC)
                if (found := self._data.find(mark, search - self._start + _MAGIC_AT)) >= 0
            ]
            if marks:
                if self._begins_record(min(marks)):
                    return min(marks)
                search = min(marks) + 1
            elif end >= self._segment.size:
                break
            else:
                search = max(search + 1, end - _MAGIC_AT - len(_BLANK_MAGIC))
        return self._segment.size

    def _begins_record(self, at: int) -> bool:
        """Tell whether a sound record or the blank of the segment begins at ``at``."""
        self._fill(at, RECORD_BYTES_MIN)
        local = at - self._start
        size = int.from_bytes(self._data[local : local + 4], "big", signed=True)
        if self._data[local + _MAGIC_AT : local + 8] == _BLANK_MAGIC:
            return size == self._segment.size - at
        if not RECORD_BYTES_MIN <= size <= self._segment.size - at:
            return False
        self._fill(at, size)
        local = at - self._start
        return parse_record(self._data, local, self._segment.start + at, True) is not None

    def _report(self, at: int, end: int, reason: str, place: tuple[str | None, int, int]) -> None:
        start = self._segment.start
        damage = Damage(start + at, start + end, reason, *place, self._scrub.now_ms(), "scrub")
        self._scrub.report(self._segment, damage)


def _decode(data: bytes) -> ScrubState:
    return msgspec.json.decode(data, type=ScrubState)
