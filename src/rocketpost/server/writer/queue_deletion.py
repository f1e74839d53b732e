"""Deletion of a topic's queues while messages are being written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from rocketpost.store.message_store import MessageStore


class UnfinishedDeletion(Protocol):
    """Deleted queues whose files are still on disk."""

    def finish_blocking(self) -> None:
        """Make this and all earlier deletions durable."""
        ...


class QueueDeleter(Protocol):
    """Deletes the queues of topics."""

    async def delete_queues(self, topic: str) -> UnfinishedDeletion:
        """Delete the queues of a topic.

        Raises:
            StoreError: They cannot be deleted.
        """
        ...


class _NothingLeft:
    def finish_blocking(self) -> None:
        """Do nothing: there were no queues."""


NOTHING_LEFT: Final[UnfinishedDeletion] = _NothingLeft()
"""The deletion of queues that did not exist."""


def _no_sends() -> None:
    """Write nothing: this broker accepts no sends."""


class CommitThenDelete:
    """Commits earlier sends before queues are deleted, so that senders learn of a failure.

    Args:
        store: The store.
        commit: Writes earlier sends; a follower has none.
    """

    def __init__(self, store: MessageStore, *, commit: Callable[[], None] = _no_sends) -> None:
        self._store = store
        self._commit = commit

    async def delete_queues(self, topic: str) -> UnfinishedDeletion:
        """Delete the queues of a topic before anything else happens on the loop.

        Raises:
            StoreError: They cannot be deleted.
        """
        self._commit()
        return self._store.delete_queues(topic)
