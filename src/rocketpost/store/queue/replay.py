"""Putting records back into their queues while the commit log is read again.

No CRC covers a record's topic, queue and queue offset. What tells a damaged field is the sequence:
the offsets of a queue follow each other. A record whose offset is not the next one is held back
until the next record of that queue shows which of them is right:

    next record    the one that was held back
    continues it   is right: offsets before it are lost, or the queue was made anew by a broker that
                   counts from 0 again
    does not       has a damaged field: it is reported, and readers never see it

Entries that the old queue files have beyond the checkpoint bear witness too: of two records that
claim one place, the one that such an entry leads to has it.
Lost offsets are filled with fillers, so that later messages keep theirs and no offset is ever given
to a second message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.store.queue.table import QueueTable

logger = logging.getLogger(__name__)

FILLER_COUNT_MAX: Final = 4 * 1024 * 1024
"""Longest run of lost offsets that is filled; a queue that lost more starts over after them."""
_LAST_GAP_COUNT_MAX: Final = 4096
"""Largest gap before a queue's last record, which no later one confirms."""


class Placed(NamedTuple):
    """A record and the place in a queue that it claims."""

    queue_offset: int
    position: int
    size: int
    tags_code: int


class QueueReplay:
    """Places records. Used once, by one thread.

    Args:
        queues: The queues, as their files have them up to the checkpoint.
        is_from_start: Whether the log is read from its start and older records have expired, so
            that a queue may begin at any offset.
        is_foreign: Whether another broker may have written to the store.
        claim_at: Returns topic, queue id and queue offset of the record at a position; None if no
            sound record stands there.
        on_contradiction: Told of each record whose place in its queue cannot be right, with topic,
            queue id and reason.
    """

    def __init__(
        self,
        queues: QueueTable,
        *,
        is_from_start: bool,
        is_foreign: bool,
        claim_at: Callable[[int], tuple[str, int, int] | None],
        on_contradiction: Callable[[Placed, str, int, str], None],
    ) -> None:
        self._queues = queues
        self._is_from_start = is_from_start
        self._is_foreign = is_foreign
        self._claim_at = claim_at
        self._on_contradiction = on_contradiction
        self._held: dict[tuple[str, int], Placed] = {}
        self.has_unknown_losses = False
        """Whether records were lost that nobody knows the queues of."""

    def put(self, topic: str, queue_id: int, placed: Placed) -> None:
        """Take the next record of a queue."""
        queue = self._queues.get((topic, queue_id)) or self._queues.make(topic, queue_id)
        if placed.position <= queue.last_position:
            return  # the queue has it already
        if placed.queue_offset == queue.end and not self._held and not self._queues.has_witnesses:
            queue.put_recovered(*placed)
            return
        witness = self._queues.witness(queue, placed.queue_offset)
        if witness is not None and witness != placed.position:
            if self._claim_at(witness) == (topic, queue_id, placed.queue_offset):
                self._refuse(queue, placed, f"by the queue file that is the record at {witness}")
                return
            witness = None  # the entry itself is damaged
        held = self._held.pop((topic, queue_id), None) if self._held else None
        if held is not None:
            self._settle(queue, held, placed)
        if placed.queue_offset == queue.end:
            queue.put_recovered(*placed)
        elif witness is not None and placed.queue_offset > queue.end:
            self._put_behind_gap(queue, placed)
        else:
            self._held[topic, queue_id] = placed

    def awaits(self, topic: str, queue_id: int, placed: Placed) -> bool:
        """Tell whether a queue is at the place that a damaged record claims, or has it already."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return False
        return placed.position <= queue.last_position or placed.queue_offset == queue.end

    def put_lost(self, topic: str, queue_id: int, placed: Placed) -> None:
        """Take a record whose body is damaged; its offset is never given again."""
        queue = self._queues.get((topic, queue_id)) or self._queues.make(topic, queue_id)
        if placed.position <= queue.last_position:
            return
        held = self._held.pop((topic, queue_id), None)
        if held is not None:
            self._settle(queue, held, placed)
        if placed.queue_offset == queue.end:
            queue.fill_to(placed.queue_offset + 1)

    def finish(self) -> None:
        """Decide about records that nothing followed."""
        for key, held in self._held.items():
            queue = self._queues.get(key)
            assert queue is not None
            if self._is_credible(queue, held):
                self._put_behind_gap(queue, held)
            elif self._is_foreign and held.queue_offset == 0:
                self._start_over(queue, held)
            else:
                self._refuse(queue, held, f"its queue was at {queue.end}")
                if queue.last_position >= 0:
                    queue.fill_to(queue.end + 1)  # which may be the offset that it had
                else:
                    self._queues.forget_empty(queue)
        self._held.clear()

    def _is_credible(self, queue: ConsumeQueue, last: Placed) -> bool:
        """Tell whether a queue's last record may have the offset it claims."""
        if queue.last_position < 0 and queue.end == 0:
            return self._is_from_start or self._is_foreign or self.has_unknown_losses
        return 0 < last.queue_offset - queue.end <= _LAST_GAP_COUNT_MAX

    def _settle(self, queue: ConsumeQueue, held: Placed, following: Placed) -> None:
        """Place or refuse the record held back, by the one that follows."""
        end, offset = queue.end, following.queue_offset
        is_new = queue.last_position < 0
        if self._is_foreign and held.queue_offset == 0 and offset == 1:
            self._start_over(queue, held)
        elif offset == held.queue_offset + 1 and (is_new or held.queue_offset > end):
            self._put_behind_gap(queue, held)
        elif offset == held.queue_offset + 1 and offset != end:
            self._start_over(queue, held)
        elif end < held.queue_offset < offset:
            self._put_behind_gap(queue, held)
        else:
            # It claims an offset that another record has, or one that the queue was not at.
            self._refuse(queue, held, f"its queue was at {end} and went on with {offset}")

    def _put_behind_gap(self, queue: ConsumeQueue, placed: Placed) -> None:
        gap = placed.queue_offset - queue.end
        is_new = queue.last_position < 0
        if gap and not (is_new and (self._is_from_start or self._is_foreign)):
            logger.error(
                "messages are missing in a queue topic=%s queue=%s offset=%s count=%s",
                queue.topic, queue.queue_id, queue.end, gap,
            )  # fmt: skip
        if gap > FILLER_COUNT_MAX and not is_new:
            self._start_over(queue, placed)
            return
        if is_new:
            queue.remove_files()
            queue.restart_at(placed.queue_offset)
        else:
            queue.fill_to(placed.queue_offset)
        queue.put_recovered(*placed)

    def _start_over(self, queue: ConsumeQueue, placed: Placed) -> None:
        logger.error(
            "queue starts over topic=%s queue=%s end=%s offset=%s: its earlier messages stay in the"
            " commit log, but not in the queue",
            queue.topic, queue.queue_id, queue.end, placed.queue_offset,
        )  # fmt: skip
        queue.remove_files()
        queue.restart_at(placed.queue_offset)
        queue.put_recovered(*placed)

    def _refuse(self, queue: ConsumeQueue, placed: Placed, why: str) -> None:
        reason = f"queue id, queue offset or topic is damaged: {why}"
        self._on_contradiction(placed, queue.topic, queue.queue_id, reason)
