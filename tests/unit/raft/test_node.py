"""Whole groups: elections, replication, loss of members and messages."""

from __future__ import annotations

import random

import pytest

from rocketpost.raft.actions import Send
from rocketpost.raft.config import RaftConfig
from rocketpost.raft.follower import Suspicion
from rocketpost.raft.messages import MemberRecord, Members, PreVote, PreVoteReply, Vote
from rocketpost.raft.node import RaftNode, Role

from .group import Group


def test_a_group_elects_one_leader_and_commits_on_all() -> None:
    group = Group()
    group.run(40)
    leader = group.leader
    group.send(leader.node, 3)
    group.settle()
    group.run(3)
    assert [member.node.commit for member in group.alive if member.node] == [40, 40, 40]


def test_the_leader_that_returns_gives_up_what_was_not_committed() -> None:
    group = Group()
    group.elect("a")
    group.isolate("a")
    group.send("a", 2)
    group.run(60)
    assert group["a"].role is not Role.LEADER
    new = group.leader
    assert new.node != "a"
    group.send(new.node)
    group.heal()
    group.run(60)
    logs = [member.disk.records for member in group.members.values()]
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.parametrize("suspicion", [Suspicion.LOG, Suspicion.STATE])
def test_a_member_that_learns_of_a_loss_is_repaired_before_it_votes(suspicion: Suspicion) -> None:
    group = Group()
    group.elect("a")
    group.send("a", 2)
    group.settle()
    group.isolate("b")
    group.members["b"].call(lambda node: node.doubt(suspicion))
    group.run(60)
    assert group["b"].is_suspect
    assert group["b"].role is Role.FOLLOWER
    group.heal()
    group.run(60)
    assert not group["b"].is_suspect


def new_member(*, end: int, floor: int) -> RaftNode:
    members = [MemberRecord(0, Members(frozenset("abc"), frozenset()))]
    chance = random.Random(1)
    return RaftNode("b", config=RaftConfig(), chance=chance, end=end, members=members, floor=floor)


@pytest.mark.parametrize("end", [0, 30])
def test_nobody_without_the_messages_from_before_the_group_is_elected(end: int) -> None:
    node = new_member(end=end, floor=40)
    for _ in range(100):
        assert node.role is Role.FOLLOWER
        assert not any(isinstance(action, Send) for action in node.tick())
    for candidate, sent, is_granted in [("a", 30, False), ("c", 40, True)]:
        reply = PreVoteReply(1 if is_granted else 0, is_granted)
        assert node.step(candidate, PreVote(1, sent, 0)) == [Send(candidate, reply)]
    for candidate, sent, vote in [("a", 30, None), ("c", 40, "c")]:
        node.step(candidate, Vote(1, sent, 0, is_transfer=False))
        assert node.vote == vote


def test_who_brings_messages_from_before_the_group_is_elected_by_members_without() -> None:
    node = new_member(end=40, floor=40)
    sent = [action for _ in range(30) for action in node.tick()]
    assert Send("a", PreVote(1, 40, 0)) in sent


def test_a_log_of_any_term_has_the_messages_from_before_the_group() -> None:
    node = new_member(end=0, floor=40)
    assert not node.log.is_behind(0, 30)
    assert node.log.is_behind(1, 30)


def test_a_leader_that_learns_of_a_loss_steps_down() -> None:
    group = Group()
    group.elect("a")
    group.send("a", 2)
    group.settle()
    group.members["a"].call(lambda node: node.doubt(Suspicion.LOG))
    assert group["a"].role is Role.FOLLOWER
    group.run(60)
    assert group.leader.node != "a"
    assert not group["a"].is_suspect


def test_a_leader_that_steps_down_takes_part_as_before() -> None:
    group = Group()
    group.elect("a")
    group.send("a", 2)
    group.settle()
    term = group["a"].term
    group.members["a"].call(lambda node: node.step_down())
    assert group["a"].role is Role.FOLLOWER
    group.run(60)
    assert group.leader.term > term
    leader, term = group.leader.node, group.leader.term
    follower = next(name for name in group.members if name != leader)
    group.members[follower].call(lambda node: node.step_down())
    group.run(60)
    assert (group.leader.node, group.leader.term) == (leader, term), "it has nothing to give up"


@pytest.mark.parametrize("seed", range(60))
def test_random_schedules(seed: int) -> None:
    """A few random lives; the simulation tests have many more."""
    chance = random.Random(seed)
    group = Group("a b c" if seed % 2 else "a b c d e", seed=seed)
    group.ship_bytes = chance.choice([10, 30, 1000])
    for _ in range(600):
        happening = chance.random()
        if happening < 0.5:
            group.tick(chance.choice(list(group.members)))
        elif group.network:
            envelope = chance.choice(group.network)
            if chance.random() < 0.1:
                group.network.remove(envelope)
            else:
                group.deliver(envelope)
                if chance.random() < 0.05:
                    group.network.append(envelope)
        name = chance.choice(list(group.members))
        member = group.members[name]
        if member.node is None:
            if chance.random() < 0.05:
                member.start()
        elif chance.random() < 0.005:
            member.crash(power=chance.random() < 0.5)
        elif member.node.role is Role.LEADER and chance.random() < 0.3:
            group.send(name)
        elif chance.random() < 0.1:
            member.saves_at_once = chance.random() < 0.5
            member.flushes_at_once = chance.random() < 0.5
            member.changes_at_once = chance.random() < 0.7
            member.call(member.save)
            member.call(member.change)
            member.call(member.flush)
    for member in group.members.values():
        member.saves_at_once = member.flushes_at_once = member.changes_at_once = True
        if member.node is None:
            member.start()
        member.call(member.save)
        member.call(member.change)
        member.call(member.flush)
    group.run(150)
    assert len({member.node.commit for member in group.alive if member.node}) == 1
    assert group.leader.commit == group.leader.log.end > 0
