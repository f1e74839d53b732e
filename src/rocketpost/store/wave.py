"""Waves: messages that compiled code packs into buffers, without a Python object for each.

The packer writes three buffers, each from where the store's share of it ends:

    records   the packed records, one after another, as they will be in the log
    rows      five numbers a message: position, size, tags code, slot of its queue, queue offset
    keys      two numbers a key: index hash of topic, ``#`` and key; position of the message

It calls :meth:`Wave.begin` to learn where in the log the next record goes, packs, and calls
:meth:`Wave.take`. As long as nothing else is appended or committed, it continues from its current
place. Then both calls only compare and raise the end of the log, and the packed messages are
entered together (:meth:`Wave.settle`). Ordinary appends may come before and after, also between two
commits. From :meth:`Wave.take` on, the messages are like appended ones: ``MessageStore.commit``
writes them with all others, or takes them back; ``MessageStore.confirm`` makes them visible.

**Invariants**

- A record is packed for the position at which it is written: nothing is appended between
  :meth:`Wave.begin` and :meth:`Wave.take`.
- The packer takes queue offsets from ``next_offsets`` and raises them there. So the row of a
  message has the next offset of its queue, however the message before it was appended.
- Records, rows and keys are in the order of the log. All records of a wave are in one segment.
- The clock is read for a batch only once something is taken, so a wave without messages does not
  leave an outdated store time behind.
- After a failed commit, next offsets, rows and keys are as before the batch.
- What a commit has written stays in ``records`` until the next :meth:`Wave.begin` of a batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final, Protocol

from rocketpost.store.dispatch.dispatcher import Dispatcher
from rocketpost.store.dispatch.row_span import PAIR, ROW, RowSpan
from rocketpost.store.log.commit_log import CommitLog
from rocketpost.store.log.store_clock import StoreClock
from rocketpost.store.queue.slots import QueueSlots

RECORD_BYTES: Final = 4 * 1024 * 1024
"""Room for the records of a batch; a larger message is appended in the ordinary way."""
ROW_COUNT: Final = 16_384
KEY_COUNT: Final = 2 * ROW_COUNT
_NOWHERE: Final = -1


class Packer(Protocol):
    """Packs records; see ``kernel.send_records``."""

    @property
    def position(self) -> int:
        """Position of the next record in the log."""

    @property
    def record_at(self) -> int:
        """Index of the next record in the buffer of records."""

    @property
    def row_at(self) -> int:
        """Number of the next row."""

    @property
    def key_at(self) -> int:
        """Number of the next key."""

    def begin(
        self, position: int, room_end: int, store_ms: int, record_at: int, row_at: int, key_at: int
    ) -> None:
        """Set where the next record, row and key go, and the store time of records."""


class Wave:
    """The buffers of one store, and what the store has taken from them. Owned by the loop thread.

    Args:
        refusals: The reasons why the store refuses new messages; empty if it accepts them.
        is_usable: Whether messages may come in waves at all.
    """

    def __init__(
        self,
        *,
        log: CommitLog,
        dispatcher: Dispatcher,
        slots: QueueSlots,
        clock: StoreClock,
        refusals: Mapping[str, str],
        is_usable: bool,
    ) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._pending = dispatcher.pending
        self._slots = slots
        self._clock = clock
        self._refusals = refusals
        self._is_usable = is_usable
        self.record_end = 0
        """Number of bytes of ``records`` that the store has; the packer continues there."""
        self.row_end = 0
        """Number of rows of ``rows`` that the store has."""
        self.key_end = 0
        """Number of keys of ``keys`` that the store has."""
        self._span: RowSpan | None = None  # the last of this batch
        self._is_read = False
        """Whether spans of the batch before may still refer to the buffers."""
        self._packer: Packer | None = None  # continues from its place
        self._begin = _NOWHERE
        self._store_ms = 0
        self._written_begin = 0
        self._written_bytes = 0

    # The buffers are made when they are first used: not every store gets waves.

    @cached_property
    def records(self) -> bytearray:
        """The packed records of this batch. Never resized."""
        return bytearray(RECORD_BYTES)

    @cached_property
    def rows(self) -> array[int]:
        """The rows of this batch. Never resized."""
        return array("q", bytes(8 * ROW * ROW_COUNT))

    @cached_property
    def keys(self) -> array[int]:
        """The keys of this batch. Never resized."""
        return array("q", bytes(8 * PAIR * KEY_COUNT))

    @cached_property
    def _view(self) -> memoryview:
        return memoryview(self.records)

    @property
    def next_offsets(self) -> array[int]:
        """The next offset of each queue, by ``ConsumeQueue.slot``; the packer raises them.

        The array is replaced when it is full: see :meth:`watch_slots`.
        """
        return self._slots.next_offsets

    def watch_slots(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` when ``next_offsets`` was replaced or a queue lost its slot."""
        self._slots.on_change = on_change

    def begin(self, packer: Packer) -> bool:
        """Let a packer pack its next records; False if the store takes no waves now.

        It takes none while it refuses new messages, or if each record gets a checksum.
        Takes nothing yet. Call it again after anything else was appended or committed.
        """
        if self._refusals or not self._is_usable:
            return False
        log = self._log
        if self._packer is packer and packer.position == log.end:
            return True
        self.settle()
        if self._is_read:
            self._detach_unconfirmed()
        self._written_bytes = 0
        self._begin = log.end
        self._store_ms = store_ms = self._clock.batch_ms or self._clock.read()
        packer.begin(log.end, log.room_end, store_ms, self.record_end, self.row_end, self.key_end)
        return True

    def take(self, packer: Packer) -> None:
        """Append what was packed since :meth:`begin`."""
        if self._packer is not None:
            assert self._packer is packer
            self._log.extend_packed(packer.position)
            return
        log, rows, first_row = self._log, self.rows, self.row_end
        if packer.row_at == first_row:
            assert packer.position == self._begin
            return
        assert rows[first_row * ROW] == self._begin == log.end
        log.append_packed(self._view, self.record_end, packer.record_at)
        store_ms = self._store_ms
        self._clock.batch_ms = self._clock.newest_ms = store_ms
        span = self._span
        if span is None or self._pending[-1] is not span or span.store_ms != store_ms:
            self._span = span = RowSpan(
                rows, first_row, packer.row_at, self.keys, self.key_end, packer.key_at, store_ms
            )
            self._dispatcher.add_rows(span)
        self._packer = packer
        self._enter(packer, span)

    def settle(self) -> None:
        """Enter what the packer has packed in :meth:`take` by :meth:`take`."""
        packer, self._packer = self._packer, None
        if packer is not None:
            assert self._span is not None
            self._enter(packer, self._span)

    def _enter(self, packer: Packer, span: RowSpan) -> None:
        self.record_end = packer.record_at
        self.row_end = span.row_end = packer.row_at
        self.key_end = span.key_end = packer.key_at
        assert span.end == packer.position

    def end_batch(self, *, is_written: bool) -> None:
        """Empty the buffers: what was taken is written, or was taken back."""
        self._written_bytes = 0
        if not self.row_end:
            return
        assert self._span is not None
        begin, size = self.rows[0], self.record_end
        if is_written and begin + size == self._span.end:  # nothing else was appended in between
            self._written_begin, self._written_bytes = begin, size
        self._packer = None
        self._begin = _NOWHERE
        self._span = None
        self._is_read = True
        self.record_end = self.row_end = self.key_end = 0

    def forget_written(self) -> None:
        """Note that the log may have other bytes there now."""
        self._written_bytes = 0

    def view_written(self, position: int, size: int) -> memoryview | None:
        """Return bytes of the log that the last commit has written, as they are in memory.

        They stay as they are until the next :meth:`begin`. So nobody may keep the view beyond the
        present turn of the loop.

        Returns:
            None if the last commit did not write all of them, or not from these buffers.
        """
        at = position - self._written_begin
        if 0 <= at <= self._written_bytes - size:
            return self._view[at : at + size]
        return None

    def _detach_unconfirmed(self) -> None:
        """Give spans that wait to be confirmed a copy: the buffers will be written again.

        Without waiting for the disk there are none, and nothing is copied.
        """
        self._is_read = False
        rows, copies = self.rows, None
        first = rows[0]
        for span in reversed(self._pending):
            if span.position < first:
                break
            # Bytes of another leader may follow: this broker may have led, followed, and led.
            if not isinstance(span, RowSpan) or span.rows is not rows:
                continue
            if copies is None:  # the newest span reaches furthest
                copies = rows[: span.row_end * ROW], self.keys[: span.key_end * PAIR]
            span.rows, span.keys = copies

    def release(self) -> None:
        """Free the buffers: the store is closed."""
        self.forget_written()
        for name in ("records", "rows", "keys", "_view"):
            self.__dict__.pop(name, None)
