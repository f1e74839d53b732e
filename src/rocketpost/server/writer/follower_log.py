"""The log of a follower: a master's records are appended, shown, and reported as safe.

It takes the place that the log writer has in a leader's term. A stream from the master uses it so:

    check_room   before it connects, and again before each new try: is there room to append?
    append       pass it to ``replication.receiver.LogReceiver``: whole records, as they are
    show         when everything that has arrived is appended; else it happens in the next iteration
    on_advance   is called each time that ``position`` has grown; the stream then reports it to the
                 master, whose senders may wait for that
    position     everything before it is as safe as this follower's settings ask for; it becomes
                 visible before the loop does anything else

Safe means written with ASYNC_FLUSH, and flushed with SYNC_FLUSH. Then a consumer may read the
records, so that held pulls wake here as they do on a leader: ``arrival_listeners`` are called.

**Invariant:** ``position`` never passes what is safe, and is always between two records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from rocketpost.errors import StoreError
from rocketpost.model.ids import Position
from rocketpost.server.writer.log_writer import ArrivalListener
from rocketpost.store.config import FlushMode
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.store.replica.deletions import QueueRestarted, TopicDeletions

logger = logging.getLogger(__name__)


class FollowerStore(Protocol):
    """The part of the store that a follower's log uses."""

    @property
    def refuses_new(self) -> object:
        """Reasons why new messages are refused; empty if none."""

    @property
    def deletions(self) -> TopicDeletions:
        """The deleted topics."""

    @property
    def written_position(self) -> Position:
        """End of the bytes that are in the files."""

    @property
    def durable_position(self) -> Position:
        """End of the bytes that are on disk."""

    @property
    def confirmed_position(self) -> Position:
        """End of the visible messages."""

    def check_writable(self) -> None:
        """Check that new messages are accepted."""

    def append_raw(self, position: Position, data: bytes | memoryview) -> Position:
        """Append records of a leader as they are."""

    def confirm(self, position: Position) -> list[Arrival]:
        """Make every message before a position visible."""

    def request_flush(self) -> None:
        """Ask for a flush of the written bytes soon."""

    def report_to(
        self,
        *,
        on_durable: Callable[[Position], None] = ...,
        on_broken: Callable[[str], None] = ...,
    ) -> None:
        """Replace the receivers of reports."""


class FollowerLog:
    """Appends a master's records to the store. Owned by the loop.

    Args:
        store: The store; nothing else appends to it during a follower's term.
        flush_mode: Whether records must be flushed before they are reported and visible.
    """

    def __init__(self, *, store: FollowerStore, flush_mode: FlushMode) -> None:
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._waits = flush_mode is FlushMode.SYNC_FLUSH
        self._is_scheduled = False
        self._is_open = False
        self._restarted: QueueRestarted | None = None
        self.position = Position(0)
        """The position to report to the master."""
        self.arrival_listeners: Sequence[ArrivalListener] = ()
        """Called with messages that became visible, before ``on_advance``."""
        self.on_advance: Callable[[Position], None] = _nobody
        """Called with ``position`` after it grew."""

    def begin(self) -> None:
        """Start with what the store has, and show all of it that is safe."""
        self._store.report_to(
            on_durable=self._note_durable_from_thread, on_broken=self._note_broken_from_thread
        )
        self._is_open = True
        store = self._store
        self.position = store.durable_position if self._waits else store.written_position
        if self.position > store.confirmed_position:
            store.confirm(self.position)
        if self.position < store.written_position:
            store.request_flush()

    def check_room(self) -> None:
        """Check that records can be appended.

        Raises:
            StoreFull: The disk is full, or nearly; what is stored is served as before.
            StoreBroken: Only a restart helps.
        """
        if self._store.refuses_new:
            self._store.check_writable()

    def append(self, position: int, data: bytes | memoryview) -> Position:
        """Append whole records of one segment; returns the end of the log.

        Args:
            position: Position of the first byte; must be the end of this log.
            data: The master's bytes.

        Raises:
            CorruptRecord: A record is damaged, cut short or out of sequence; nothing was changed.
            StoreError: The records do not belong at the end of the log; nothing was changed.
            StoreFull: There is no room, or hardly any; nothing was changed.
            StoreBroken: Only a restart helps.
        """
        if self._store.refuses_new:
            self._store.check_writable()
        try:
            end = self._store.append_raw(Position(position), data)
        except QueueRestarted as error:
            self._restarted = error
            raise
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.show)
        return end

    async def begin_queue_again(self) -> None:
        """Delete a queue that begins again at offset 0, as its master did.

        Call it before a stream begins, when everything is visible.

        Raises:
            StoreError: It cannot be deleted; no records may be appended before a call succeeds.
        """
        if self._restarted is None:
            return
        rest = self._store.deletions.restart(self._restarted)
        if rest is not None:
            try:
                await asyncio.to_thread(rest.finish_blocking)
            except OSError as error:
                raise StoreError(f"a deleted queue cannot be noted: {error}") from error
        self._restarted = None  # from now on it is durable, and its records may come

    def close(self) -> None:
        """Stop using the store. The next term, or the closing store, shows what is left."""
        if self._is_open:
            self._is_open = False
            self._store.report_to()

    def show(self) -> None:
        """Show what was appended in this iteration, or have it flushed first."""
        if not self._is_scheduled:
            return
        self._is_scheduled = False
        if not self._is_open:
            return
        if self._waits:
            self._store.request_flush()
        else:
            self._advance(self._store.written_position)

    def _advance(self, position: Position) -> None:
        """Report a safe position, then show the messages before it."""
        if position <= self.position or not self._is_open:
            return
        self.position = position
        self.on_advance(position)
        arrivals = self._store.confirm(position)
        if arrivals:
            for listener in self.arrival_listeners:
                listener(arrivals)

    def _note_durable_from_thread(self, position: Position) -> None:
        if not self._waits:
            return
        try:
            self._loop.call_soon_threadsafe(self._advance, position)
        except RuntimeError:
            # The loop is closed: the process is stopping.
            logger.debug("report after the loop closed: position=%s", position)

    def _note_broken_from_thread(self, reason: str) -> None:
        logger.error("no more records of the master can be stored: reason=%s", reason)


def _nobody(position: Position) -> None:
    """Ignore that the position grew: no stream is connected."""
