"""Waves: messages that compiled code packs into buffers, without a Python object for each.

The packer writes three buffers, each from where the store's share of it ends:

    records   the packed records, one after another, as they will be in the log
    rows      five numbers a message: position, size, tags code, slot of its queue, queue offset
    keys      two numbers a key: index hash of topic, ``#`` and key; position of the message

It calls :meth:`Wave.begin` to learn where in the log the next record goes, packs, and calls
:meth:`Wave.take`. Ordinary appends may come before and after, also between two commits. From
:meth:`Wave.take` on, the messages are like appended ones: ``MessageStore.commit`` writes them with
all others, or takes them back; ``MessageStore.confirm`` makes them visible.

**Invariants**

- A record is packed for the position at which it is written: nothing is appended between
  :meth:`Wave.begin` and :meth:`Wave.take`.
- The packer takes queue offsets from ``next_offsets`` and raises them there. So the row of a
  message has the next offset of its queue, whoever appended the one before.
- Records, rows and keys are in the order of the log. All records of a wave are in one segment.
- The clock is read for a batch only once something is taken, so a wave without messages does not
  leave an outdated store time behind.
- After a failed commit, next offsets, rows and keys are as before the batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final

from rocketpost.store.dispatch.dispatcher import Dispatcher
from rocketpost.store.dispatch.row_span import PAIR, ROW, SIZE, RowSpan
from rocketpost.store.log.commit_log import CommitLog
from rocketpost.store.log.store_clock import StoreClock
from rocketpost.store.queue.slots import QueueSlots

RECORD_BYTES: Final = 4 * 1024 * 1024
"""Room for the records of a batch; a larger message is appended in the ordinary way."""
ROW_COUNT: Final = 16_384
KEY_COUNT: Final = 2 * ROW_COUNT
_NOWHERE: Final = -1


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
        self._spans: list[RowSpan] = []
        self._span: RowSpan | None = None  # the last of them
        # Since the last :meth:`begin` or :meth:`take`:
        self.position = _NOWHERE
        """Position of the next record in the log."""
        self.room_end = 0
        """Records must end at or before this position; the ordinary path begins a new segment."""
        self.store_ms = 0
        """Store time of the records."""

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
        """Have ``on_change`` called when ``next_offsets`` was replaced or a queue lost its slot."""
        self._slots.on_change = on_change

    def begin(self) -> bool:
        """Find place and time of the next record; False if the store takes no waves now.

        It takes none while it refuses new messages, or if each record gets a checksum.
        Takes nothing yet. Call it again after anything else was appended or committed.
        """
        if self._refusals or not self._is_usable:
            self.position = _NOWHERE
            return False
        log, clock = self._log, self._clock
        self.position = log.end
        self.room_end = log.room_end
        self.store_ms = clock.batch_ms or clock.read()
        return True

    def take(self, record_bytes: int, row_count: int, key_count: int) -> None:
        """Append what was packed since :meth:`begin` or the last :meth:`take`."""
        if not row_count:
            assert not record_bytes
            assert not key_count
            return
        log, rows, position = self._log, self.rows, self.position
        first_row, first_key, record_begin = self.row_end, self.key_end, self.record_end
        end = position + record_bytes
        row_end = first_row + row_count
        last = row_end * ROW - ROW
        assert rows[first_row * ROW] == position == log.end
        assert rows[last] + rows[last + SIZE] == end
        self.record_end = record_end = record_begin + record_bytes
        log.append_packed(self._view, record_begin, record_end)
        self.position = end
        self.row_end = row_end
        self.key_end = key_end = first_key + key_count
        span, store_ms = self._span, self.store_ms
        if span is not None and self._pending[-1] is span and span.store_ms == store_ms:
            span.row_end = row_end
            span.key_end = key_end
            return
        self._clock.batch_ms = self._clock.newest_ms = store_ms
        self._span = RowSpan(rows, first_row, row_end, self.keys, first_key, key_end, store_ms)
        self._spans.append(self._span)
        self._dispatcher.add_rows(self._span)

    def end_batch(self) -> None:
        """Empty the buffers: what was taken is written, or was taken back."""
        self.position = _NOWHERE
        # Those that wait to be confirmed keep a copy, and the packer may write the buffers again.
        rows, keys = self.rows[: self.row_end * ROW], self.keys[: self.key_end * PAIR]
        for span in self._spans:
            span.rows, span.keys = rows, keys
        self._spans.clear()
        self._span = None
        self.record_end = self.row_end = self.key_end = 0

    def release(self) -> None:
        """Free the buffers: the store is closed."""
        for name in ("records", "rows", "keys", "_view"):
            self.__dict__.pop(name, None)
