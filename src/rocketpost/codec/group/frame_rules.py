"""Rules for the messages between members of a group: the numbers that are possible in them.

They hold for what is sent and for what arrives (``codec.group.frames``).
"""

from __future__ import annotations

from rocketpost.codec.group.questions import Piece, Question
from rocketpost.model.members import TERM_MAX
from rocketpost.raft.messages import (
    NOTHING_COMPARED,
    Append,
    AppendReply,
    MemberRecord,
    Members,
    Message,
    PreVote,
    PreVoteReply,
    SnapshotOffer,
    TermSpan,
    TimeoutNow,
    Vote,
    VoteReply,
)


def check_message(message: Message | Question | Piece) -> None:
    """Check that the numbers of a message are possible.

    Raises:
        ValueError: They are not.
    """
    _check_term(message.term)
    match message:
        case Append():
            _check_term(message.prev_term)
            prev, end = message.prev, message.end
            _check_positions(prev, end, message.commit, message.suspect, message.bar)
            _check_spans(message.spans, prev, end)
            _check_records(message.members, prev, end)
        case AppendReply():
            _check_positions(message.match, message.suspect, message.prev - NOTHING_COMPARED)
            if message.conflict is not None:
                term, start, end = message.conflict
                _check_term(term)
                _check_positions(start, end)
                if start > end:
                    raise ValueError(f"a conflict from {start} to {end}")
        case PreVote() | Vote():
            _check_term(message.last_term)
            _check_positions(message.end)
        case SnapshotOffer():
            numbers = (message.commit, message.suspect, message.bar)
            _check_positions(message.first, *numbers, message.members.position)
            _check_spans(message.spans, 0, message.first)
            _check_members(message.members.members)
        case PreVoteReply() | VoteReply() | TimeoutNow() | Question() | Piece():
            pass


def _check_term(term: int) -> None:
    if not 0 <= term <= TERM_MAX:
        raise ValueError(f"term {term} is not between 0 and {TERM_MAX}")


def _check_positions(*positions: int) -> None:
    if min(positions) < 0:
        raise ValueError(f"a position is {min(positions)}, which is below 0")


def _check_spans(spans: tuple[TermSpan, ...], begin: int, end: int) -> None:
    if begin > end:
        raise ValueError(f"the body begins at {begin} and ends at {end}")
    last_term, last_start = -1, begin - 1
    for term, start in spans:
        _check_term(term)
        if term <= last_term or not last_start < start < end:
            raise ValueError(f"term {term} at {start} after term {last_term} at {last_start}")
        last_term, last_start = term, start


def _check_records(records: tuple[MemberRecord, ...], begin: int, end: int) -> None:
    last = begin
    for position, members in records:
        if not last < position <= end:
            raise ValueError(f"a configuration at {position} after one at {last}")
        _check_members(members)
        last = position


def _check_members(members: Members) -> None:
    if members.voters & members.learners:
        raise ValueError("a member is both voter and learner")
    if any(not name for name in members.voters | members.learners):
        raise ValueError("a member has no name")
