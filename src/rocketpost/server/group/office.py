"""The office of a member: opens a term when it is elected, and closes it when it no longer leads.

The group decides at once; opening and closing a term of office takes a while:

    lead     a term of office as leader is opened, once what the member led before is closed
    follow   the leadership ends in this very call: nothing is appended or acknowledged after it;
             then the term of office is closed, and the log may be changed by the next leader
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rocketpost.codec.bodies.group_status import GroupStatus
from rocketpost.raft.members import MemberChange
from rocketpost.server.group.status import StatusSource
from rocketpost.server.replication.status import ReplicationStatus
from rocketpost.server.writer.log_writer import LogWriter

logger = logging.getLogger(__name__)


class Leadership:
    """The leadership of a group in one term. Owned by the loop.

    Args:
        term: The term.
        committed: Returns the position before which everything is committed.
        note_growth: Sends what was written to the other members.
        source: Knows the state of the group.
    """

    def __init__(
        self,
        term: int,
        *,
        committed: Callable[[], int],
        note_growth: Callable[[], None],
        source: StatusSource,
    ) -> None:
        self.term = term
        self._committed = committed
        self._note_growth = note_growth
        self._source = source
        self._end_reason = ""
        self.writer: LogWriter | None = None
        """The writer that accepts messages; None before it begins and after the leadership."""
        self.hold: Callable[[bool], None] = _hold_nothing
        """Has requests wait during a planned handover, or serves them again if it has failed."""
        self.before_handover: Callable[[], None] = _write_nothing
        """Writes the progress that the next leader should know, before a planned handover."""

    @property
    def committed(self) -> int:
        """Position before which everything is committed."""
        return self._committed()

    @property
    def is_valid(self) -> bool:
        """Whether the leadership has not ended."""
        return not self._end_reason

    def note_growth(self) -> None:
        """Send what was written to the other members."""
        self._note_growth()

    @property
    def status(self) -> Callable[[], ReplicationStatus]:
        """Return the state of replication."""
        return self._source.status

    @property
    def member_status(self) -> Callable[[], GroupStatus]:
        """Return this member's view of its group."""
        return self._source.member_status

    @property
    def hand_over(self) -> Callable[[str], Awaitable[None]]:
        """Let another member lead."""
        return self._source.hand_over

    @property
    def change_members(self) -> Callable[[MemberChange, str], Awaitable[None]]:
        """Change the members by one."""
        return self._source.change_members

    def take(self, writer: LogWriter) -> None:
        """Let a writer accept messages until the leadership ends; it may have ended already."""
        if self._end_reason:
            writer.end_term(self._end_reason)
        else:
            self.writer = writer

    def end(self, reason: str) -> None:
        """End the leadership: the writer appends and acknowledges nothing any more."""
        self._end_reason = reason
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.end_term(reason)


def _hold_nothing(is_held: bool) -> None:
    """Hold no requests: the term of office is not open yet."""


def _write_nothing() -> None:
    """Write nothing: the term of office is not open yet."""


class Office:
    """Opens and closes terms of office as the group decides. Owned by the loop.

    Args:
        lead: Opens a term as leader.
        follow: Closes that term and opens one as follower.
        allow_changes: Called with False when this member begins to lead, and with True when the
            term of office in which it led is closed.
    """

    def __init__(
        self,
        *,
        lead: Callable[[Leadership], Awaitable[None]],
        follow: Callable[[], Awaitable[None]],
        allow_changes: Callable[[bool], None],
    ) -> None:
        self._lead = lead
        self._follow = follow
        self._allow_changes = allow_changes
        self._wanted: Leadership | None = None
        self._served: Leadership | None = None
        self._wake = asyncio.Event()

    @property
    def leadership(self) -> Leadership | None:
        """The leadership that is in force."""
        return self._wanted

    @property
    def writer(self) -> LogWriter | None:
        """The writer that accepts messages, if this member leads and serves."""
        return self._wanted.writer if self._wanted is not None else None

    def lead(self, leadership: Leadership) -> None:
        """Serve clients as the leader, soon."""
        assert self._wanted is None
        self._wanted = leadership
        self._allow_changes(False)
        self._wake.set()

    def follow(self, reason: str) -> None:
        """End the leadership now, if there is one."""
        leadership, self._wanted = self._wanted, None
        if leadership is None:
            return
        logger.warning("leads no more: term=%s reason=%s", leadership.term, reason)
        leadership.end(reason)
        if self._served is None:
            self._allow_changes(True)
        self._wake.set()

    async def run(self) -> None:
        """Open and close terms of office until cancelled.

        Raises:
            StoreError: A term cannot be opened; the broker cannot continue.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._served is self._wanted:
                continue
            if self._served is not None:
                await self._follow()
                self._served = None
                if self._wanted is None:
                    self._allow_changes(True)
            if self._wanted is not None:
                self._served = self._wanted
                await self._lead(self._served)
            self._wake.set()  # the group may have decided otherwise by now
