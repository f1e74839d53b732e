"""A member's view of its leader: compare logs, cut, append, acknowledge.

Invariants:

- A follower acknowledges only what it has persisted and knows to be equal to the leader's log.
- Its log up to ``commit`` is that of every later leader (Leader Completeness), so it is never
  compared again, and never cut.
- At most one of append, cut and reset is under way. Until the driver has carried it out, messages
  with bytes are dropped, and the member does not campaign: its log is about to change. Afterwards
  it asks the leader at once for the dropped bytes.
- A *suspect* member has lost bytes that it had acknowledged. It neither votes nor campaigns, and no
  leader counts it, until its log has passed the end that the leader's log had when the leader
  learned of the suspicion. Then it has everything again that it can have acknowledged: nothing that
  it had acknowledged to anybody was after that end. If it has lost its term and vote too, the
  leader must also have committed, without it, bytes that were written later: a candidate that it
  may have voted for lacks these, and so cannot win.
"""

from __future__ import annotations

from enum import Enum

from rocketpost.errors import ReplicationError
from rocketpost.raft.actions import Accept, Cleared, Cut, Reset
from rocketpost.raft.core import Core
from rocketpost.raft.messages import (
    NOTHING_COMPARED,
    Append,
    AppendReply,
    ConflictSpan,
    NodeId,
    SnapshotOffer,
    TermSpan,
)
from rocketpost.raft.terms import TermTable


class Suspicion(Enum):
    """The losses that a member may have had since it last ran."""

    NONE = "nothing"
    LOG = "acknowledged bytes of its log"
    STATE = "its term and vote, and bytes of its log"


class Follower:
    """State of following, kept through all roles. Belongs to the node.

    Attributes:
        leader: The leader of the present term; None if unknown.
        suspect: Number of this process's suspicion; 0 if the member is sound.
    """

    def __init__(self, core: Core, suspicion: Suspicion) -> None:
        self._core = core
        self._log = core.log
        self.leader: NodeId | None = None
        self.suspect = 0
        self._has_lost_state = False
        self._bar: int | None = None
        self.doubt(suspicion)
        self._matched = 0
        self._leader_commit = 0
        self._cut: Cut | None = None
        self._accept: Accept | None = None
        self._accept_term = 0
        self._reset: Reset | None = None
        self._dropped = 0

    @property
    def is_busy(self) -> bool:
        """Whether the log is about to change."""
        return any((self._cut, self._accept, self._reset))

    @property
    def acknowledged(self) -> int:
        """Position up to which the leader may count on this member."""
        return min(self._matched, self._log.persisted)

    def begin(self, leader: NodeId | None) -> None:
        """Follow a leader of the present term, or none."""
        self.leader = leader
        self._bar = None
        self._matched = self._log.commit
        self._leader_commit = 0
        self._dropped = 0

    def doubt(self, suspicion: Suspicion) -> None:
        """Become suspect, if there is a reason; a suspect member may have lost still more."""
        if suspicion is not Suspicion.NONE:
            self.suspect = self._core.chance.getrandbits(62) + 1
            self._bar = None
            self._has_lost_state = self._has_lost_state or suspicion is Suspicion.STATE

    def trust(self) -> None:
        """End the suspicion: the group is new."""
        self.suspect = 0

    # Messages of the leader.

    def take_append(self, message: Append) -> None:
        """Compare logs; append, cut, or say where the logs may meet.

        Raises:
            ReplicationError: The leader's log contradicts what is committed here.
        """
        self._hear_about_suspicion(message)
        self._leader_commit = max(self._leader_commit, message.commit)
        if self.is_busy:
            if message.end > message.prev:
                self._dropped = max(self._dropped, message.prev)
            self._reply()
            return
        if message.prev >= self._log.commit and not self._agrees(message):
            self._reject(message)
            return
        self._matched = max(self._matched, min(message.prev, self._log.end))
        if message.end > message.prev:
            self._take_bytes(message)
        if not self.is_busy:
            self._advance()
            self._reply(message.prev)

    def _agrees(self, message: Append) -> bool:
        if message.prev > self._log.end:
            return False
        return self._log.terms.term_before(message.prev) == message.prev_term

    def _reject(self, message: Append) -> None:
        log = self._log
        if message.prev == log.commit:
            term = log.terms.term_before(log.commit)
            raise ReplicationError(
                f"the leader has term {message.prev_term} before the position {message.prev}, but"
                f" term {term} is committed there: one of the two logs is damaged"
            )
        conflict = log.terms.conflict(message.prev, message.prev_term, log.end)
        self._reply(message.prev, conflict=conflict)

    def _take_bytes(self, message: Append) -> None:
        log = self._log
        start = max(message.prev, log.commit)
        common_end = min(message.end, log.end)
        divergence = None
        if start < common_end:
            divergence = log.terms.divergence(message.spans, start, common_end)
        if divergence is not None:
            log.cut(divergence)
            self._matched = min(self._matched, divergence)
            self._cut = Cut(divergence)
            self._core.do(self._cut)
        if message.end > log.end:
            self._accept = Accept(
                log.end,
                message.end,
                _from(message, log.end),
                tuple(record for record in message.members if record.position > log.end),
            )
            self._accept_term = self._core.term
            self._core.do(self._accept)
        else:
            self._matched = max(self._matched, message.end)

    def take_offer(self, message: SnapshotOffer) -> None:
        """Replace the log by the leader's if they have no position in common."""
        self._hear_about_suspicion(message)
        if self.is_busy:
            self._reply()
            return
        if message.first <= self._log.commit or self._has(message):
            self._matched = max(self._matched, message.first)
            self._reply()
            return
        self._reset = Reset(message.first, message.spans, message.members)
        self._core.do(self._reset)
        self._reply()

    def _has(self, message: SnapshotOffer) -> bool:
        if message.first > self._log.end or not message.spans:
            return False
        return self._log.terms.term_before(message.first) == message.spans[-1].term

    # Reports of the driver.

    def appended(self, end: int) -> None:
        """Note that bytes were appended, up to ``end``."""
        accept = self._accept
        assert accept is not None, "nothing was to be appended"
        assert self._cut is None, "cut first"
        assert accept.start <= end <= accept.end
        self._accept = None
        self._log.extend(end, accept.spans, accept.members)
        if self._accept_term == self._core.term and self.leader is not None:
            self._matched = max(self._matched, end)
        self._advance()
        self._ask_again()

    def cut_done(self, position: int) -> None:
        """Note that the log was cut."""
        assert self._cut is not None, "nothing was to be cut"
        assert self._cut.position == position
        self._cut = None
        self._log.cuts += 1
        self._ask_again()

    def reset_done(self, first: int) -> None:
        """Note that the log was replaced."""
        reset = self._reset
        assert reset is not None, "nothing was to be reset"
        assert reset.first == first
        self._reset = None
        self._log.reset(first, reset.spans, reset.members)
        self._matched = max(self._matched, first)
        if self.leader is not None:
            self._reply()

    def persisted(self) -> None:
        """Acknowledge the bytes that have become safe."""
        self._advance()
        if self.leader is not None:
            self._reply()

    # Replies.

    def _ask_again(self) -> None:
        """Ask at once for the bytes that were dropped while the log was busy."""
        if self.is_busy or self.leader is None:
            return
        position, self._dropped = self._dropped, 0
        if position > self._log.end:
            conflict = self._log.terms.conflict(position, self._core.term, self._log.end)
            self._reply(position, conflict)

    def _advance(self) -> None:
        if self.leader is None:
            return
        self._core.commit_to(min(self._leader_commit, self._matched))
        self._clear()

    def _hear_about_suspicion(self, message: Append | SnapshotOffer) -> None:
        if self.suspect and message.suspect == self.suspect:
            self._bar = message.bar

    def _clear(self) -> None:
        if not self.suspect or self._bar is None or self.acknowledged < self._bar:
            return
        if self._has_lost_state and self._log.commit <= self._bar:
            return
        self.suspect = 0
        self._has_lost_state = False
        self._core.do(Cleared())

    def _reply(self, prev: int = NOTHING_COMPARED, conflict: ConflictSpan | None = None) -> None:
        assert self.leader is not None
        reply = AppendReply(self._core.term, self.acknowledged, prev, conflict, self.suspect)
        self._core.send(self.leader, reply)


def _from(message: Append, start: int) -> tuple[TermSpan, ...]:
    """Return the spans of a message's bytes from a position on; bytes of term 0 have none."""
    spans = message.spans
    if start > message.prev:
        spans = TermTable(span for span in spans if span.term).between(start, message.end)
    return spans if spans[0].term else spans[1:]
