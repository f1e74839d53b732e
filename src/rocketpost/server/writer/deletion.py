"""Deletion of queues in step with the log writer."""

from __future__ import annotations

from rocketpost.server.writer.log_writer import LogWriter
from rocketpost.store.message_store import MessageStore
from rocketpost.store.topic_deletion import QueueDeletion


class CommitThenDelete:
    """Commits earlier sends before queues are deleted, so that senders learn of a failure."""

    def __init__(self, writer: LogWriter, store: MessageStore) -> None:
        self._writer = writer
        self._store = store

    def delete_queues(self, topic: str) -> QueueDeletion:
        """Delete the queues of a topic.

        Raises:
            StoreError: They cannot be deleted.
        """
        self._writer.commit()
        return self._store.delete_queues(topic)
