"""Deletion of a topic's queues from the disk: recorded first, then unlinked.

``store.queue.table`` has moved them aside before, and ``store.deleted_topics`` has the deletion.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from rocketpost.errors import StoreError
from rocketpost.store.deleted_topics import DeletedTopics
from rocketpost.store.files import FileSystem
from rocketpost.store.layout import parse_deleted_topic

logger = logging.getLogger(__name__)


class TopicDeleter:
    """Saves deletions and unlinks the files. Thread-safe: one call at a time.

    Args:
        directory: The directory to which the queues of deleted topics were moved.
    """

    def __init__(self, files: FileSystem, directory: str, deleted_topics: DeletedTopics) -> None:
        self._files = files
        self._directory = directory
        self._deleted_topics = deleted_topics
        self._lock = threading.Lock()

    def save_blocking(self) -> None:
        """Make deletions durable, if there are new ones."""
        with self._lock:
            if self._deleted_topics.is_changed:
                self._deleted_topics.save_blocking()

    def unlink_blocking(self) -> None:
        """Unlink the queue files of topics whose deletions are durable.

        For other deletions, the files are the only trace that a start after a crash finds.
        """
        with self._lock:
            for name in self._files.listdir(self._directory):
                parsed = parse_deleted_topic(name)
                if parsed is None or parsed[2] <= self._deleted_topics.saved_serial:
                    self._remove_tree(f"{self._directory}/{name}")

    def _remove_tree(self, path: str) -> None:
        for name in self._files.listdir(path):
            child = f"{path}/{name}"
            found = self._files.stat(child)
            if found is not None and found.is_directory:
                self._remove_tree(child)
            else:
                self._files.unlink(child)
        self._files.rmdir(path)


class QueueDeletion:
    """The rest of the work on disk after ``MessageStore.delete_queues``.

    Args:
        checkpoint: Saves queues, index and checkpoint.
    """

    def __init__(self, deleter: TopicDeleter, *, checkpoint: Callable[[], None]) -> None:
        self._deleter = deleter
        self._checkpoint = checkpoint

    def finish_blocking(self) -> None:
        """Make the deletion durable, then unlink the files. Until then a crash undoes it."""
        self._deleter.save_blocking()
        self._deleter.unlink_blocking()
        try:
            # A checkpoint that counts deleted queues makes a restart read the whole log.
            self._checkpoint()
        except (OSError, StoreError) as error:
            logger.warning("checkpoint not updated after a deletion reason=%s", error)
