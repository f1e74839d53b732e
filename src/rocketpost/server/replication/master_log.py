"""The commit log as a master sends it to slaves."""

from __future__ import annotations

from typing import Final

from rocketpost.replication.sender import MARK_BYTES, stated_bytes
from rocketpost.store.message_store import MessageStore

HOT_BYTES: Final = 16 * 1024 * 1024
"""Bytes before the end of the log that are in memory if they were written in this term."""


class MasterLog:
    """The part of the log that slaves may have: all that is visible to consumers.

    Under SYNC_FLUSH that is what is on this broker's disk. So a slave never has a message that the
    master loses in a power cut. Owned by the loop.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._segments = store.segments
        self._written_before = store.written_position
        self.view = store.view
        self.warm_from_thread = store.segments.warm_from_thread

    @property
    def first(self) -> int:
        """Position of the oldest byte kept."""
        return self._store.first_position

    @property
    def end(self) -> int:
        """End of the bytes that slaves may have."""
        return self._store.confirmed_position

    @property
    def segment_bytes(self) -> int:
        """Size of a segment."""
        return self._segments.segment_bytes

    def is_cached(self, position: int, size: int) -> bool:
        """Tell whether bytes are in memory; True if that is unknown."""
        if position >= self._written_before and position >= self.end - HOT_BYTES:
            return True
        segment = self._segments.find(position)
        if segment is None:
            return True  # the view that follows reports it
        return segment.is_cached(position - segment.start, size)

    def record_bytes(self, position: int) -> int:
        """Return the size of the record or filler at a position; 0 if none begins there."""
        return stated_bytes(self.view(position, MARK_BYTES))
