"""A member's log: the group's view of the store.

A follower appends and cuts here as the state machine asks. Most appends happen at once. These wait:

- an append that begins a new term, until a thread has saved the term table;
- a cut, which a thread carries out;
- both, until the term of office in which this broker led is closed (``allow_changes``).

If the disk is full, a follower makes its leader send the bytes again after a pause, a cut is tried
again, and a new leader steps down. All of them continue when there is room. After any other failed
write, the member takes no part until a restart.

The order of changes is that of the calls. The leader's own messages are appended by the log writer;
only the record that begins its term is appended here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from rocketpost.errors import StoreBroken, StoreError, StoreFull
from rocketpost.kernel.record_scan import record_starts
from rocketpost.model.clock import Clock
from rocketpost.model.ids import Position
from rocketpost.model.members import Configuration, Member
from rocketpost.server.writer.log_writer import ArrivalListener
from rocketpost.store.config import FlushMode
from rocketpost.store.descriptors import may_pass
from rocketpost.store.draft import Draft
from rocketpost.store.member.group_records import draft_members, draft_term
from rocketpost.store.member.member_store import MemberStore

logger = logging.getLogger(__name__)

BATCH_BYTES_MAX: Final = 2 * 1024 * 1024
"""Bytes of the log in one message, unless a single record is larger."""
_NO_LIMIT: Final = 2**31 - 1
_RETRY_SECONDS: Final = 1.0
"""Time until the next try of an append or a cut for which there was no room.

A leader sends refused bytes again as soon as it can, and with them all that fit in its window.
"""

Span = tuple[int, int]
"""A term and the position of its first byte."""


class MemberLog:
    """The log of one member. Owned by the loop.

    Args:
        member: The store.
        node: Id of this member.
        host: Packed address of this broker, for records that it writes itself.
        clock: The clock.
        flush_mode: Whether bytes must be flushed before they count.
        on_safe: Called when :attr:`safe_position` may have risen.
        on_failed: Called with the reason when nothing can be written any more.
    """

    def __init__(
        self,
        member: MemberStore,
        *,
        node: str,
        host: bytes,
        clock: Clock,
        flush_mode: FlushMode,
        on_safe: Callable[[], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._member = member
        self._store = member.store
        self._node = node
        self._host = host
        self._clock = clock
        self._flushes = flush_mode is FlushMode.SYNC_FLUSH
        self._on_safe = on_safe
        self._on_failed = on_failed
        self._waiting: deque[Callable[[], Awaitable[None] | None]] = deque()
        self._work: asyncio.Task[None] | None = None
        self._may_change = True
        self._is_open = False
        self._closing = asyncio.Event()
        self._is_safe_scheduled = False
        self._awaits_flush = True
        self._problem = ""
        self._committed = self._store.confirmed_position
        self.arrival_listeners: Sequence[ArrivalListener] = ()
        """Called with messages that became visible while this broker does not lead."""

    # Positions.

    @property
    def first(self) -> int:
        """Position of the oldest byte kept."""
        return self._store.first_position

    @property
    def end(self) -> int:
        """End of the written bytes."""
        return self._store.written_position

    @property
    def safe_position(self) -> int:
        """Position before which everything is as safe as an acknowledgement asks for."""
        return self._store.durable_position if self._flushes else self._store.written_position

    @property
    def committed(self) -> int:
        """Position before which everything is committed, as far as this member knows."""
        return self._committed

    @property
    def last_term(self) -> int:
        """Newest term that has begun in the log, or is about to."""
        spans = self._member.spans
        return spans[-1].term if spans else 0

    # Life.

    def begin(self) -> None:
        """Start to hear the store's reports."""
        self._is_open = True
        self._store.report_to(
            on_durable=self._note_durable_from_thread, on_broken=self._note_broken_from_thread
        )

    async def close(self) -> None:
        """Finish a change that is under way, drop the others, and stop using the store."""
        self._is_open = False
        self._closing.set()
        self._waiting.clear()
        if self._work is not None:
            await asyncio.wait((self._work,))
        self._store.report_to()

    def allow_changes(self, is_allowed: bool) -> None:
        """Allow appends and cuts, or make them wait: this broker still serves as a leader."""
        self._may_change = is_allowed
        self._advance()

    # Reading.

    def batch_end(self, start: int, limit: int) -> int:
        """Return the end of the bytes to send from ``start`` on: whole records of one segment."""
        segment_bytes = self._store.config.segment_bytes
        limit = min(limit, start - start % segment_bytes + segment_bytes)
        if limit - start <= BATCH_BYTES_MAX:
            return limit
        view = self.view(start, limit)
        if view is None:
            return start
        starts, end = record_starts(view, 0, count_max=_NO_LIMIT, bytes_max=BATCH_BYTES_MAX)
        if not starts:
            return limit  # only the filler of the segment is left
        fits = starts[-1] if end > BATCH_BYTES_MAX and len(starts) > 1 else end
        return start + fits

    def view(self, start: int, end: int) -> memoryview | None:
        """Return bytes of the log without a copy; None if they are not there or not readable.

        A file that is not mapped yet cannot be read while descriptors have run out.
        """
        try:
            return self._store.view(start, end - start)
        except OSError as error:
            logger.warning("the log cannot be sent now: position=%s reason=%s", start, error)
            return None

    # Changes.

    def write_term(
        self,
        term: int,
        *,
        is_leading: Callable[[int], bool],
        done: Callable[[int], None],
        refused: Callable[[], None],
    ) -> None:
        """Append the record that begins a term, if this member still leads that term then.

        Args:
            term: The term.
            is_leading: Tells whether this member leads a term.
            done: Called with the end of the record.
            refused: Called instead if there is no room for the record.
        """
        self._change(lambda: self._write_term(term, is_leading, done, refused))

    def draft_of_term(self) -> Draft:
        """Return a record of the term that this member leads."""
        term, start = self._member.spans[-1]
        now_ms = self._clock.now_ms()
        return draft_term(term, self._node, start=start, host=self._host, now_ms=now_ms)

    def draft_of_members(self, members: tuple[Member, ...]) -> Draft:
        """Return a record that states the members of the group."""
        return draft_members(members, host=self._host, now_ms=self._clock.now_ms())

    def configuration(self, members: tuple[Member, ...]) -> Configuration:
        """Return the configuration that the last record of the log states."""
        return Configuration(self.end, members)

    def append(
        self, start: int, data: bytes, spans: Sequence[Span], done: Callable[[int], None]
    ) -> None:
        """Append bytes of the leader's log; ``done`` gets the end of the log.

        That is ``start``, after a pause, if the bytes are damaged or there is no room; the leader
        sends them again.
        """
        self._change(lambda: self._append(start, data, spans, done))

    def cut(self, position: int, done: Callable[[int], None]) -> None:
        """Cut the log at a position; ``done`` gets that position."""
        self._change(lambda: self._cut(position, done))

    def forget_terms(self) -> None:
        """Forget the terms of bytes that have been deleted."""
        self._change(self._forget_terms)

    def commit(self, position: int) -> None:
        """Note that the log is committed up to a position."""
        self._committed = max(self._committed, Position(position))

    def allow_reading(self) -> Position:
        """Let readers see what is committed and written; returns the end of that."""
        store = self._store
        position = min(self._committed, store.written_position)
        if position > (store.ceiling or 0):
            store.set_ceiling(position)
        return position

    def show(self) -> None:
        """Show what is committed and written, unless the log is being changed."""
        if self._work is not None:
            return
        store = self._store
        position = self.allow_reading()
        if position <= store.confirmed_position:
            return
        arrivals = store.confirm(position)
        if arrivals:
            for listener in self.arrival_listeners:
                listener(arrivals)

    def _change(self, step: Callable[[], Awaitable[None] | None]) -> None:
        self._waiting.append(step)
        self._advance()

    def _advance(self) -> None:
        """Carry out the changes that are next, as far as they need no thread."""
        while self._is_open and self._may_change and self._work is None and self._waiting:
            rest = self._waiting.popleft()()
            if rest is not None:
                self._work = self._loop.create_task(self._finish(rest), name="change of the log")

    async def _finish(self, rest: Awaitable[None]) -> None:
        try:
            await rest
        except (StoreError, OSError) as error:
            self._fail(str(error))
        finally:
            self._work = None
        self.show()
        self._advance()

    def _append(
        self, start: int, data: bytes, spans: Sequence[Span], done: Callable[[int], None]
    ) -> Awaitable[None] | None:
        if self._member.knows_terms(spans):
            return self._write(start, data, done)
        return self._append_term(start, data, spans, done)

    async def _append_term(
        self, start: int, data: bytes, spans: Sequence[Span], done: Callable[[int], None]
    ) -> None:
        try:
            await asyncio.to_thread(self._member.note_terms_blocking, spans)
        except OSError as error:
            if not may_pass(error):
                raise
            await self._refuse(start, error, done)
            return
        refusal = self._write(start, data, done)
        if refusal is not None:
            await refusal

    def _write(
        self, start: int, data: bytes, done: Callable[[int], None]
    ) -> Awaitable[None] | None:
        try:
            # Also on a disk that is nearly full: a leader moves messages out of its oldest segment
            # and deletes it, and only then may this member delete it.
            end = self._store.append_raw(Position(start), data)
        except StoreBroken as error:
            self._fail(str(error))
            return None
        except StoreError as error:
            return self._refuse(start, error, done)
        self._problem = ""
        done(end)
        self._pursue()
        self.show()
        return None

    async def _refuse(
        self, start: int, error: StoreError | OSError, done: Callable[[int], None]
    ) -> None:
        """Log, once, why bytes are not appended, and have them sent again after a pause."""
        if str(error) != self._problem:
            self._problem = str(error)
            logger.error("the leader's log cannot be appended: reason=%s", error)
        if not await self._is_closed_soon():
            done(start)

    async def _is_closed_soon(self) -> bool:
        """Pause before something is tried again; return whether the log is being closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RETRY_SECONDS):
                await self._closing.wait()
        return self._closing.is_set()

    async def _write_term(
        self,
        term: int,
        is_leading: Callable[[int], bool],
        done: Callable[[int], None],
        refused: Callable[[], None],
    ) -> None:
        store = self._store
        assert store.end_position == store.written_position
        start = store.end_position
        try:
            await asyncio.to_thread(self._member.note_terms_blocking, [(term, start)])
            if not is_leading(term):
                return  # the next append replaces the span, which has no bytes
            store.append(self.draft_of_term())
            end = store.commit()
        except (OSError, StoreFull) as error:
            if isinstance(error, OSError) and not may_pass(error):
                raise
            logger.error("this member cannot lead: term=%s reason=%s", term, error)
            refused()
            return
        done(end)
        self._pursue()

    async def _forget_terms(self) -> None:
        try:
            await asyncio.to_thread(self._member.forget_terms_blocking)
        except OSError as error:
            if not may_pass(error):
                raise
            # They do no harm, and are forgotten with those of the next segment.
            logger.warning("terms of deleted bytes are kept for now: reason=%s", error)

    async def _cut(self, position: int, done: Callable[[int], None]) -> None:
        logger.warning(
            "the end of the log differs from the leader's and is cut off: position=%s end=%s",
            position, self.end,
        )  # fmt: skip
        while not await self._is_cut(position):
            if await self._is_closed_soon():
                return  # the next start compares the logs again
        self._problem = ""
        done(position)

    async def _is_cut(self, position: int) -> bool:
        """Cut the log; False if there is no room for that now."""
        try:
            await asyncio.to_thread(self._member.cut_blocking, position)
        except StoreFull as error:
            if str(error) != self._problem:
                self._problem = str(error)
                logger.error("the log is cut when there is room: reason=%s", error)
            return False
        return True

    # Reports.

    def note_growth(self) -> None:
        """Note that the log writer has written; it asks for the flush itself."""
        if not self._flushes:
            self._report_safe()

    def await_flush(self, is_awaited: bool) -> None:
        """Choose whether the end of a flush is reported at once, or noticed with the next event.

        A leader whose log is safe before that of any other member has nothing to do yet, and each
        report of the flusher's thread would wake the loop.
        """
        was_awaited, self._awaits_flush = self._awaits_flush, is_awaited
        if is_awaited and not was_awaited:
            self._on_safe()  # a flush may have ended since

    def _pursue(self) -> None:
        """Request a flush of the written bytes, or report them at once if no flush is needed."""
        if self._flushes:
            self._store.request_flush()
        else:
            self._report_safe()

    def _report_safe(self) -> None:
        self._is_safe_scheduled = False
        if self._is_open:
            self._on_safe()

    def _fail(self, reason: str) -> None:
        if self._is_open:
            self._waiting.clear()
            self._on_failed(reason)

    def _note_durable_from_thread(self, position: Position) -> None:
        if self._flushes and self._awaits_flush and not self._is_safe_scheduled:
            self._is_safe_scheduled = True
            self._call_from_thread(self._report_safe)

    def _note_broken_from_thread(self, reason: str) -> None:
        self._call_from_thread(self._fail, reason)

    def _call_from_thread(self, method: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(method, *arguments)
        except RuntimeError:
            # The loop is closed: the process is stopping.
            logger.debug("report after the loop closed: %s%s", method.__name__, arguments)
