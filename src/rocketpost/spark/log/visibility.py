"""Visibility of records to consumers: the records that a consume queue points at.

A log also has records that no queue points at: messages of deleted topics, even if created again
since, and markers of old transactions. The files of a queue may lag behind the log of a running
broker; records after their end count as visible. If all files of a queue are missing, the
visibility of its records is unknown: that is damage.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

import numpy as np

from rocketpost.model.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rocketpost.spark.log.files import OnCorrupt, handle_damage
from rocketpost.spark.log.queue_files import ENTRY, QueueFiles, are_visible, batch_positions
from rocketpost.spark.log.store_state import BATCH_QUEUES, StoreState
from rocketpost.spark.records.fields import Fields, Ints, Limits, Mask
from rocketpost.store.layout import Layout, is_queue

log = logging.getLogger(__name__)

_NEVER: Final = 2**63 - 1
_NOTHING: Final = Limits(0, _NEVER, _NEVER, _NEVER)
_ENTRIES_MAX: Final = 1 << 17
"""Number of entries that are read at once; damaged offsets may be anywhere."""
_AHEAD: Final = 4
"""Factor of read-ahead. Entries that did not exist then are after the end of the queue."""
_AHEAD_MIN: Final = 64
"""The least number of entries to read, which cost the same as one."""
_AHEAD_BYTES_MAX: Final = 32 * 1024 * 1024
"""Entries read ahead are dropped when there are this many."""


class _Ahead(NamedTuple):
    """Entries of a queue, read ahead."""

    first: int
    end: int
    data: bytes

    def of(self, low: int, end: int) -> bytes:
        """Return some of the entries."""
        at, size = (low - self.first) * ENTRY.itemsize, (end - low) * ENTRY.itemsize
        return self.data[at : at + size]


class Visibility:
    """Decides which records of one store are visible. Not thread-safe: belongs to one task.

    Args:
        layout: The paths of the store.
        state: Its state when the task was planned.
        on_corrupt: The reaction to missing files of a queue.
    """

    def __init__(
        self, layout: Layout, state: StoreState, on_corrupt: OnCorrupt = OnCorrupt.FAIL
    ) -> None:
        self._layout = layout
        self._state = state
        self._on_corrupt = on_corrupt
        self._reported: set[tuple[str, int]] = set()
        self._queues: dict[tuple[str, int], QueueFiles] = {}
        self._batches: dict[tuple[str, int], Ints] = {}
        self._ahead: dict[tuple[str, int], _Ahead] = {}
        self._ahead_bytes = 0

    def of(self, fields: Fields) -> Mask:
        """Return which of some records are visible.

        Raises:
            CorruptRecord: The files of a queue are missing, and ``onCorrupt`` is ``fail``.
            Stopped: The same, and ``onCorrupt`` is ``stop``.
        """
        queues = fields.queues()
        limits: list[Limits] = []
        entries: list[bytes] = []
        odd: list[int] = []
        suspected: list[int] = []
        filled = 0
        for number, (topic, queue_id) in enumerate(queues.names):
            low, end = queues.lows[number], queues.highs[number] + 1
            if topic not in self._state.topics or not is_queue(topic, queue_id):
                limits.append(_NOTHING)
            elif topic in self._state.batch_topics or low < 0 or filled + end - low > _ENTRIES_MAX:
                limits.append(_NOTHING)
                odd.append(number)
            else:
                queue = self._queue(topic, queue_id)
                if not queue.has_files or low < queue.first:
                    suspected.append(number)
                limits.append(self._make_limits(topic, queue)._replace(base=filled - low))
                entries.append(self._read_entries(topic, queue_id, low, end))
                filled += end - low
        visible = fields.in_queues(b"".join(entries), limits)
        for number in odd:
            members = np.flatnonzero(queues.numbers == number)
            visible[members] = self._check_one_by_one(*queues.names[number], fields, members)
        if fields.flags() & TRANSACTION_MASK:
            kinds = fields.number("sysFlag") & TRANSACTION_MASK
            visible &= (kinds != TRANSACTION_PREPARED) & (kinds != TRANSACTION_ROLLBACK)
        for number in suspected:
            hidden = np.flatnonzero((queues.numbers == number) & ~visible)
            if len(hidden):
                self._report_missing(*queues.names[number], fields, hidden)
        return visible

    def _report_missing(self, topic: str, queue_id: int, fields: Fields, hidden: Ints) -> None:
        """Report messages that are hidden only because the files of their queue are missing.

        Raises:
            CorruptRecord: All files of the queue are missing, and ``onCorrupt`` is ``fail``.
            Stopped: The same, and ``onCorrupt`` is ``stop``.
        """
        if (topic, queue_id) in self._reported:
            return
        kinds = fields.number("sysFlag")[hidden] & TRANSACTION_MASK
        is_plain = (kinds != TRANSACTION_PREPARED) & (kinds != TRANSACTION_ROLLBACK)
        alive = self._state.dead_before.get(topic, 0)
        positions = fields.long("position")[hidden]
        lost = positions[is_plain & (positions >= alive)]
        if not len(lost):
            return
        directory = self._layout.queue(topic, queue_id)
        if self._queue(topic, queue_id).has_files:
            log.warning(
                "messages before the first queue file are left out: they expired, or the file is"
                " missing; view=log shows them directory=%s position=%s", directory, lost[0],
            )  # fmt: skip
        elif self._state.lacks_queues or topic in self._state.without_queues:
            handle_damage(
                f"{directory} is missing: consumers cannot see the messages of {topic}, queue"
                f" {queue_id}, of which the log has one at position {lost[0]}; view=log reads"
                " them without queues",
                self._on_corrupt,
            )
            log.warning("the files of a queue are missing directory=%s", directory)
        self._reported.add((topic, queue_id))

    def _check_one_by_one(self, topic: str, queue_id: int, fields: Fields, members: Ints) -> Mask:
        """Return which records of a queue are visible, if their entries cannot be read at once."""
        positions = fields.long("position")[members]
        if topic in self._state.batch_topics:
            return self._check_batch_queue(topic, queue_id, positions)
        offsets = fields.long("queueOffset")[members]
        queue = self._queue(topic, queue_id)
        _, *limits = self._make_limits(topic, queue)
        return are_visible(queue.find_entries(offsets), offsets, positions, *limits)

    def _read_entries(self, topic: str, queue_id: int, low: int, end: int) -> bytes:
        """Return entries of a queue, from those read ahead or from the file."""
        known = self._ahead.get((topic, queue_id))
        if known is None or low < known.first or known.end < end:
            further = low + max(_AHEAD * (end - low), _AHEAD_MIN)
            data = self._queue(topic, queue_id).entries(low, further).tobytes()
            known = _Ahead(low, further, data)
            if self._ahead_bytes > _AHEAD_BYTES_MAX:
                self._ahead.clear()
                self._ahead_bytes = 0
            self._ahead[topic, queue_id] = known
            self._ahead_bytes += len(data)
        return known.of(low, end)

    def _make_limits(self, topic: str, queue: QueueFiles) -> Limits:
        # Entries added after the end was read are included already.
        behind = queue.newest + 1 if queue.has_files else self._state.settled
        return Limits(0, queue.first, behind, self._state.dead_before.get(topic, 0))

    def _queue(self, topic: str, queue_id: int) -> QueueFiles:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = QueueFiles(self._layout.queue(topic, queue_id))
            self._queues[topic, queue_id] = queue
        return queue

    def _check_batch_queue(self, topic: str, queue_id: int, positions: Ints) -> Mask:
        known = self._batches.get((topic, queue_id))
        if known is None:
            known = batch_positions(f"{self._layout.root}/{BATCH_QUEUES}/{topic}/{queue_id}")
            self._batches[topic, queue_id] = known
        newest = known[-1] if len(known) else self._state.settled - 1
        return np.asarray(np.isin(positions, known) | (positions > newest), np.bool_)
