"""Actions that a :class:`~rocketpost.raft.node.RaftNode` asks its driver for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rocketpost.raft.messages import Append, MemberRecord, Members, Message, NodeId, TermSpan


@dataclass(frozen=True, slots=True)
class SaveState:
    """Make term and vote durable, then call ``state_saved(number)``.

    The node holds back every message that depends on it until then.
    """

    number: int
    term: int
    vote: NodeId | None


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a peer. It may be lost, delayed or repeated."""

    peer: NodeId
    message: Message


class Ship(NamedTuple):
    """Send bytes of the log to a peer, from ``start`` on, after the head :meth:`head`.

    The driver chooses where the message ends, after ``start`` and at most at ``end``: at the end of
    a record and in the segment of ``start``. It then calls ``shipped(ship, end)``.
    """

    peer: NodeId
    term: int
    start: int
    end: int
    prev_term: int
    spans: tuple[TermSpan, ...]
    members: tuple[MemberRecord, ...]
    commit: int
    suspect: int = 0
    bar: int = 0

    def head(self, end: int) -> Append:
        """Return the message for the bytes ``[start, end)``."""
        assert self.start < end <= self.end
        spans, members = self.spans, self.members
        if end < self.end:
            spans = tuple(span for span in spans if span.start < end)
            members = tuple(record for record in members if record.position <= end)
        return Append(
            self.term,
            self.start,
            self.prev_term,
            end,
            spans,
            members,
            self.commit,
            self.suspect,
            self.bar,
        )


@dataclass(frozen=True, slots=True)
class Accept:
    """Append the bytes ``[start, end)`` that came with the message; then call ``appended(end)``.

    The log ends at ``start`` when this is carried out. The driver keeps ``spans`` and ``members``
    with the log: they are durable before ``persisted`` is called for their bytes. The first span
    may continue the last one of the log.
    """

    start: int
    end: int
    spans: tuple[TermSpan, ...]
    members: tuple[MemberRecord, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """Truncate log, terms and records of members to ``position``; then call ``cut_done``."""

    position: int


@dataclass(frozen=True, slots=True)
class Reset:
    """Replace the whole log by an empty one at ``first``; then call ``reset_done(first)``.

    The driver takes over the leader's tables as of ``first`` before it calls that. Everything
    before ``first`` is committed; no ``Commit`` says so.
    """

    first: int
    spans: tuple[TermSpan, ...]
    members: MemberRecord


@dataclass(frozen=True, slots=True)
class Commit:
    """The log is committed up to ``position``; it never goes back."""

    position: int


@dataclass(frozen=True, slots=True)
class BecomeLeader:
    """This member leads ``term``. :class:`WriteTermRecord` follows."""

    term: int


@dataclass(frozen=True, slots=True)
class BecomeFollower:
    """This member does not lead. ``leader`` is None while no leader is known."""

    term: int
    leader: NodeId | None


@dataclass(frozen=True, slots=True)
class WriteTermRecord:
    """Append a term record of ``term``, then call ``grew``.

    It is the first record of a leader's term. A leader that hears of a suspect member asks for
    another one, which may be written later, among other records, or not at all.
    """

    term: int


@dataclass(frozen=True, slots=True)
class WriteMembers:
    """Append a record of members; then call ``grew(end, members)`` with the end of that record."""

    members: Members


@dataclass(frozen=True, slots=True)
class PauseWrites:
    """Take no new messages: leadership is being handed over to ``to``."""

    to: NodeId


@dataclass(frozen=True, slots=True)
class ResumeWrites:
    """Take messages again: the handover was given up."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """This member is no longer suspect; its log is as good as any."""


Action = (
    SaveState
    | Send
    | Ship
    | Accept
    | Cut
    | Reset
    | Commit
    | BecomeLeader
    | BecomeFollower
    | WriteTermRecord
    | WriteMembers
    | PauseWrites
    | ResumeWrites
    | Cleared
)
"""Anything that a driver carries out."""
