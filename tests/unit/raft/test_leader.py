"""Bounds of what a leader sends."""

from __future__ import annotations

from random import Random

from rocketpost.raft.actions import Ship
from rocketpost.raft.config import RaftConfig
from rocketpost.raft.core import Core, Log
from rocketpost.raft.leader import MEMBERS_MAX, SPANS_MAX, Leader
from rocketpost.raft.messages import AppendReply, ConflictSpan, MemberRecord, Members, TermSpan

AB = Members(frozenset("ab"))


def ship_from(start: int, log: Log) -> Ship:
    """Return the first bytes that a leader with a log sends to a peer that has it up to there."""
    core = Core(node="a", config=RaftConfig(), chance=Random(1), term=9999, vote="a", log=log)
    leader = Leader(core)
    leader.begin()
    leader.take_reply("b", AppendReply(9999, 0, log.end, ConflictSpan(0, 0, start)))
    leader.take_reply("b", AppendReply(9999, 0, start))
    (ship,) = (action for action in core.take_actions() if isinstance(action, Ship))
    return ship


def test_a_message_states_a_bounded_number_of_terms() -> None:
    spans = [TermSpan(number + 1, number * 10) for number in range(3000)]
    log = Log(first=0, end=30_000, commit=0, spans=spans, members=[MemberRecord(0, AB)])
    ship = ship_from(0, log)
    assert (ship.end, len(ship.spans)) == (SPANS_MAX * 10, SPANS_MAX)


def test_a_message_states_a_bounded_number_of_configurations() -> None:
    records = [MemberRecord(number * 10, AB) for number in range(100)]
    log = Log(first=0, end=1000, commit=0, spans=[TermSpan(1, 5)], members=records)
    ship = ship_from(0, log)
    assert (ship.end, len(ship.members)) == (MEMBERS_MAX * 10, MEMBERS_MAX)
    assert ship.spans == (TermSpan(0, 0), TermSpan(1, 5))
    assert len(ship.head(45).members) == 4


def persisting_leader(members: Members, acknowledged: dict[str, int]) -> Log:
    """Return the log of a leader that persists 20 bytes after others have acknowledged some."""
    log = Log(first=0, end=0, commit=0, spans=[], members=[MemberRecord(0, members)])
    core = Core(node="a", config=RaftConfig(), chance=Random(1), term=1, vote="a", log=log)
    leader = Leader(core)
    leader.begin()
    leader.grew(30, None)
    for peer, match in acknowledged.items():
        leader.take_reply(peer, AppendReply(1, match, 0))
    assert log.commit == 0
    log.persisted = 20
    leader.persisted()
    return log


def test_the_own_flush_commits_what_other_voters_have() -> None:
    abc = Members(frozenset("abc"))
    assert persisting_leader(abc, {"b": 30}).commit == 20
    assert persisting_leader(abc, {"b": 10, "c": 0}).commit == 10
    assert persisting_leader(abc, {"b": 0, "c": 0}).commit == 0


def test_the_own_flush_commits_at_once_if_there_is_no_other_voter() -> None:
    assert persisting_leader(Members(frozenset("a"), frozenset("b")), {"b": 0}).commit == 20
