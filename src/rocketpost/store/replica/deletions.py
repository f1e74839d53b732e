"""Topics that were deleted at the master: their queues are deleted here, too, at the same position.

A follower may learn of a deletion late. By then its queues may have messages of a topic of the same
name that was created again; only the earlier messages go. Offsets are not assigned twice: the
master's queues continue after the deleted ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rocketpost.errors import StoreError
from rocketpost.store.deleted_topics import DeletedTopic
from rocketpost.store.topic_deletion import QueueDeletion

if TYPE_CHECKING:
    from rocketpost.store.parts import StoreParts


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

    def _is_known(self, topic: str, deletion: DeletedTopic) -> bool:
        known = self._parts.deleted_topics
        return known.position(topic) >= deletion.position and all(
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
