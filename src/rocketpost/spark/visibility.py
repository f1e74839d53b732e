"""Which records of a log a consumer would get: those that a consume queue points at.

A log also holds what no queue has: messages of topics that were deleted, perhaps made again since,
and marks of old transactions. The files of a queue may be behind the log of a running broker; what
they do not cover yet counts as visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from rocketpost.model.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rocketpost.spark.fields import Ints
from rocketpost.spark.log_files import Mask
from rocketpost.spark.queue_files import QueueFiles, batch_positions
from rocketpost.spark.store_state import BATCH_QUEUES, StoreState
from rocketpost.store.layout import Layout, is_queue

_SMALL_CODES: Final = 0x7FFF


class Visibility:
    """What consumers see of one store. Not thread-safe: belongs to one task."""

    def __init__(self, layout: Layout, state: StoreState) -> None:
        self._layout = layout
        self._state = state
        self._queues: dict[tuple[str, int], QueueFiles] = {}
        self._batches: dict[tuple[str, int], Ints] = {}

    def of(
        self, topics: pa.Array, queue_ids: Ints, offsets: Ints, positions: Ints, sys_flags: Ints
    ) -> Mask:
        """Return which of some records are visible, given their fields."""
        kinds = sys_flags & TRANSACTION_MASK
        visible: Mask = (kinds != TRANSACTION_PREPARED) & (kinds != TRANSACTION_ROLLBACK)
        coded = topics.dictionary_encode()
        queues = (coded.indices.to_numpy().astype(np.int64) << 32) + (queue_ids & 0xFFFF_FFFF)
        pairs, groups = _grouped(queues)
        for pair, members in zip(pairs, groups, strict=True):
            visible[members] &= self._in_queue(
                coded.dictionary[pair >> 32].as_py(),
                pair & 0xFFFF_FFFF,
                offsets[members],
                positions[members],
            )
        return visible

    def _in_queue(self, topic: str, queue_id: int, offsets: Ints, positions: Ints) -> Mask:
        if topic not in self._state.topics or not is_queue(topic, queue_id):
            return np.zeros(len(offsets), np.bool_)
        if topic in self._state.batch_topics:
            return self._in_batches(topic, queue_id, positions)
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = QueueFiles(self._layout.queue(topic, queue_id))
            self._queues[topic, queue_id] = queue
        found = queue.found(offsets)
        is_there = (found["position"] == positions) & (found["size"] > 0)
        # What was put into the queue since its end was read is in the entries already.
        behind = queue.newest + 1 if queue.has_files else self._state.settled
        is_pending = (found["size"] == 0) & (offsets >= queue.first) & (positions >= behind)
        is_alive = positions >= self._state.dead_before.get(topic, 0)
        return np.asarray((is_there | is_pending) & is_alive, np.bool_)

    def _in_batches(self, topic: str, queue_id: int, positions: Ints) -> Mask:
        known = self._batches.get((topic, queue_id))
        if known is None:
            known = batch_positions(f"{self._layout.root}/{BATCH_QUEUES}/{topic}/{queue_id}")
            self._batches[topic, queue_id] = known
        newest = known[-1] if len(known) else self._state.settled - 1
        return np.asarray(np.isin(positions, known) | (positions > newest), np.bool_)


def _grouped(values: Ints) -> tuple[list[int], Sequence[Ints | slice]]:
    """Return the distinct values, and where each is found, in order."""
    coded = pa.array(values).dictionary_encode()
    distinct = coded.dictionary.to_pylist()
    if len(distinct) == 1:
        return distinct, [slice(None)]
    codes = coded.indices.to_numpy()
    if len(distinct) <= _SMALL_CODES:
        codes = codes.astype(np.int16)  # sorted in linear time
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes, minlength=len(distinct))
    return distinct, np.split(order, np.cumsum(counts)[:-1])
