"""Progress through the revive topic, kept among the consumer offsets.

Two rows of the offset table belong to the revive topic, so that they are saved together with the
offsets that popping moves. The row of RocketMQ's revive group is the offset of the last record that
is no longer needed. The other row is Rocketpost's own: checkpoints before it have already moved
their group's offset, so that reading them again does not undo a reset.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.pop.batch import Batches
from rocketpost.broker.pop.in_flight import Checkpoint, InFlightTable
from rocketpost.broker.pop.log import BatchEntry, CheckpointEntry, PopLog
from rocketpost.broker.pop.targets import Cursor
from rocketpost.broker.pop.watermark import ReviveWatermark
from rocketpost.codec.record import Record
from rocketpost.errors import Fault
from rocketpost.store.queue.consume_queue import ConsumeQueue

logger = logging.getLogger(__name__)

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
APPLIED_GROUP: Final = "CID_RMQ_SYS_REVIVE_APPLIED"


class Store(Protocol):
    """The part of the store that this module uses."""

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, or None if it never had a message."""
        ...

    def queues_of(self, topic: str) -> list[ConsumeQueue]:
        """Return the queues of a topic."""
        ...

    def record_of(
        self, queue: ConsumeQueue, offset: int, position: int, size: int
    ) -> Record | None:
        """Return the record that a queue entry points to; None if it is gone or damaged."""
        ...


class PopProgress:
    """Follows the revive topic of one broker. Owned by the event loop.

    Args:
        in_flight: The messages in flight; filled by :meth:`recover`.
        batches: The batches handed out in order; updated by :meth:`recover`.
        watermark: Tracks the records that both need.
    """

    def __init__(
        self,
        *,
        store: Store,
        offsets: OffsetTable,
        in_flight: InFlightTable,
        batches: Batches,
        watermark: ReviveWatermark,
        log: PopLog,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._in_flight = in_flight
        self._batches = batches
        self._watermark = watermark
        self._log = log
        self.on_due: Callable[[], None] = _do_nothing
        """Called when a checkpoint may have become the next one due."""

    def next_offset(self, revive_queue: int) -> int:
        """Return the offset that the next message in a revive queue will get."""
        queue = self._store.queue(self._log.topic, revive_queue)
        return 0 if queue is None else int(queue.next_offset)

    def note_launched(self, checkpoint: Checkpoint) -> None:
        """Note that a checkpoint is stored, and that its group's offset has moved."""
        self.note_applied(checkpoint.revive_queue, checkpoint.revive_offset)
        self.on_due()

    def note_applied(self, revive_queue: int, revive_offset: int) -> None:
        """Note that the group's offset has moved as a record says."""
        self._raise(APPLIED_GROUP, revive_queue, revive_offset + 1)

    def note_ended(self, revive_queue: int) -> None:
        """Note that records of a revive queue are no longer needed."""
        self._raise(REVIVE_GROUP, revive_queue, self._watermark.offset(revive_queue))

    def recover(self) -> None:
        """Read the revive topic: restore the messages in flight and the groups' offsets."""
        for queue in self._store.queues_of(self._log.topic):
            # A power cut may have removed the end of the queue; its offsets are used again.
            queue_id, end = queue.queue_id, int(queue.end)
            done = min(self._offsets.query(self._log.topic, REVIVE_GROUP, queue_id), end - 1)
            applied = min(self._offsets.query(self._log.topic, APPLIED_GROUP, queue_id), end)
            self._set(REVIVE_GROUP, queue_id, done)
            self._set(APPLIED_GROUP, queue_id, applied)
            self._replay(queue, done + 1, applied)
            self.note_ended(queue_id)
        if self._in_flight.count:
            logger.info(
                "popped messages in flight after the start: count=%s", self._in_flight.count
            )

    def _replay(self, queue: ConsumeQueue, start: int, applied: int) -> None:
        launched: list[Checkpoint] = []
        for found in self._log.read(self._store, queue, start):
            if isinstance(found, CheckpointEntry):
                checkpoint = found.checkpoint
                if self._in_flight.find(checkpoint.key) is not None:
                    continue
                self._in_flight.add(checkpoint)
                launched.append(checkpoint)
                if found.next_offset is not None and checkpoint.revive_offset >= applied:
                    self._move(Cursor(*checkpoint.key[:3]), found.next_offset)
            elif isinstance(found, BatchEntry):
                self._take_batch(queue.queue_id, found)
                if found.batch.revive_offset >= applied:
                    self._move(found.cursor, found.next_offset)
            elif (known := self._in_flight.find(found.key)) is not None:
                self._in_flight.close(known, found.offsets)
        for checkpoint in launched:
            if checkpoint.left:
                self._in_flight.launch(checkpoint)
        self._set(APPLIED_GROUP, queue.queue_id, max(applied, int(queue.end)))

    def _take_batch(self, revive_queue: int, found: BatchEntry) -> None:
        before, batch = self._batches.newest(found.cursor), found.batch
        if before is not None and before.revive_offset >= 0:
            self._watermark.end(revive_queue, before.revive_offset, before)
        if batch.is_over:
            self._watermark.end(revive_queue, batch.revive_offset, batch)
            self._batches.put(found.cursor, None)
        else:
            self._watermark.add(revive_queue, batch.revive_offset, batch)
            self._batches.put(found.cursor, batch)

    def _move(self, cursor: Cursor, offset: int) -> None:
        if offset > self._offsets.query(*cursor):
            self._offsets.commit(*cursor, offset)

    def _raise(self, group: str, revive_queue: int, offset: int) -> None:
        if offset > self._offsets.query(self._log.topic, group, revive_queue):
            self._set(group, revive_queue, offset)

    def _set(self, group: str, revive_queue: int, offset: int) -> None:
        if offset == self._offsets.query(self._log.topic, group, revive_queue):
            return
        try:
            self._offsets.commit(self._log.topic, group, revive_queue, offset)
        except Fault as error:
            # After a crash, more records than needed are read, but never fewer.
            logger.warning("revive offset not saved: queue=%s reason=%s", revive_queue, error)


def _do_nothing() -> None:
    """Do nothing."""
