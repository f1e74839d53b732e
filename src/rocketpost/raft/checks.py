"""Checks of a peer's messages: those that no correct member sends, and those of an older term."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rocketpost.errors import ReplicationError
from rocketpost.raft.messages import (
    Append,
    AppendReply,
    MemberRecord,
    Message,
    PreVote,
    PreVoteReply,
    SnapshotOffer,
    TermSpan,
    Vote,
    VoteReply,
)


def check_message(message: Message) -> None:
    """Check that the parts of a message are consistent.

    Raises:
        ReplicationError: They are inconsistent; close the link.
    """
    if isinstance(message, Append):
        _check_append(message)
    elif isinstance(message, SnapshotOffer):
        _check_offer(message)


def outdated_reply(message: Message, term: int) -> Message | None:
    """Return the answer to a message of an older term; it states the present term."""
    match message:
        case Append() | SnapshotOffer():
            return AppendReply(term, 0)
        case PreVote():
            return PreVoteReply(term, granted=False)
        case Vote():
            return VoteReply(term, granted=False)
    return None


def _check_append(message: Append) -> None:
    _require(0 <= message.prev <= message.end, message, "its positions are out of order")
    _check_spans(message, message.spans)
    if message.prev == message.end:
        _require(not message.spans and not message.members, message, "it states no bytes' terms")
        return
    spans = message.spans
    _require(bool(spans) and spans[0].start == message.prev, message, "terms of bytes are missing")
    _require(spans[0].term >= message.prev_term, message, "its terms go back")
    _require(spans[-1].start < message.end, message, "a term begins behind its end")
    if message.members:
        _check_members(message, message.members)


def _check_offer(message: SnapshotOffer) -> None:
    _require(0 <= message.first <= message.commit, message, "its first position is not committed")
    _check_spans(message, message.spans)
    if message.spans:
        _require(message.spans[-1].start < message.first, message, "a term begins behind its end")
    is_known = message.members.position <= message.first
    _require(is_known, message, "its members are not valid at its first position")


def _check_spans(message: Append | SnapshotOffer, spans: Sequence[TermSpan]) -> None:
    if not spans:
        return
    _require(spans[-1].term <= message.term, message, "it has bytes of a later term")
    is_ordered = all(one.term < two.term and one.start < two.start for one, two in pairwise(spans))
    _require(is_ordered, message, "its terms are out of order")


def _check_members(message: Append, records: Sequence[MemberRecord]) -> None:
    positions = [message.prev, *(record.position for record in records)]
    is_ordered = all(one < two for one, two in pairwise(positions)) and positions[-1] <= message.end
    _require(is_ordered, message, "its records of members are out of order")


def _require(is_true: bool, message: Append | SnapshotOffer, reason: str) -> None:
    if not is_true:
        raise ReplicationError(f"a leader's message cannot be right: {reason}: {message}")
