"""Topics that were deleted at the master: their queues are deleted here, too, at the same position.

A follower may learn of a deletion late. By then its queues may have messages of a topic of the same
name that was created again; only the earlier messages go. Offsets are not assigned twice: the
master's queues continue after the deleted ones.

A master of RocketMQ tells no position, and begins its queues again at offset 0. Then the first
record with offset 0 shows that the queue before it was deleted: :class:`QueueRestarted`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rocketpost.errors import CorruptRecord, StoreError
from rocketpost.store.deleted_topics import DeletedTopic
from rocketpost.store.topic_deletion import QueueDeletion

if TYPE_CHECKING:
    from rocketpost.store.parts import StoreParts

logger = logging.getLogger(__name__)


class QueueRestarted(CorruptRecord):
    """A record has the offset 0, although its queue has records: the master deleted the queue."""

    def __init__(self, topic: str, queue_id: int, position: int) -> None:
        super().__init__(
            f"the record at {position} begins queue {topic}/{queue_id} again: the master has "
            "deleted its earlier messages"
        )
        self.topic = topic
        self.queue_id = queue_id
        self.position = position


class TopicDeletions:
    """The deleted topics of a store, for its followers or as a follower. Owned by the loop."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts

    @property
    def count(self) -> int:
        """A number that grows with every deletion."""
        return self._parts.deleted_topics.serial

    def snapshot(self) -> dict[str, DeletedTopic]:
        """Return the deletions, by topic."""
        return self._parts.deleted_topics.snapshot()

    def follow(self, master: Mapping[str, DeletedTopic]) -> QueueDeletion | None:
        """Delete the queues of topics that the master has deleted, at the same positions.

        The log must have the records before these positions.

        Returns:
            The rest of the work, for a thread; None if all of them are deleted already.

        Raises:
            StoreError: Queues cannot be moved; they are deleted by the next call.
        """
        new = {topic: each for topic, each in master.items() if not self._is_known(topic, each)}
        if not new:
            return None
        parts = self._parts
        for topic, deletion in new.items():
            try:
                self._delete(topic, deletion)
            except OSError as error:
                raise StoreError(
                    f"the queues of {topic} cannot be moved: {error.strerror}"
                ) from error
        parts.dispatcher.refresh_mark()
        return QueueDeletion(parts.topic_deleter, checkpoint=parts.checkpointer.save_blocking)

    def restart(self, restarted: QueueRestarted) -> QueueDeletion | None:
        """Delete the messages of a queue that begins again, as its master did.

        The log must end at the record that begins it, and all of it must be visible.

        Returns:
            The rest of the work, for a thread; None if the queue is not at that place any more.

        Raises:
            StoreError: Its files cannot be deleted; try again.
        """
        parts, topic, queue_id = self._parts, restarted.topic, restarted.queue_id
        if not parts.dispatcher.position == parts.commit_log.end == restarted.position:
            return None
        queue = parts.queues.get((topic, queue_id))
        try:
            if queue is not None:  # after a crash it is rebuilt, and this is done again
                queue.begin_again()
        except OSError as error:
            raise StoreError(
                f"the queue {topic}/{queue_id} cannot be deleted: {error.strerror}"
            ) from error
        parts.deleted_topics.restart(topic, queue_id, restarted.position)
        parts.queues.count()
        parts.dispatcher.refresh_mark()
        logger.warning(
            "queue begins again at offset 0 topic=%s queue=%s position=%s",
            topic, queue_id, restarted.position,
        )  # fmt: skip
        return QueueDeletion(parts.topic_deleter, checkpoint=parts.checkpointer.save_blocking)

    def _is_known(self, topic: str, deletion: DeletedTopic) -> bool:
        known = self._parts.deleted_topics
        is_old = known.deleted_before(topic) >= deletion.position
        return is_old and all(
            known.next_offset(topic, queue_id) >= offset
            for queue_id, offset in deletion.next.items()
        )

    def _delete(self, topic: str, deletion: DeletedTopic) -> None:
        queues, known = self._parts.queues, self._parts.deleted_topics
        found = queues.of_topic(topic)
        # Later messages may wait to become visible: they have an offset but no entry yet.
        is_over = all(
            queue.last_position < deletion.position and queue.next_offset == queue.end
            for queue in found
        )
        if found and is_over:
            queues.delete(topic, deletion.position)
        known.add(topic, deletion.position, deletion.next, serial=known.serial + 1)
        if not is_over:
            for queue in found:
                queue.raise_first(deletion.position)  # its files are unlinked when they expire
