"""State that every role of a member shares: identity, term, vote, log, and the actions to return.

Invariants:

- ``first <= commit <= end`` and ``persisted <= end``; ``commit`` and ``term`` never go back.
- A vote is cast at most once per term.
- No message leaves before the newest term and vote are saved: a message of a term that was
  forgotten could be contradicted after a restart.
- The log is never cut before ``commit``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from rocketpost.raft.actions import Action, Commit, SaveState, Send
from rocketpost.raft.config import Chance, RaftConfig
from rocketpost.raft.members import MemberTable
from rocketpost.raft.messages import MemberRecord, Members, Message, NodeId, TermSpan
from rocketpost.raft.terms import TermTable

HELD_MAX: Final = 1000
"""Most messages that wait for a state to be saved; if there are more, the oldest are dropped."""


class Log:
    """Positions, terms and members of a log whose bytes the driver keeps.

    Attributes:
        first: Position of the first byte that is kept.
        end: End of the log.
        persisted: Everything before is as safe as an acknowledgement asks for.
        commit: Everything before is committed, as far as known.
        terms: Terms of the bytes.
        members: Configurations.
        cuts: Rises whenever bytes are about to be replaced, and when they were.
        floor: End of the messages from before the group, which one member has brought; 0 if none
            has. A log that has no term is not elected before it has all of them.
    """

    def __init__(
        self,
        *,
        first: int,
        end: int,
        commit: int,
        spans: Iterable[TermSpan],
        members: Iterable[MemberRecord],
        floor: int = 0,
    ) -> None:
        assert 0 <= first <= end
        self.first = first
        self.end = end
        self.persisted = end
        self.commit = max(first, min(commit, end))
        self.terms = TermTable(spans)
        self.members = MemberTable(members)
        self.terms.cut(end)
        self.members.cut(end)
        self.cuts = 0
        self.floor = floor

    @property
    def last_term(self) -> int:
        """Term of the last byte."""
        return self.terms.last_term

    def extend(self, end: int, spans: Iterable[TermSpan], members: Iterable[MemberRecord]) -> None:
        """Note that bytes were appended, up to ``end``."""
        assert end >= self.end
        for span in spans:
            if span.start < end and span.term:
                self.terms.add(span)
        for record in members:
            if self.end < record.position <= end:
                self.members.add(record)
        self.end = end

    def cut(self, position: int) -> None:
        """Note that the log ends at a position before its end."""
        assert self.commit <= position < self.end, f"cut at {position}, committed {self.commit}"
        self.cuts += 1
        self.end = position
        self.persisted = min(self.persisted, position)
        self.terms.cut(position)
        self.members.cut(position)

    def reset(self, first: int, spans: Iterable[TermSpan], members: MemberRecord) -> None:
        """Note that the log was replaced by an empty one at ``first``."""
        assert first >= self.commit, f"reset to {first}, committed {self.commit}"
        self.cuts += 1
        self.first = self.end = self.persisted = self.commit = first
        self.terms = TermTable(spans)
        self.members = MemberTable([members])

    def trim(self, first: int) -> None:
        """Note that bytes before ``first`` were deleted."""
        assert self.first <= first <= self.commit, f"trimmed to {first}, committed {self.commit}"
        self.first = first
        self.terms.trim(first)
        self.members.trim(first)

    def is_behind(self, last_term: int, end: int) -> bool:
        """Tell whether a log with this end is newer than this one, or as new (Raft, 5.4.1)."""
        own = self.end if self.last_term else max(self.end, self.floor)
        return (last_term, end) >= (self.last_term, own)


class Core:
    """State that all roles share. Belongs to the node."""

    def __init__(
        self,
        *,
        node: NodeId,
        config: RaftConfig,
        chance: Chance,
        term: int,
        vote: NodeId | None,
        log: Log,
    ) -> None:
        self.node = node
        self.config = config
        self.chance = chance
        self.term = max(term, log.last_term)
        self.vote = vote if self.term == term else None
        self.log = log
        self.now = 0
        self.number = 0
        self.saved = 0
        self._held: deque[tuple[int, Send]] = deque(maxlen=HELD_MAX)
        self._actions: list[Action] = []
        self._changed_at: int | None = None
        self._is_unsaved = False
        if self.term > term:
            self._save()

    @property
    def members(self) -> Members:
        """The valid configuration."""
        return self.log.members.latest

    @property
    def is_voter(self) -> bool:
        """Whether this member votes in the valid configuration."""
        return self.node in self.members.voters

    @property
    def may_be_needed(self) -> bool:
        """Whether this member may have to lead: it is a voter, or its removal is not committed.

        A member that has the record of its own removal may be the only one with a log that is new
        enough to be elected (Raft thesis, 4.2.2). Its own vote does not count then. A member that
        lacks messages from before the group is not needed.
        """
        log = self.log
        if not log.is_behind(log.last_term, log.end):
            return False
        return self.is_voter or self.node in log.members.at(log.commit).members.voters

    @property
    def peers(self) -> list[NodeId]:
        """All other members, in order of their names."""
        return sorted((self.members.voters | self.members.learners) - {self.node})

    def draw_timeout(self) -> int:
        """Return after how many ticks of silence to campaign."""
        return self.chance.randint(self.config.election_ticks, self.config.election_ticks_max)

    def do(self, action: Action) -> None:
        """Ask the driver for an action."""
        self._actions.append(action)

    def note_change(self) -> None:
        """Remember that the actions from here on are those of another role or term."""
        if self._changed_at is None:
            self._changed_at = len(self._actions)

    def announce(self, action: Action) -> None:
        """Ask for an action before those of the new role: a leader writes to the log itself."""
        at = len(self._actions) if self._changed_at is None else self._changed_at
        self._actions.insert(at, action)

    def send(self, peer: NodeId, message: Message) -> None:
        """Send a message, once the newest state is saved."""
        send = Send(peer, message)
        if self.saved < self.number:
            self._held.append((self.number, send))
        else:
            self._actions.append(send)

    def set_term(self, term: int, vote: NodeId | None) -> None:
        """Enter a term, or vote in the present one; the driver saves that."""
        assert term >= self.term
        assert term > self.term or self.vote in (None, vote), "a vote is never changed"
        if (term, vote) == (self.term, self.vote):
            return
        self.term, self.vote = term, vote
        self._save()

    def _save(self) -> None:
        if not self._is_unsaved:
            self._is_unsaved = True
            self.number += 1

    def state_saved(self, number: int) -> None:
        """Release the messages that waited for a state."""
        assert number <= self.number
        self.saved = max(self.saved, number)
        while self._held and self._held[0][0] <= self.saved:
            self._actions.append(self._held.popleft()[1])

    def commit_to(self, position: int) -> None:
        """Commit up to a position, if that is higher than before."""
        assert position <= self.log.end
        if position > self.log.commit:
            self.log.commit = position
            self.do(Commit(position))

    def take_actions(self) -> list[Action]:
        """Return the actions since the last call."""
        actions, self._actions = self._actions, []
        self._changed_at = None
        if self._is_unsaved:
            self._is_unsaved = False
            actions.insert(0, SaveState(self.number, self.term, self.vote))
        return actions
