"""Power cuts of whole groups, and damage that looks like the trace of one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from rocketpost.store.recovery import recovery

from .group import Group
from .servers import Server


def group_with_a_leader(seed: int) -> tuple[Group, Server]:
    """Return a group whose members have the same log, and its leader."""
    group = Group(random.Random(seed), is_harmed=True)
    until(group, lambda: bool(leaders(group)))
    leader = leaders(group)[0]
    acknowledge(group, leader, 5)
    return group, leader


def leaders(group: Group) -> list[Server]:
    return [
        each
        for each in group.servers
        if each.is_leading and each.node.log.terms.term_before(each.node.commit) == each.node.term
    ]


def until(group: Group, is_reached: Callable[[], bool]) -> None:
    for _ in range(400):
        if is_reached():
            return
        for server in group.servers:
            if server.is_up:
                server.tick()
                server.flush()
                group.look(server)
        deliver(group)
    raise AssertionError("this is never reached")


def deliver(group: Group, *, flushes: bool = True) -> None:
    while group.network:
        parcel = group.network.pop(0)
        receiver = group.find(parcel.receiver)
        if receiver.is_up and not {parcel.sender, parcel.receiver} & group.lonely:
            receiver.receive(parcel)
            if flushes:
                receiver.flush()
            group.look(receiver)


def acknowledge(group: Group, leader: Server, count: int) -> None:
    """Have some messages sent and acknowledged."""
    goal = len(group.acknowledged) + count
    while len(group.acknowledged) < goal:
        leader.send(group.world, group.rng)
        leader.flush()
        until(group, lambda: not leader.sent)


def test_a_flipped_bit_in_acknowledged_log_is_no_torn_write(seed: int) -> None:
    """One member has the bit flipped, one is down, and the third one lacks the message."""
    group, leader = group_with_a_leader(seed)
    harmed, behind = (each for each in group.servers if each is not leader)
    for server in group.servers:
        server.save_progress()
        server.save_checkpoint()
    group.lonely = {behind.name}
    acknowledge(group, leader, 1)
    assert group._flip(harmed, group.acknowledged[-1])
    harmed.is_harmed = True
    # The extent file has not reached the disk, so only the record itself tells.
    harmed.stop(harmed.disk.after_power_cut(group.rng, keep=0.0))
    leader.stop(leader.disk.after_kill())
    harmed.start()
    assert harmed.node.is_suspect
    group.lonely = set()
    for _ in range(100):
        for server in (harmed, behind):
            server.tick()
            group.look(server)
        deliver(group)
    assert not harmed.is_leading
    assert not behind.is_leading
    group.heal()
    group.check_end()


def test_that_is_not_noticed_without_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "find_written_end", lambda *_, **__: None)
    with pytest.raises(AssertionError):
        test_a_flipped_bit_in_acknowledged_log_is_no_torn_write(1)


def test_a_group_survives_a_power_cut_of_all_members_with_torn_tails(seed: int) -> None:
    """Torn writes make nobody suspect, so that a leader is elected without a person."""
    assert sum(cut_power_of_all(10 * seed + number) for number in range(5))


def cut_power_of_all(seed: int) -> int:
    """Return how many members had a torn tail; one of them does not come back."""
    group, leader = group_with_a_leader(seed)
    for _ in range(4):
        leader.send(group.world, group.rng)
        deliver(group, flushes=False)
    ends = {each.name: each.node.log.end for each in group.servers}
    torn = 0
    for server in group.servers:
        server.stop(server.disk.after_power_cut(group.rng, keep=0.5))
    for server in group.servers:
        server.start()
        assert not server.node.is_suspect
        torn += server.node.log.end < ends[server.name]
    group.servers[0].stop(group.servers[0].disk.after_kill())
    until(group, lambda: bool(leaders(group)))
    acknowledge(group, leaders(group)[0], 1)
    group.heal()
    group.check_end()
    return torn


def a_damaged_leader_is_not_copied() -> None:
    """Flip a bit at the leader: the member that lacks the message gets it whole, or not at all."""
    group, leader = group_with_a_leader(3)
    behind = next(each for each in group.servers if each is not leader)
    group.lonely = {behind.name}
    acknowledge(group, leader, 1)
    assert group._flip(leader, group.acknowledged[-1])
    group.heal()
    group.check_end()
    assert group.counts["sound records taken"] == 1


def test_a_damaged_leader_is_not_copied() -> None:
    a_damaged_leader_is_not_copied()
