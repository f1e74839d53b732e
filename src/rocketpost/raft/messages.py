"""Messages between the members of a group, and the values in them.

Every message has the term of its sender, except :class:`PreVote`, whose term is the one that the
sender would campaign in. Positions are positions of the log: "the log up to ``position``". A record
of members becomes valid at the position where it ends.

The two messages that a leader exchanges all the time are tuples, which are made much faster than
frozen data classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

NodeId = str
"""Name of a member, unique in its group for all time."""

NOTHING_COMPARED: Final = -1
"""Value of :attr:`AppendReply.prev` if the reply is not about a comparison of logs."""


class TermSpan(NamedTuple):
    """A run of bytes that leaders of one term wrote: from ``start`` up to the next span."""

    term: int
    start: int


class ConflictSpan(NamedTuple):
    """A follower's bytes of one term, ``[start, end)``, where its log may meet the leader's."""

    term: int
    start: int
    end: int


class Members(NamedTuple):
    """The configuration of a group. Learners get the log, but neither vote nor count."""

    voters: frozenset[NodeId]
    learners: frozenset[NodeId] = frozenset()


class MemberRecord(NamedTuple):
    """A configuration, and the position where the record that states it ends."""

    position: int
    members: Members


@dataclass(frozen=True, slots=True)
class PreVote:
    """Asks whether the receiver would vote for the sender in ``term``; changes nothing.

    Attributes:
        term: The term of the campaign: one more than the sender's.
        end: End of the sender's log.
        last_term: Term of the last byte of the sender's log.
    """

    term: int
    end: int
    last_term: int


@dataclass(frozen=True, slots=True)
class PreVoteReply:
    """Answers a :class:`PreVote`: the campaign's term if granted, else the receiver's own term."""

    term: int
    granted: bool


@dataclass(frozen=True, slots=True)
class Vote:
    """Asks for the receiver's vote in ``term``.

    Attributes:
        term: The term of the campaign.
        end: End of the sender's log.
        last_term: Term of the last byte of the sender's log.
        is_transfer: Whether the leader asked for this campaign; the receiver then votes although
            it hears a leader.
    """

    term: int
    end: int
    last_term: int
    is_transfer: bool = False


@dataclass(frozen=True, slots=True)
class VoteReply:
    """Answers a :class:`Vote`; its state is durable when it is sent."""

    term: int
    granted: bool


class Append(NamedTuple):
    """The leader's statement about its log, with the bytes ``[prev, end)`` if they are not empty.

    Attributes:
        term: The leader's term.
        prev: Position at which the logs are compared.
        prev_term: Term of the byte before ``prev`` in the leader's log; 0 if there is none.
        end: End of the bytes that this message carries; ``prev`` in a heartbeat.
        spans: Terms of these bytes; the first span begins at ``prev``.
        members: Records of members that end in ``(prev, end]``.
        commit: The leader's commit position.
        suspect: Number of the receiver's suspicion, as the leader last heard it; 0 if none.
        bar: End of the leader's log when it first heard of that suspicion.
    """

    term: int
    prev: int
    prev_term: int
    end: int
    spans: tuple[TermSpan, ...] = ()
    members: tuple[MemberRecord, ...] = ()
    commit: int = 0
    suspect: int = 0
    bar: int = 0


class AppendReply(NamedTuple):
    """A follower's statement about its log.

    Attributes:
        term: The follower's term. If it is higher than the leader's, only that matters.
        match: The follower's log is that of the leader, and persisted, up to here.
        prev: The position that was compared; :data:`NOTHING_COMPARED` if the reply only tells
            that the follower is alive, or that it has persisted more.
        conflict: Set if the logs differ at ``prev``: where they may meet.
        suspect: Nonzero while the follower is suspect: it must not be counted.
    """

    term: int
    match: int
    prev: int = NOTHING_COMPARED
    conflict: ConflictSpan | None = None
    suspect: int = 0


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """Asks the receiver to campaign at once: the leader hands over to it."""

    term: int


@dataclass(frozen=True, slots=True)
class SnapshotOffer:
    """Offers a log that begins at ``first``: the receiver needs bytes that the leader has deleted.

    Attributes:
        term: The leader's term.
        first: First position of the leader's log; it is committed.
        spans: Span of the byte before ``first``; empty if there is none or its term is 0.
        members: The configuration that is valid at ``first``.
        commit: The leader's commit position.
        suspect: As in :class:`Append`.
        bar: As in :class:`Append`.
    """

    term: int
    first: int
    spans: tuple[TermSpan, ...]
    members: MemberRecord
    commit: int
    suspect: int = 0
    bar: int = 0


Message = (
    PreVote | PreVoteReply | Vote | VoteReply | Append | AppendReply | TimeoutNow | SnapshotOffer
)
"""Any message of the group."""
