"""Dispatch of confirmed messages to queues and key index, in log order.

A message waits here from its append until it is confirmed; only then can a queue or a query find
it. After each round the dispatcher sets a :class:`Mark`, a consistent snapshot that the
checkpoint thread makes durable.
"""

from __future__ import annotations

import bisect
import logging
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from rocketpost.errors import StoreError
from rocketpost.model.ids import Position
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.store.dispatch.indexing import Indexing
from rocketpost.store.dispatch.row_span import RowEntries, RowSpan
from rocketpost.store.draft import Appended
from rocketpost.store.index.key_index import KeyIndex
from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.store.queue.files import ENTRY
from rocketpost.store.queue.table import QueueTable

logger = logging.getLogger(__name__)

_position_of = attrgetter("position")
_pack = ENTRY.pack
_new = tuple.__new__


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
        self.indexing = Indexing(index) if index is not None else None
        """Puts messages into the key index; None if there is no index."""
        self.pending: list[Appended | RowSpan] = []
        """Messages appended and not yet visible, oldest first; always the same list."""
        self._row_entries = RowEntries(queues.slots)
        self._span_count = 0  # of those in pending
        self.position = Position(0)
        self.ceiling: Position | None = None
        """No record that ends after this becomes visible; None if there is no bound."""
        self.mark = Mark(0, 0, 0, 0, 0, 0)
        self._store_ms = 0
        self._hidden_end = 0
        self._hidden_next: list[tuple[ConsumeQueue, int]] = []

    @property
    def why_unindexed(self) -> str | None:
        """Reason why confirmed messages cannot be indexed; None if they can."""
        return self.indexing.why_not if self.indexing is not None else None

    def retry_index(self) -> bool:
        """Index the messages that had no room in the index; True if none is left."""
        return self.indexing is None or self.indexing.retry()

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
        index_end = self.indexing.index.end_position if self.indexing is not None else 0
        counts = self._queues.count_before(position)
        self.mark = Mark(position, index_position, index_end, store_ms, *counts)
        if self.indexing is not None and not is_indexed:
            self.indexing.why_not = (
                "the key index is behind the commit log; free some disk space and restart"
            )

    def wait_for(self, hidden: list[Appended], end: int) -> None:
        """Hold the records from :attr:`position` to ``end`` until they are confirmed.

        Offsets of a queue that ``hidden`` does not contain belong to lost records.
        """
        assert not self.pending
        self.pending += hidden
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
        runs = self._take_before(position)
        if runs:
            last = runs[-1]
            self._store_ms = last[-1].store_ms if isinstance(last, list) else last.store_ms
        arrivals: list[Arrival] = []
        is_hidden = self._hidden_end > 0
        added = self._put_hidden(runs, arrivals) if is_hidden else self._put(runs, arrivals)
        indexing = self.indexing
        if indexing is not None:
            for run in runs:
                if isinstance(run, list):
                    indexing.put_messages(run)
                else:
                    indexing.put_rows(run)
        if position > self.position:
            self.position = Position(position)
        if is_hidden:
            self._count_hidden()
        self._leave_mark(added)
        return arrivals

    def add_rows(self, span: RowSpan) -> None:
        """Make the messages of a span wait until they are confirmed."""
        self.pending.append(span)
        self._span_count += 1

    def _take_before(self, position: int) -> list[list[Appended] | RowSpan]:
        """Remove the messages that begin before ``position``; return runs of one kind."""
        pending = self.pending
        if not pending:
            return []
        if not self._span_count and pending[-1].position < position:
            taken = pending[:]
            pending.clear()
            return [taken]  # type: ignore[list-item]
        if self._span_count == len(pending) and pending[-1].end <= position:
            taken = pending[:]
            pending.clear()
            self._span_count = 0
            if self._queues.slots.removed:
                self._queues.slots.reuse()
            return taken  # type: ignore[return-value]
        count = bisect.bisect_left(pending, position, key=_position_of)
        taken = pending[:count]
        del pending[:count]
        if not self._span_count:
            return [taken] if taken else []  # type: ignore[list-item]
        runs: list[list[Appended] | RowSpan] = []
        for is_span, run in groupby(taken, _is_span):
            if is_span:
                runs += run  # type: ignore[arg-type]
            else:
                runs.append(list(run))  # type: ignore[arg-type]
        self._span_count -= sum(map(_is_span, runs))
        last = runs[-1] if runs else None
        if isinstance(last, RowSpan):
            rest = last.split_at(position)
            if rest is not None:
                pending.insert(0, rest)
                self._span_count += 1
        if not self._span_count:
            self._queues.slots.reuse()
        return runs

    def _border_below(self, ceiling: int) -> int:
        """Return the end of the last whole record before ``ceiling``."""
        count = bisect.bisect_left(self.pending, ceiling, key=_position_of)
        while count:
            last = self.pending[count - 1]
            if last.end <= ceiling:
                return int(last.end)
            border = last.border_below(ceiling) if isinstance(last, RowSpan) else None
            if border is not None:
                return border
            count -= 1
        return int(self.position)

    def refresh_mark(self) -> None:
        """Set a new mark after queues were deleted."""
        if not self._span_count:
            self._queues.slots.reuse()
        self._leave_mark(0)

    def forget_from(self, position: int) -> None:
        """Withdraw messages at or after ``position``: they were not written, or are cut off.

        The queue offsets of the messages become free again, the newest first.
        """
        pending = self.pending
        count = bisect.bisect_left(pending, position, key=_position_of)
        withdrawn = pending[count:]
        del pending[count:]
        last = pending[-1] if pending else None
        if isinstance(last, RowSpan):
            rest = last.split_at(position)
            if rest is not None:
                withdrawn.insert(0, rest)
                self._span_count += 1
        for entry in reversed(withdrawn):
            if isinstance(entry, RowSpan):
                entry.give_back(self._queues.slots)
            elif entry.queue is not None:
                entry.queue.next_offset = entry.queue_offset
        self._span_count -= sum(map(_is_span, withdrawn))

    def lower(self, position: int) -> None:
        """Move back to ``position``, where the log was cut; queues and index end there already."""
        self.position = min(self.position, Position(position))
        self.mark = self.mark._replace(index_position=min(self.mark.index_position, position))
        if self.indexing is not None:
            self.indexing.forget_from(position)
        self._hidden_end = min(self._hidden_end, position)
        self._hidden_next = [
            (queue, min(next_offset, int(queue.next_offset)))
            for queue, next_offset in self._hidden_next
        ]
        self._queues.count()
        self._leave_mark(0)

    def _put(self, runs: list[list[Appended] | RowSpan], arrivals: list[Arrival]) -> int:
        """Add messages to queues; return how many became visible.

        The entries of one queue go to its tail, which is not written to the file before all of
        them are in it.
        """
        for run in runs:
            if isinstance(run, list):
                _put_messages(run, arrivals)
            else:
                self._row_entries.put(run, arrivals)
        count = 0
        for arrival in arrivals:
            queue: ConsumeQueue = arrival.queue
            queue.notice = None
            arrival.message_count = added = queue.end - arrival.first_offset
            count += added
            if len(arrival.tail) >= queue.spill_at:
                queue.spill()
        return count

    def _put_hidden(self, runs: list[list[Appended] | RowSpan], arrivals: list[Arrival]) -> int:
        """Do the same as :meth:`_put` for waiting records of a recovered log with gaps.

        Returns:
            0: the caller counts all queues again.
        """
        for run in runs:
            messages = run if isinstance(run, list) else run.messages(self._queues.slots)
            for position, size, queue_offset, _, topic, queue_id, tags_code, _, queue in messages:
                if queue is None or queue.is_deleted:
                    continue
                _fill(queue, queue_offset)
                queue.put(queue_offset, position, size, tags_code)
                entry = (position, size, tags_code)
                arrivals.append(Arrival.of_one(topic, queue_id, queue_offset, entry))
        return 0

    def _count_hidden(self) -> None:
        if self.position >= self._hidden_end:
            for queue, next_offset in self._hidden_next:
                if not queue.is_deleted:
                    _fill(queue, next_offset)
            self._hidden_end = 0
            self._hidden_next = []
        self._queues.count()

    def _leave_mark(self, visible_count: int) -> None:
        queue_count, queue_end_sum = self._queues.count_added(visible_count)
        indexing = self.indexing
        if indexing is None:
            index_position = 0
        elif indexing.why_not is None:
            index_position = int(self.position)
        else:
            first = indexing.first_unindexed
            known = self.mark.index_position
            index_position = known if first is None else min(known, first)
        index_end = indexing.index.end_position if indexing is not None else 0
        self.mark = _new(
            Mark,
            (
                self.position,
                index_position,
                index_end,
                self._store_ms,
                queue_count,
                queue_end_sum,
            ),
        )


def _put_messages(messages: list[Appended], arrivals: list[Arrival]) -> None:
    """Add the entries of messages to the tails of their queues, and notices to ``arrivals``."""
    for position, size, queue_offset, _, topic, queue_id, tags_code, _, queue in messages:
        if queue is None or queue.is_deleted:
            continue
        assert queue_offset == queue.end
        data = queue.tail.data
        notice = queue.notice
        if notice is None:
            queue.notice = notice = Arrival(
                topic, queue_id, queue_offset, size, data, len(data), 0, queue
            )
            arrivals.append(notice)
        else:
            notice.record_bytes += size
        data += _pack(position, size, tags_code)
        queue.end = queue_offset + 1  # type: ignore[assignment]
        queue.last_position = position


def _is_span(entry: object) -> bool:
    return isinstance(entry, RowSpan)


def _fill(queue: ConsumeQueue, offset: int) -> None:
    """Fill the lost offsets before ``offset`` in a queue that had assigned them."""
    if queue.end < offset:
        next_offset = queue.next_offset
        queue.fill_to(offset)
        queue.next_offset = max(next_offset, queue.end)
