"""Faults that random schedules have found once, each as a short story."""

from __future__ import annotations

import random

from rocketpost.raft.actions import (
    Accept,
    Action,
    BecomeFollower,
    BecomeLeader,
    Cut,
    Reset,
    SaveState,
    Send,
)
from rocketpost.raft.config import RaftConfig
from rocketpost.raft.messages import (
    Append,
    MemberRecord,
    Members,
    PreVote,
    PreVoteReply,
    SnapshotOffer,
    TermSpan,
    Vote,
    VoteReply,
)
from rocketpost.raft.node import RaftNode

CONFIG = RaftConfig()
PAIR = Members(frozenset("ab"))


def wait(node: RaftNode) -> list[Action]:
    """Let an election time-out pass."""
    return [action for _ in range(CONFIG.election_ticks_max) for action in node.tick()]


def make(members: list[MemberRecord], *, end: int = 0, term: int = 0) -> RaftNode:
    spans = [TermSpan(term, 0)] if end else []
    return RaftNode(
        "a",
        config=CONFIG,
        chance=random.Random(1),
        term=term,
        end=end,
        spans=spans,
        members=members,
    )


def test_a_member_whose_removal_is_not_committed_still_campaigns() -> None:
    """It may be the only one whose log is new enough to be elected."""
    node = make([MemberRecord(0, PAIR), MemberRecord(20, Members(frozenset("b")))], end=20, term=1)
    assert Send("b", PreVote(2, 20, 1)) in wait(node)
    save, *_ = node.step("b", PreVoteReply(2, granted=True))
    assert isinstance(save, SaveState)
    assert Send("b", Vote(2, 20, 1)) in node.state_saved(save.number)
    assert BecomeLeader(2) in node.step("b", VoteReply(2, granted=True))


def test_a_member_that_is_removed_for_good_does_not_campaign() -> None:
    node = make([MemberRecord(0, Members(frozenset("b")))], end=20, term=1)
    assert not any(isinstance(action, Send) for action in wait(node))


def test_a_log_is_replaced_after_its_leader_was_lost() -> None:
    node = make([MemberRecord(0, PAIR)])
    offer = SnapshotOffer(1, 100, (TermSpan(1, 0),), MemberRecord(0, PAIR), 100)
    actions = node.step("b", offer)
    assert any(isinstance(action, Reset) for action in actions)
    wait(node)
    assert not any(isinstance(action, Accept | Send) for action in node.reset_done(100))
    assert (node.log.first, node.commit) == (100, 100)


def test_a_failed_member_keeps_its_votes_to_itself() -> None:
    """A save that succeeds after another write has failed may not have reached the disk."""
    node = make([MemberRecord(0, PAIR)])
    save, *_ = node.step("b", Vote(1, 0, 0))
    assert isinstance(save, SaveState)
    node.failed()
    assert node.state_saved(save.number) == []


def test_a_flush_is_reported_while_a_cut_is_under_way() -> None:
    """It tells about the bytes before the cut only."""
    node = make([MemberRecord(0, PAIR)], end=100, term=1)
    node.step("b", Append(2, 100, 1, 110, (TermSpan(2, 100),)))
    node.appended(110)
    actions = node.step("b", Append(3, 100, 1, 105, (TermSpan(3, 100),)))
    assert Cut(100) in actions
    node.persisted(110, node.cuts)
    assert node.log.persisted == 100
    cuts = node.cuts
    node.cut_done(100)
    node.appended(105)
    node.persisted(105, cuts)
    assert node.log.persisted == 100
    node.persisted(105, node.cuts)
    assert node.log.persisted == 105


def test_a_leader_stops_leading_before_its_log_is_changed() -> None:
    node = make([MemberRecord(0, Members(frozenset("a")))], end=20, term=1)
    actions = wait(node)
    save = next(action for action in actions if isinstance(action, SaveState))
    assert BecomeLeader(2) in node.state_saved(save.number)
    node.grew(30)
    spans = (TermSpan(3, 20),)
    kinds = [type(action) for action in node.step("b", Append(3, 20, 1, 40, spans))]
    assert kinds.index(BecomeFollower) < kinds.index(Cut) < kinds.index(Accept)
