"""The commit log as a master sends it to slaves."""

from __future__ import annotations

from typing import Final

from rocketpost.replication.sender import MARK_BYTES, stated_bytes
from rocketpost.store.log.segment import SegmentReader
from rocketpost.store.message_store import MessageStore
from rocketpost.transport.tls_socket import StreamSocket, TlsSocket

HOT_BYTES: Final = 16 * 1024 * 1024
"""Bytes before the end of the log that are in memory if they were written in this term."""


class MasterLog:
    """The part of the log that slaves may have: all that is visible to consumers.

    Under SYNC_FLUSH, only bytes on this broker's disk are visible, so a slave never has a message
    that the master loses in a power cut. Each slave's connection has its own object, which holds at
    most one descriptor. Owned by the loop.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._segments = store.segments
        self._written_before = store.written_position
        self._reader: SegmentReader | None = None
        self._announced = 0
        self.view = store.view
        self._view_written = store.wave.view_written
        self.warm_from_thread = store.segments.warm_from_thread

    @property
    def first(self) -> int:
        """Position of the oldest byte kept."""
        return self._store.first_position

    @property
    def end(self) -> int:
        """End of the bytes that slaves may have."""
        return max(self._store.confirmed_position, self._announced)

    def announce(self, end: int) -> None:
        """Note that the log will be visible up to ``end`` before the loop does anything else."""
        self._announced = end

    @property
    def segment_bytes(self) -> int:
        """Size of a segment."""
        return self._segments.segment_bytes

    def send(self, sock: StreamSocket, position: int, size: int) -> int:
        """Send bytes of one segment to a socket; returns how many it took, 0 if there are none.

        What the last commit has written is sent from memory, at half the cost of sending it from
        the file. All else goes from the file to the socket, which costs less than a view of the
        map. The descriptors of older segments may be closed at any time, so such a segment is
        opened anew and kept open until another one is sent. Bytes that must be encrypted come from
        the map.

        Raises:
            OSError: The socket takes nothing now, the connection is lost, or the file cannot be
                opened.
        """
        written = self._view_written(position, size)
        if written is not None:
            return sock.send(written)
        if isinstance(sock, TlsSocket):
            found = self.view(position, size)
            return sock.send(found) if found is not None else 0
        last = self._segments.last
        if last is not None and last.start <= position:
            self.close()
            return last.send(sock.fileno(), position - last.start, size)
        segment = self._segments.find(position)
        if segment is None:
            return 0
        reader = self._reader
        if reader is None or reader.start != segment.start:
            self.close()
            reader = self._reader = segment.reader()
        return reader.send(sock.fileno(), position - segment.start, size)

    def close(self) -> None:
        """Close the file of an older segment that was sent last, if there is one."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

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
