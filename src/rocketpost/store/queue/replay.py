"""Replay of records into their queues while recovery reads the commit log.

No CRC covers a record's topic, queue and queue offset. A damaged field shows in the sequence, since
the offsets of a queue are consecutive. A record whose offset is not the next one is held back until
the next record of that queue shows which of them is right:

    next record    the record held back
    continues it   is right: offsets before it are lost, or another broker created the queue again
                   and counts from 0
    does not       has a damaged field: it is reported, and readers never see it

Entries of the old queue files after the checkpoint are evidence too: of two records that claim the
same offset, the one that such an entry points to gets it. Lost offsets are filled with fillers, so
that later messages keep theirs and no offset is ever assigned to a second message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.store.queue.table import QueueTable

logger = logging.getLogger(__name__)

FILLER_COUNT_MAX: Final = 4 * 1024 * 1024
"""Longest run of lost offsets that is filled; a queue that lost more restarts after them."""
_LAST_GAP_COUNT_MAX: Final = 4096
"""Largest gap accepted before a queue's last record, which no later record confirms."""


class PlacedEntry(NamedTuple):
    """A record and the queue offset that it claims."""

    queue_offset: int
    position: int
    size: int
    tags_code: int


class QueueReplay:
    """Places records. Used once, by one thread.

    Args:
        queues: The queues, loaded from their files up to the checkpoint.
        begins_anywhere: Whether a queue may begin at any offset: its older records have expired,
            and the log is read from its start, or came from a leader without them.
        is_foreign: Whether another broker may have written to the store.
        claim_at: Returns topic, queue id and queue offset of the record at a position; None if no
            sound record begins there.
        on_contradiction: Called for each record whose queue offset cannot be right, with topic,
            queue id and reason.
    """

    def __init__(
        self,
        queues: QueueTable,
        *,
        begins_anywhere: bool,
        is_foreign: bool,
        claim_at: Callable[[int], tuple[str, int, int] | None],
        on_contradiction: Callable[[PlacedEntry, str, int, str], None],
    ) -> None:
        self._queues = queues
        self._begins_anywhere = begins_anywhere
        self._is_foreign = is_foreign
        self._claim_at = claim_at
        self._on_contradiction = on_contradiction
        self._held: dict[tuple[str, int], PlacedEntry] = {}
        self.has_unknown_losses = False
        """Whether records were lost whose queues are not known."""

    def put(self, topic: str, queue_id: int, placed: PlacedEntry) -> None:
        """Replay the next record of a queue."""
        queue = self._queues.get((topic, queue_id)) or self._queues.make(topic, queue_id)
        if placed.position <= queue.last_position:
            return  # the queue has it already
        if placed.queue_offset == queue.end and not self._held and not self._queues.has_witnesses:
            queue.put_recovered(*placed)
            return
        witness = self._queues.witness(queue, placed.queue_offset)
        if witness is not None and witness != placed.position:
            if self._claim_at(witness) == (topic, queue_id, placed.queue_offset):
                self._refuse(
                    queue, placed, f"the queue file names the record at {witness} for this offset"
                )
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

    def awaits(self, topic: str, queue_id: int, placed: PlacedEntry) -> bool:
        """Tell whether the offset of a damaged record is next in its queue, or is there already."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return False
        return placed.position <= queue.last_position or placed.queue_offset == queue.end

    def put_lost(self, topic: str, queue_id: int, placed: PlacedEntry) -> None:
        """Replay a record whose body is damaged; its offset is never assigned again."""
        queue = self._queues.get((topic, queue_id)) or self._queues.make(topic, queue_id)
        if placed.position <= queue.last_position:
            return
        held = self._held.pop((topic, queue_id), None)
        if held is not None:
            self._settle(queue, held, placed)
        if placed.queue_offset == queue.end:
            queue.fill_to(placed.queue_offset + 1)

    def finish(self) -> None:
        """Decide about held records that no other record followed."""
        for key, held in self._held.items():
            queue = self._queues.get(key)
            assert queue is not None
            if self._is_credible(queue, held):
                self._put_behind_gap(queue, held)
            elif self._is_foreign and held.queue_offset == 0:
                self._start_over(queue, held)
            else:
                self._refuse(queue, held, f"its queue had reached offset {queue.end}")
                if queue.last_position >= 0:
                    queue.fill_to(queue.end + 1)  # this may be the record's true offset
                else:
                    self._queues.forget_empty(queue)
        self._held.clear()

    def _is_credible(self, queue: ConsumeQueue, last: PlacedEntry) -> bool:
        """Tell whether the claimed offset of a queue's last record is plausible."""
        if queue.last_position < 0 and queue.end == 0:
            return self._begins_anywhere or self._is_foreign or self.has_unknown_losses
        return 0 < last.queue_offset - queue.end <= _LAST_GAP_COUNT_MAX

    def _settle(self, queue: ConsumeQueue, held: PlacedEntry, following: PlacedEntry) -> None:
        """Place or refuse the record held back, by the record that follows."""
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
            # It claims the offset of another record, or one that was not next in the queue.
            self._refuse(
                queue, held, f"its queue had reached offset {end} and continued at {offset}"
            )

    def _put_behind_gap(self, queue: ConsumeQueue, placed: PlacedEntry) -> None:
        gap = placed.queue_offset - queue.end
        is_new = queue.last_position < 0
        if gap and not (is_new and (self._begins_anywhere or self._is_foreign)):
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

    def _start_over(self, queue: ConsumeQueue, placed: PlacedEntry) -> None:
        logger.error(
            "queue starts over topic=%s queue=%s end=%s offset=%s: its earlier messages stay in the"
            " commit log, but not in the queue",
            queue.topic, queue.queue_id, queue.end, placed.queue_offset,
        )  # fmt: skip
        queue.remove_files()
        queue.restart_at(placed.queue_offset)
        queue.put_recovered(*placed)

    def _refuse(self, queue: ConsumeQueue, placed: PlacedEntry, why: str) -> None:
        reason = f"queue id, queue offset or topic is damaged: {why}"
        self._on_contradiction(placed, queue.topic, queue.queue_id, reason)
