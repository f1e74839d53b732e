"""The files of the timer as a unit: wheel, log and checkpoint, always in the state of some save.

Each waiting message is stored twice: as a message of the timer topic, which is authoritative, and
as a unit here, with its due time. :meth:`TimerStore.prepare_save` and
:meth:`~TimerStore.save_blocking` make a state durable as a whole. After a crash the files are in
the state of the last save, and later messages are read from the timer topic again.

The files are derived from the timer topic. If one of them is missing, or does not match the
checksums of the last save, all are created again and the topic is read from its beginning.

Order of a save: the commit log (a unit must not name a message that a power cut removes, and a slot
must not be empty before its delivered messages are on disk), the timer log, the journal, the
checkpoint, the wheel. Each is durable before the next begins.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from rocketpost.errors import StoreError
from rocketpost.kernel.hashing import string_hash
from rocketpost.store.checkpoint_page import FOREIGN_BYTES
from rocketpost.store.descriptors import is_shortage
from rocketpost.store.files import (
    FileSystem,
    make_directory,
    read_whole_blocking,
    write_whole_blocking,
)
from rocketpost.store.layout import Layout
from rocketpost.store.timer.checkpoint import (
    CLEAN,
    REBUILD,
    ExactFields,
    JavaFields,
    Journal,
    TimerCheckpoint,
    decode_checkpoint,
    decode_journal,
    decode_own_checkpoint,
    encode_checkpoint,
    encode_journal,
)
from rocketpost.store.timer.log import RECALL, ROLL, UNIT_BYTES, TimerLog, Unit
from rocketpost.store.timer.rebuild import live_units
from rocketpost.store.timer.values import Cursor, Item, Save
from rocketpost.store.timer.wheel import EMPTY, NOWHERE, SLOT_COUNT, Slot, TimerWheel

logger = logging.getLogger(__name__)

_DELAY_MAX: Final = 2**31 - 1
_WRITE_AT_ONCE: Final = 50_000
_CLOCK_ERROR_MS_MAX: Final = 400 * 86_400_000
"""Largest distance from now at which the time in RocketMQ's checkpoint is trusted."""
_BLANK: Final = bytes(4096)
_BAD_WHEEL: Final = "timerwheel is missing or damaged"


class TimerStore:
    """Messages that wait for their due time. For the loop thread, except ``*_blocking``."""

    def __init__(
        self,
        layout: Layout,
        files: FileSystem,
        *,
        precision_ms: int,
        log_file_bytes: int,
        slot_count: int = SLOT_COUNT,
    ) -> None:
        self._layout = layout
        self._files = files
        self.precision_ms = precision_ms
        self.wheel = TimerWheel(
            files, layout.timer_wheel, precision_ms=precision_ms, slot_count=slot_count
        )
        self.log = TimerLog(files, layout.timer_log, file_bytes=log_file_bytes)
        self._number = 0
        self._counter = 0
        self._failure: str | None = None
        self.read_ms = 0
        """Start of the slot being read; no message waits in an earlier one."""
        self.cursor = Cursor()
        self.queue_offset = 0
        """Offset of the next message to take from the timer topic."""
        self.waiting: Counter[str] = Counter()
        """Number of waiting messages, by topic."""
        self._topics: Mapping[int, str] = {}
        self.is_suspect = False
        """Whether messages may have been delivered without a trace in these files."""
        self.is_rebuilt = False
        """Whether the wheel was rebuilt from the log, including units that had left it."""
        self.rebuilt_because: str | None = None
        """Reason why the timer topic is read from its beginning, if it is and has messages."""
        self.done_before: tuple[int, int] = (0, 0)
        """Offset of the timer topic and time: messages before both count as delivered, if the topic
        is read again and there is no index to tell."""
        self.left_before: tuple[int, int] = (0, 0)
        """Offset of the timer topic and time: messages before both have left the wheel, except
        those that wait for a missing topic. At first the wheel is that of the former master."""
        self.saved = JavaFields()
        """Progress as of the last save."""
        self._prepared = JavaFields()
        self.known: frozenset[int] = frozenset()
        """Positions of messages from :attr:`queue_offset` on that have a unit already."""

    @classmethod
    def open_blocking(
        cls,
        layout: Layout,
        files: FileSystem,
        *,
        precision_ms: int,
        log_file_bytes: int,
        commit_log_end: int,
        now_ms: int,
        position_of: Callable[[int], int],
        oldest_ms: Callable[[], int | None] = lambda: None,
        topics: Iterable[str] = (),
        slot_count: int = SLOT_COUNT,
    ) -> TimerStore:
        """Open the files, or create them.

        Args:
            layout: Paths of the files.
            files: The file system.
            precision_ms: Length of a slot.
            log_file_bytes: Size of a file of the log.
            commit_log_end: End of the commit log after its own recovery.
            now_ms: The time.
            position_of: Returns the position of the message at an offset of the timer topic.
            oldest_ms: Returns the store time of its oldest message; None if it has none.
            topics: All topics; a unit holds only the hash of its topic.
            slot_count: Number of slots of the wheel; RocketMQ's number, except in tests.

        Raises:
            StoreError: The files cannot be read with these settings.
        """
        self = cls(
            layout,
            files,
            precision_ms=precision_ms,
            log_file_bytes=log_file_bytes,
            slot_count=slot_count,
        )
        self._topics = {string_hash(topic): topic for topic in topics}
        try:
            self._open(commit_log_end, now_ms, position_of, oldest_ms)
        except OSError as error:
            self.close()
            raise StoreError(f"the timer's files cannot be opened: {error}") from error
        except BaseException:
            self.close()
            raise
        return self

    # -- waiting messages

    def slot_of(self, due_ms: int) -> int:
        """Return the slot of a time: the last one that begins before it."""
        return (due_ms - 1) // self.precision_ms * self.precision_ms

    @property
    def slot_ms_max(self) -> int:
        """Start of the last slot that the wheel can hold beside the one being read."""
        return self.read_ms + (self.wheel.slot_count - 1) * self.precision_ms

    def add(self, items: Sequence[Item], *, now_ms: int, anew: int | None = None) -> list[int]:
        """Add waiting messages; returns the position of each unit.

        Args:
            items: The messages.
            now_ms: The time.
            anew: A slot to empty first, even if there are no items.

        Raises:
            OSError: The log could not be written; nothing was changed.
        """
        written_ms = now_ms // self.precision_ms * self.precision_ms
        slots: dict[int, Slot] = {}
        if anew is not None:
            slots[anew] = EMPTY
        units: list[Unit] = []
        positions: list[int] = []
        at = self.log.end
        for item in items:
            at = self.log.place(at)
            slot = slots.get(item.slot_ms) or self.wheel.get(item.slot_ms)
            delay_ms = item.slot_ms - written_ms
            if not -_DELAY_MAX <= delay_ms <= _DELAY_MAX:  # the slot is too long ago
                delay_ms = 0
            units.append(
                Unit(
                    slot.last,
                    item.magic,
                    item.slot_ms - delay_ms,
                    delay_ms,
                    item.position,
                    item.size,
                    item.topic_hash,
                    item.due_ms,
                )
            )
            first = slot.first if slot.first != NOWHERE else at
            count = slot.waiting + (-1 if item.magic & RECALL else 1)
            slots[item.slot_ms] = Slot(first, at, count)
            positions.append(at)
            at += UNIT_BYTES
        self.log.append(units)
        for slot_ms, slot in slots.items():
            if slot.last == NOWHERE:
                self.wheel.clear(slot_ms)
            else:
                self.wheel.put(slot_ms, slot)
        return positions

    def units_from(self, last: int) -> Iterator[tuple[int, Unit]]:
        """Yield the chain of units that ends at ``last``, newest first."""
        position = last
        while position != NOWHERE:
            unit = self.log.unit(position)
            if unit is None or unit.previous >= position:
                logger.error("chain of timers broken: position=%s", position)
                return
            yield position, unit
            position = unit.previous

    # -- saving

    @property
    def failure(self) -> str | None:
        """Reason why no more can be saved; None if saves work."""
        return self._failure

    def prepare_save(self, *, commit_log_end: int, now_ms: int, flags: int = 0) -> Save:
        """Return the current state, to be saved."""
        self._counter += 1
        java = JavaFields(
            self.read_ms, self.log.end, self.queue_offset, self.queue_offset, 0, now_ms,
            self._counter,
        )  # fmt: skip
        self._prepared = java
        return Save(
            java,
            ExactFields(
                self._number + 1, self.precision_ms, *self.cursor,
                sum(self.waiting.values()), commit_log_end, flags,
            ),
            Journal(
                self.wheel.take_changes(), dict(self.waiting), self.wheel.checksum, self.log.sums
            ),
            self.log.take_unsynced(),
        )  # fmt: skip

    def save_blocking(self, save: Save) -> None:
        """Make a state durable, once the commit log it refers to is. One thread at a time.

        Raises:
            StoreError: A sync failed. It is unknown which bytes reached the disk, so no more is
                saved; the next start begins with the save before.
            OSError: There was no room, or no file descriptor; the next save tries again.
        """
        if self._failure is not None:
            raise StoreError(self._failure)
        number = save.exact.number
        try:
            self.log.sync_blocking(save.unsynced)
            journal = encode_journal(number, save.journal)
            write_whole_blocking(self._files, self._layout.timer_journal(number % 2), journal)
            checkpoint = encode_checkpoint(save.java, save.exact)
            write_whole_blocking(self._files, self._layout.timer_checkpoint, checkpoint)
            self._number = number
            self.wheel.write_blocking(save.journal.slots)
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            if is_full or is_shortage(error):  # no sync failed: nothing is in doubt
                raise
            self._failure = f"the timed messages that wait could not be saved: {error}"
            raise StoreError(self._failure) from error

    def mark_saved(self) -> None:
        """Note, on the loop thread, that the last save is done."""
        self.saved = self._prepared
        self.wheel.mark_saved()
        self.log.mark_saved()

    def close(self) -> None:
        """Close the files."""
        self.wheel.close()
        self.log.close()

    # -- opening

    def _open(
        self,
        commit_log_end: int,
        now_ms: int,
        position_of: Callable[[int], int],
        oldest_ms: Callable[[], int | None],
    ) -> None:
        make_directory(self._files, self._layout.config)
        had_wheel = self._files.stat(self._layout.timer_wheel) is not None
        has_wheel = self._open_wheel()
        self.log.load_blocking()
        data = read_whole_blocking(self._files, self._layout.timer_checkpoint)
        found, own = decode_checkpoint(data), decode_own_checkpoint(data)
        self._counter = found.java.counter
        problem: str | None = "config/timercheck is missing or damaged"
        if own is not None:
            self._take_over(own)
            problem = self._problem(own, has_wheel=has_wheel, is_last=found.exact is not None)
        if own is not None and problem is None:
            exact = own.exact
            assert exact is not None
            # More was stored since, or by another broker: some deliveries may be unknown.
            self.is_suspect = (
                found.exact is None
                or not exact.flags & CLEAN
                or exact.commit_log_end != commit_log_end
            )
            if exact.precision_ms == self.precision_ms and exact.commit_log_end <= commit_log_end:
                self.log.truncate_blocking(own.java.log_end)
                self.log.measure_blocking(only_new=True)
            else:
                self._rebuild(own, commit_log_end, now_ms, position_of)
        elif own is not None and own.exact is not None and own.exact.flags & REBUILD:
            self._rebuild_or_begin(own, commit_log_end, now_ms, position_of, oldest_ms)
        elif found.exact is None and self._is_foreign(data, found.java, problem, now_ms):
            if own is not None:  # either may be right: all from the earlier one on is looked up
                found = TimerCheckpoint(own.java.earlier(found.java), None)
            self._take_over(found)
            self._rebuild_or_begin(found, commit_log_end, now_ms, position_of, oldest_ms)
        else:
            is_first = not had_wheel and not data.strip(b"\0") and not self.log.end
            self._begin(now_ms, oldest_ms(), because="there are no files" if is_first else problem)
        self._save_opened(commit_log_end, now_ms)

    def _take_over(self, found: TimerCheckpoint) -> None:
        java, exact = found
        self.read_ms, self.queue_offset = java.read_ms, java.queue_offset
        self.cursor = Cursor()
        if exact is not None:
            self._number = exact.number
            self.cursor = Cursor(exact.cursor_due_ms, exact.cursor_position)

    def _problem(self, own: TimerCheckpoint, *, has_wheel: bool, is_last: bool) -> str | None:
        """Return how the files differ from our last save; None if they do not.

        ``is_last`` is whether no other broker wrote the checkpoint since. Without checksums, only
        that shows a change.
        """
        java, exact = own
        assert exact is not None
        if exact.flags & REBUILD:
            return "timerwheel was being rebuilt"
        path = self._layout.timer_journal(exact.number % 2)
        journal = decode_journal(read_whole_blocking(self._files, path), exact.number)
        if journal is None:
            return f"{path} is missing, damaged, or not from the save that config/timercheck names"
        if java.log_end > self.log.end or not self.log.matches_blocking(journal.log_sums):
            return "timerlog is damaged"
        if not has_wheel or not (journal.has_sums or is_last):
            return _BAD_WHEEL
        self.wheel.write_blocking(journal.slots)
        if self.wheel.measure_blocking() != journal.wheel_sum and journal.has_sums:
            return _BAD_WHEEL
        self.waiting = Counter(journal.counts)
        return None

    def _is_foreign(self, data: bytes, java: JavaFields, problem: str | None, now_ms: int) -> bool:
        """Tell whether a Java broker wrote the checkpoint and its log can be used.

        It changes the wheel and appends to the log, but does not change our part.
        """
        is_untouched = problem == _BAD_WHEEL or not data[FOREIGN_BYTES:].strip(b"\0")
        return (
            is_untouched
            and abs(java.read_ms - now_ms) < _CLOCK_ERROR_MS_MAX
            and 0 <= java.log_end <= self.log.end
            and java.queue_offset >= 0
            and self.log.end > 0
        )

    def _open_wheel(self) -> bool:
        try:
            return self.wheel.open_blocking()
        except StoreError as error:
            logger.warning("the timer's wheel is rebuilt: reason=%s", error)
            return False

    def _begin(self, now_ms: int, oldest_ms: int | None, *, because: str | None) -> None:
        """Begin with an empty wheel; the timer topic is read from its beginning."""
        if oldest_ms is not None:
            self.rebuilt_because = because
            logger.warning("the timer topic is read from its beginning: reason=%s", because)
        self.done_before = (self.queue_offset, min(self.read_ms, now_ms))
        self.log.set_aside_blocking()
        # Overdue messages are delivered in the order of their due times, if the wheel holds them.
        back_ms = self.wheel.slot_count // 2 * self.precision_ms
        begin_ms = now_ms if oldest_ms is None else max(min(oldest_ms, now_ms), now_ms - back_ms)
        self.read_ms, self.cursor, self.queue_offset = self.slot_of(begin_ms), Cursor(), 0
        self.waiting = Counter()
        self.is_suspect = True  # there may have been files with messages
        self._create_files()

    def _create_files(self) -> None:
        self.wheel.create_blocking()
        # Their room is allocated now, so that a broker can start on a full disk.
        for parity in (0, 1):
            write_whole_blocking(self._files, self._layout.timer_journal(parity), _BLANK)
        if self._files.stat(self._layout.timer_checkpoint) is None:
            write_whole_blocking(self._files, self._layout.timer_checkpoint, _BLANK)
        self._files.fsync_dir(self._layout.root)
        self._files.fsync_dir(self._layout.config)

    def _save_opened(self, commit_log_end: int, now_ms: int) -> None:
        """Save that the files are open: later events may be missing in them."""
        self.save_blocking(self.prepare_save(commit_log_end=commit_log_end, now_ms=now_ms))
        self.mark_saved()

    def _rebuild_or_begin(
        self,
        found: TimerCheckpoint,
        commit_log_end: int,
        now_ms: int,
        position_of: Callable[[int], int],
        oldest_ms: Callable[[], int | None],
    ) -> None:
        """Chain the log again, or begin empty if it ends before the checkpoint's end."""
        _, end = live_units(self.log, found, commit_log_end)
        if end < found.java.log_end:
            self._begin(now_ms, oldest_ms(), because="timerlog is damaged")
        else:
            self._rebuild(found, commit_log_end, now_ms, position_of)

    def _rebuild(
        self,
        found: TimerCheckpoint,
        commit_log_end: int,
        now_ms: int,
        position_of: Callable[[int], int],
    ) -> None:
        """Chain the units of the log again: after a Java broker, a changed setting, or damage."""
        self.is_suspect = self.is_rebuilt = True
        newest, end = live_units(self.log, found, commit_log_end)
        if found.exact is None:
            # Its offset may be older than its log: a message with a unit must not get a second one.
            least = position_of(self.queue_offset)
            self.known = frozenset(position for position in newest if position >= least)
        self.log.truncate_blocking(end)
        self.log.measure_blocking()
        self.waiting = Counter()
        mark = ExactFields(
            self._number, self.precision_ms, *self.cursor, 0, commit_log_end, REBUILD
        )
        java = found.java._replace(log_end=end, queue_offset=self.queue_offset)
        self._create_files()
        checkpoint = encode_checkpoint(java, mark)
        write_whole_blocking(self._files, self._layout.timer_checkpoint, checkpoint)
        self.read_ms = self.read_ms // self.precision_ms * self.precision_ms
        self.cursor = Cursor()
        for at in sorted(newest.values()):
            unit = self.log.unit(at)
            if unit is not None:
                self._chain_again(unit, now_ms)
        logger.info("timers chained again: count=%s", len(newest))

    def _chain_again(self, unit: Unit, now_ms: int) -> None:
        slot_ms = unit.slot_ms // self.precision_ms * self.precision_ms
        due_ms, magic = unit.due_ms, unit.magic
        if due_ms and not magic & ROLL:  # slots may have had another length
            slot_ms = self.slot_of(due_ms)
        if slot_ms > self.slot_ms_max:
            slot_ms = due_ms = self.slot_ms_max
            magic |= ROLL
        slot_ms = max(slot_ms, self.read_ms)
        item = Item(slot_ms, due_ms, magic, unit.position, unit.size, unit.topic_hash)
        self.add([item], now_ms=now_ms)
        if not unit.magic & RECALL:
            self.waiting[self._topics.get(unit.topic_hash, "")] += 1
        if self.wheel.changed_count >= _WRITE_AT_ONCE:
            self.wheel.write_blocking(self.wheel.take_changes())
            self.wheel.mark_saved()
