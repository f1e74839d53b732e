"""Dispatch of confirmed messages to queues and key index, in log order.

A message waits here from its append until it is confirmed; only then can a queue or a query find
it. After each round the dispatcher sets a :class:`Mark`, a consistent snapshot that the
checkpoint thread makes durable.
"""

from __future__ import annotations

import bisect
import logging
from operator import itemgetter
from typing import NamedTuple

from rocketpost.errors import StoreError
from rocketpost.model.ids import Position
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.store.draft import Appended
from rocketpost.store.index.key_index import KeyIndex
from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.store.queue.files import ENTRY
from rocketpost.store.queue.table import QueueTable

logger = logging.getLogger(__name__)

_position_of = itemgetter(0)
_pack = ENTRY.pack


class Mark(NamedTuple):
    """Snapshot of positions and counts between two rounds of dispatch."""

    position: int
    index_position: int
    index_end: int
    store_ms: int
    queue_count: int
    queue_end_sum: int


class Dispatcher:
    """Makes confirmed messages visible. Belongs to the loop thread; ``mark`` may be read by any."""

    def __init__(self, queues: QueueTable, index: KeyIndex | None) -> None:
        self._queues = queues
        self._index = index
        self._unindexed: list[Appended] = []
        self.pending: list[Appended] = []
        """Messages appended and not yet visible, oldest first."""
        self.position = Position(0)
        self.why_unindexed: str | None = None
        self.ceiling: Position | None = None
        """No record that ends after this becomes visible; None if there is no bound."""
        self.mark = Mark(0, 0, 0, 0, 0, 0)
        self._store_ms = 0
        self._hidden_end = 0
        self._hidden_next: list[tuple[ConsumeQueue, int]] = []

    def start_at(
        self, position: int, *, index_position: int, store_ms: int, is_indexed: bool = True
    ) -> None:
        """Continue at ``position``: the end of the recovered log, or the ceiling within it.

        Args:
            position: Every record before this is visible.
            index_position: Every record before this is in the key index.
            store_ms: Newest store time.
            is_indexed: Whether the key index has every record of the log.
        """
        self._queues.count()
        self.position = Position(position)
        self._store_ms = store_ms
        index_end = self._index.end_position if self._index is not None else 0
        counts = self._queues.count_before(position)
        self.mark = Mark(position, index_position, index_end, store_ms, *counts)
        if self._index is not None and not is_indexed:
            self.why_unindexed = (
                "the key index is behind the commit log; free some disk space and restart"
            )

    def wait_for(self, hidden: list[Appended], end: int) -> None:
        """Hold the records from :attr:`position` to ``end`` until they are confirmed.

        Offsets of a queue that ``hidden`` does not contain belong to lost records.
        """
        assert not self.pending
        self.pending = hidden
        self._hidden_end = end
        self._hidden_next = [(queue, int(queue.next_offset)) for queue in self._queues]
        self._queues.count()

    def set_ceiling(self, position: Position | None) -> None:
        """Set or remove the position up to which records may become visible.

        Raises:
            StoreError: Records after it are visible already.
        """
        if position is not None and position < self.position:
            raise StoreError(
                f"the ceiling {position} is before {self.position}, up to which messages "
                "are visible already"
            )
        self.ceiling = position

    def confirm(self, position: int) -> list[Arrival]:
        """Make every message before ``position`` visible; returns a notice for each queue."""
        if self.ceiling is not None and position > self.ceiling:
            position = self._border_below(self.ceiling)
        pending = self.pending
        if not pending or pending[-1][0] < position:
            batch, self.pending = pending, []
        else:
            count = bisect.bisect_left(pending, position, key=_position_of)
            batch = pending[:count]
            del pending[:count]
        arrivals = self._put(batch)
        if batch:
            self._store_ms = batch[-1].store_ms
        if position > self.position:
            self.position = Position(position)
        if self._hidden_end:
            self._count_hidden()
            self._leave_mark(0)
        else:
            self._leave_mark(sum([arrival.message_count for arrival in arrivals]))
        return arrivals

    def _border_below(self, ceiling: int) -> int:
        """Return the end of the last whole record before ``ceiling``."""
        count = bisect.bisect_left(self.pending, ceiling, key=_position_of)
        if count and self.pending[count - 1].end > ceiling:
            count -= 1
        return int(self.pending[count - 1].end) if count else int(self.position)

    def refresh_mark(self) -> None:
        """Set a new mark after queues were deleted."""
        self._leave_mark(0)

    def forget_from(self, position: int) -> None:
        """Withdraw messages appended at or after ``position`` but never written."""
        pending = self.pending
        count = bisect.bisect_left(pending, position, key=_position_of)
        for entry in reversed(pending[count:]):
            if entry.queue is not None:
                entry.queue.next_offset = entry.queue_offset
        del pending[count:]

    def lower(self, position: int) -> None:
        """Go back to ``position``, where the log was cut; queues and index end there already."""
        self.position = min(self.position, Position(position))
        self.mark = self.mark._replace(index_position=min(self.mark.index_position, position))
        self._unindexed = [entry for entry in self._unindexed if entry.position < position]
        self._hidden_end = min(self._hidden_end, position)
        self._hidden_next = [
            (queue, min(next_offset, int(queue.next_offset)))
            for queue, next_offset in self._hidden_next
        ]
        self._queues.count()
        self._leave_mark(0)

    def retry_index(self) -> bool:
        """Index the messages that had no room in the index; True if none is left."""
        waiting, self._unindexed = self._unindexed, []
        if not waiting:
            return self.why_unindexed is None
        self.why_unindexed = None
        for entry in waiting:
            self._put_index(entry)
        return self.why_unindexed is None

    def _put(self, batch: list[Appended]) -> list[Arrival]:
        """Add messages to queues and index.

        The entries of one queue go to its tail, which is not written to the file before all of
        them are in it.
        """
        if self._hidden_end:
            return self._put_hidden(batch)
        queues: list[ConsumeQueue] = []
        for position, size, queue_offset, _, topic, queue_id, tags_code, _, queue in batch:
            if queue is None or queue.is_deleted:
                continue
            assert queue_offset == queue.end
            data = queue.tail.data
            notice = queue.notice
            if notice is None:
                queue.notice = Arrival(topic, queue_id, queue_offset, size, data, len(data))
                queues.append(queue)
            else:
                notice.record_bytes += size
            data += _pack(position, size, tags_code)
            queue.end = queue_offset + 1  # type: ignore[assignment]
            queue.last_position = position
        arrivals = [queue.end_notice() for queue in queues]
        if self._index is not None:
            self._put_index_all(self._index, batch)
        return arrivals

    def _put_hidden(self, batch: list[Appended]) -> list[Arrival]:
        """Do the same as :meth:`_put` for waiting records of a recovered log with gaps."""
        arrivals: list[Arrival] = []
        for position, size, queue_offset, _, topic, queue_id, tags_code, _, queue in batch:
            if queue is None or queue.is_deleted:
                continue
            _fill(queue, queue_offset)
            queue.put(queue_offset, position, size, tags_code)
            entry = (position, size, tags_code)
            arrivals.append(Arrival.of_one(topic, queue_id, queue_offset, entry))
        if self._index is not None:
            self._put_index_all(self._index, batch)
        return arrivals

    def _count_hidden(self) -> None:
        if self.position >= self._hidden_end:
            for queue, next_offset in self._hidden_next:
                if not queue.is_deleted:
                    _fill(queue, next_offset)
            self._hidden_end = 0
            self._hidden_next = []
        self._queues.count()

    def _put_index_all(self, index: KeyIndex, batch: list[Appended]) -> None:
        done = 0
        while done < len(batch):
            if self.why_unindexed is None:
                done += index.put_all(batch[done:] if done else batch)
            if done < len(batch):  # a new file is needed, and making it may fail
                self._put_index(batch[done])
                done += 1

    def _put_index(self, entry: Appended) -> None:
        if self._index is None or not entry.keys:
            return
        if self.why_unindexed is not None:
            self._unindexed.append(entry)
            return
        try:
            self._index.put(entry.topic, entry.keys, entry.position, entry.store_ms)
        except StoreError as error:
            self._index_failed(entry, error)

    def _index_failed(self, entry: Appended, error: StoreError) -> None:
        logger.error("key index not written position=%s reason=%s", entry.position, error)
        self.why_unindexed = str(error)
        self._unindexed.append(entry)

    def _leave_mark(self, visible_count: int) -> None:
        queue_count, queue_end_sum = self._queues.count_added(visible_count)
        index = self._index
        if index is None:
            index_position = 0
        elif self.why_unindexed is None:
            index_position = int(self.position)
        elif self._unindexed:
            index_position = min(self.mark.index_position, self._unindexed[0].position)
        else:
            index_position = self.mark.index_position
        self.mark = Mark(
            self.position,
            index_position,
            index.end_position if index is not None else 0,
            self._store_ms,
            queue_count,
            queue_end_sum,
        )


def _fill(queue: ConsumeQueue, offset: int) -> None:
    """Fill the lost offsets before ``offset`` in a queue that had assigned them."""
    if queue.end < offset:
        next_offset = queue.next_offset
        queue.fill_to(offset)
        queue.next_offset = max(next_offset, queue.end)
