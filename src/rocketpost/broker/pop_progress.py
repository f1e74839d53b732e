"""How far the revive topic has been dealt with, kept among the consumer offsets.

Two rows of the offset table belong to the revive topic, so that they are saved together with the
offsets that popping moves. The one of RocketMQ's revive group is the offset of the last record that
nobody needs any more. The other is ours: checkpoints before it have moved their group's offset
already, so that reading them again does not undo a reset.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from rocketpost.broker.offset import OffsetTable
from rocketpost.broker.pop_flight import Checkpoint, Flight
from rocketpost.broker.pop_log import Handed, PopLog
from rocketpost.codec.record import Record
from rocketpost.errors import Fault
from rocketpost.store.consume_queue import ConsumeQueue

logger = logging.getLogger(__name__)

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
APPLIED_GROUP: Final = "CID_RMQ_SYS_REVIVE_APPLIED"


class Store(Protocol):
    """The store, as far as this needs it."""

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, or None if it never had a message."""
        ...  # pragma: no cover

    def queues_of(self, topic: str) -> list[ConsumeQueue]:
        """Return the queues of a topic."""
        ...  # pragma: no cover

    def record_at(self, position: int) -> Record | None:
        """Return the record at a position."""
        ...  # pragma: no cover


class PopProgress:
    """Follows the revive topic of one broker. Owned by the event loop."""

    def __init__(self, *, store: Store, offsets: OffsetTable, flight: Flight, log: PopLog) -> None:
        self._store = store
        self._offsets = offsets
        self._flight = flight
        self._log = log
        self.on_due: Callable[[], None] = _nobody
        """Called when a checkpoint may have become the next that is due."""

    def next_offset(self, revive_queue: int) -> int:
        """Return the offset that the next message in a revive queue will get."""
        queue = self._store.queue(self._log.topic, revive_queue)
        return 0 if queue is None else int(queue.next_offset)

    def launched(self, checkpoint: Checkpoint) -> None:
        """Note that a checkpoint is stored, and that its group's offset has moved."""
        queue, offset = checkpoint.revive_queue, checkpoint.revive_offset
        self._raise(APPLIED_GROUP, queue, offset + 1)
        self.on_due()

    def ended(self, revive_queue: int) -> None:
        """Note that messages of a revive queue's checkpoints are done."""
        self._raise(REVIVE_GROUP, revive_queue, self._flight.reached(revive_queue))

    def recover(self) -> None:
        """Read the revive topic again: what is in flight, and how far groups have come."""
        for queue in self._store.queues_of(self._log.topic):
            # A power cut may have taken the end of the queue; its offsets are given out again.
            queue_id, end = queue.queue_id, int(queue.end)
            done = min(self._offsets.query(self._log.topic, REVIVE_GROUP, queue_id), end - 1)
            applied = min(self._offsets.query(self._log.topic, APPLIED_GROUP, queue_id), end)
            self._set(REVIVE_GROUP, queue_id, done)
            self._set(APPLIED_GROUP, queue_id, applied)
            self._read_again(queue, done + 1, applied)
            self.ended(queue_id)
        if self._flight.count:
            logger.info("popped messages await their ack: count=%s", self._flight.count)

    def _read_again(self, queue: ConsumeQueue, start: int, applied: int) -> None:
        launched: list[Checkpoint] = []
        for found in self._log.read(self._store, queue, start):
            if isinstance(found, Handed):
                checkpoint = found.checkpoint
                if self._flight.find(checkpoint.key) is not None:
                    continue
                self._flight.add(checkpoint)
                launched.append(checkpoint)
                if found.next_offset is not None and checkpoint.revive_offset >= applied:
                    key = checkpoint.key
                    before = self._offsets.query(key.topic, key.group, key.queue_id)
                    if found.next_offset > before:
                        self._offsets.commit(key.topic, key.group, key.queue_id, found.next_offset)
            elif (known := self._flight.find(found.key)) is not None:
                self._flight.close(known, found.offsets)
        for checkpoint in launched:
            if checkpoint.left:
                self._flight.launch(checkpoint)
        self._set(APPLIED_GROUP, queue.queue_id, max(applied, int(queue.end)))

    def _raise(self, group: str, revive_queue: int, offset: int) -> None:
        if offset > self._offsets.query(self._log.topic, group, revive_queue):
            self._set(group, revive_queue, offset)

    def _set(self, group: str, revive_queue: int, offset: int) -> None:
        if offset == self._offsets.query(self._log.topic, group, revive_queue):
            return
        try:
            self._offsets.commit(self._log.topic, group, revive_queue, offset)
        except Fault as error:
            # More than needed is read after a crash then, and nothing less.
            logger.warning("revive offset not kept: queue=%s reason=%s", revive_queue, error)


def _nobody() -> None:
    """Tell nobody."""
