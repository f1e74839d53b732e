"""Records that a leader writes for its group: terms, and changes of members."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from rocketpost.errors import ReplicationError, RocketpostError, StoreError
from rocketpost.raft.actions import Action
from rocketpost.raft.election import Role
from rocketpost.raft.messages import Members
from rocketpost.raft.node import RaftNode
from rocketpost.server.group.member_log import MemberLog
from rocketpost.server.group.office import Office
from rocketpost.server.group.roster import Roster
from rocketpost.store.draft import Appended

logger = logging.getLogger(__name__)


class OwnRecords:
    """Writes the records of a leader. Owned by the loop.

    Args:
        node: The state machine.
        log: This member's log.
        office: Knows the writer, if this member serves as leader.
        roster: The members of the group.
        carry_out: Carries out actions of the state machine.
    """

    def __init__(
        self,
        node: RaftNode,
        log: MemberLog,
        *,
        office: Office,
        roster: Roster,
        carry_out: Callable[[Sequence[Action]], None],
    ) -> None:
        self._node = node
        self._log = log
        self._office = office
        self._roster = roster
        self._carry_out = carry_out
        self._owes_term = False
        self._writing: Members | None = None

    def write_term(self, term: int) -> None:
        """Begin a term with its record, or write another one into a term that has begun."""
        if self._log.last_term < term:
            logger.info("elected: term=%s", term)
            self._log.write_term(
                term, is_leading=self._leads, done=self._note_term, refused=self._step_down
            )
        else:
            self._owes_term = True
            self.repeat_term()

    def repeat_term(self) -> None:
        """Write an outstanding term record through the log writer, once there is one."""
        writer = self._office.writer
        if not self._owes_term or writer is None or writer.is_paused:
            return
        self._owes_term = False
        try:
            writer.put([self._log.draft_of_term()]).add_done_callback(_note_stored)
        except StoreError as error:
            logger.warning("no term record: reason=%s", error)

    def write_members(self, members: Members) -> bool:
        """Write a record of members, alone, so that its end is known; tells whether it is written.

        The state machine is told in both cases.
        """
        writer = self._office.writer
        try:
            if writer is None:
                raise ReplicationError("this member does not lead any more")
            described = self._roster.describe(members)
            writer.commit()
            done = writer.put([self._log.draft_of_members(described)])
            done.add_done_callback(_note_stored)
            self._writing = members
            writer.commit()
        except RocketpostError as error:
            logger.warning("members are not changed: reason=%s", error)
            self._writing = members
        if self._writing is not None:
            self._writing = None
            self._carry_out(self._node.members_refused())
            return False
        self._roster.note([self._log.configuration(described)])
        return True

    def take_written(self) -> Members | None:
        """Return the members that the record at the end of the log states, if it states any."""
        members, self._writing = self._writing, None
        return members

    def _leads(self, term: int) -> bool:
        return self._node.role is Role.LEADER and self._node.term == term

    def _note_term(self, end: int) -> None:
        self._carry_out(self._node.grew(end))

    def _step_down(self) -> None:
        self._carry_out(self._node.step_down())


def _note_stored(done: asyncio.Future[list[Appended]]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        logger.warning("a record of the group may not be kept: reason=%s", error)
