"""The life of a group: it begins, members come and go, disks are lost, leaders hand over."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from rocketpost.errors import ReplicationError
from rocketpost.raft.members import ChangeKind, MemberChange
from rocketpost.testing.waiting import until

from .group_brokers import NODES, Group, group_of_three
from .test_group import send_to_whoever_leads
from .test_group_tables import commit_offset, offset_of


async def until_sound(group: Group, node: str) -> None:
    """Wait until a member may vote."""
    await until(lambda: not group.member(node).node.is_suspect, seconds=15)


async def until_stored(group: Group, count: int) -> None:
    await until(lambda: len(group.stored) >= count)


async def until_committed(group: Group, leader: str) -> None:
    node = group.member(leader).node
    await until(lambda: node.commit == node.log.end, seconds=15)


async def test_a_new_group_begins_when_all_of_its_members_are_up(tmp_path: Path) -> None:
    group = Group(tmp_path)
    try:
        await group.start(["n0", "n1"])
        n0 = group.member("n0")
        await until(lambda: "n2" in n0.member_status().problem and n0.links.is_up("n1"))
        assert "missing: n2" in n0.member_status().problem
        assert n0.node.is_suspect
        assert n0.node.term == 0
        await group.start(["n2"])
        await group.send(await group.leader(), 5)
        assert n0.member_status().problem == ""
        await group.check()
    finally:
        await group.stop()


async def use_alone(group: Group, node: str) -> None:
    """Let a broker that is in no group take messages with the store of a member to be."""
    await group.start([node], is_alone=True)
    await group.send(node, 20)
    async with group.client(node) as peer:
        await commit_offset(peer, 7)
    await group.stop([node])


@pytest.mark.parametrize("node", NODES)
async def test_a_group_begins_with_the_messages_of_one_member(tmp_path: Path, node: str) -> None:
    group = Group(tmp_path)
    try:
        await use_alone(group, node)
        await group.start()
        assert await group.leader() == node
        await group.send(node, 5)
        await group.check()
        await group.until_equal_tables()
        await group.stop([node])
        leader = await group.leader()
        await group.send(leader, 5)
        await group.check()
        async with group.client(leader) as peer:
            assert await offset_of(peer) == 7
    finally:
        await group.stop()


async def test_a_member_with_messages_of_its_own_does_not_join_a_group_that_has_begun(
    tmp_path: Path,
) -> None:
    async with group_of_three(tmp_path) as group:
        leader = await group.leader()
        await group.send(leader, 10)
        other = next(node for node in NODES if node != leader)
        await group.stop([other])
        group.lose_disk(other)
        stored = dict(group.stored)
        await use_alone(group, other)
        group.stored = stored
        await group.start([other])
        member = group.member(other)
        await until(lambda: "the group has begun without them" in member.member_status().problem)
        end = member.node.log.end
        await group.send(leader, 10)
        assert (member.node.term, member.node.log.end) == (0, end)
        await group.stop([other])
        group.lose_disk(other)
        await group.start([other])
        await until_sound(group, other)
        await group.check()


async def test_a_member_that_lost_its_disk_gets_the_log_before_it_votes(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        leader = await group.leader()
        lost, other = (node for node in NODES if node != leader)
        await group.send(leader, 50)
        await group.stop()
        group.lose_disk(lost)
        await group.start([lost, other])
        node, campaigns = group.member(lost).node, group.member(other).node
        await until(lambda: node.is_suspect and group.member(other).links.is_up(lost))
        ticks = 3 * campaigns._core.config.election_ticks_max
        since = campaigns._core.now
        await until(lambda: campaigns._core.now > since + ticks)
        assert group.serving() == {}, "the other one may lack what the lost one has acknowledged"
        assert node.term == 0
        await group.start([leader])
        await until_sound(group, lost)
        await group.send(await group.leader(), 10)
        await group.check()
        await group.stop([leader])
        await group.send(await group.leader(), 10)
        await group.check()


async def test_leadership_is_handed_over_under_load(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        sender = asyncio.create_task(send_to_whoever_leads(group, itertools.count()))
        for number in range(1, 5):
            await until_stored(group, 10 * number)
            old = await group.leader()
            member = group.member(old)
            to = next(node for node in NODES if node != old)
            term = member.node.term
            await member.hand_over(to)
            assert await group.leader(but=old) == to
            assert group.serving()[to] == term + 1, "the first campaign was enough"
        sender.cancel()
        await asyncio.wait((sender,))
        await group.check()


async def test_a_handover_that_cannot_be_is_refused_and_sends_go_on(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        leader = await group.leader()
        follower, gone = (node for node in NODES if node != leader)
        await group.stop([gone])
        for node, to, words in [
            (leader, gone, "cannot be reached"),
            (leader, leader, "leads already"),
            (leader, "n9", "no voter"),
            (follower, leader, f"does not lead; ask {leader}"),
        ]:
            with pytest.raises(ReplicationError, match=words):
                await group.member(node).hand_over(to)
        await group.start([gone])
        await until(lambda: group.member(leader).links.is_up(gone))
        heal = group.isolate(follower)
        with pytest.raises(ReplicationError, match="did not take over"):
            await group.member(leader).hand_over(follower)
        heal()
        await group.send(await group.leader(), 5)


async def change(group: Group, kind: ChangeKind, node: str, address: str = "") -> None:
    """Change the members, as soon as the leader can."""
    async with asyncio.timeout(15):
        while True:
            leader = await group.leader()
            try:
                await group.member(leader).change_members(MemberChange(kind, node), address)
                break
            except ReplicationError as error:
                if "try again" not in str(error) and "wait for it" not in str(error):
                    raise
                await asyncio.sleep(0.02)
    await until_committed(group, leader)


async def test_members_are_added_and_removed_while_the_group_serves(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        await group.send(await group.leader(), 50)
        address = group.new_member("n3")
        await group.start(["n3"])
        await change(group, ChangeKind.ADD_LEARNER, "n3", address)
        await group.send(await group.leader(), 50)
        await until_sound(group, "n3")
        await change(group, ChangeKind.PROMOTE, "n3")
        await group.check()
        assert group.member("n3").node.members.voters == {*NODES, "n3"}
        leader = await group.leader()
        gone = next(node for node in NODES if node != leader)
        await change(group, ChangeKind.REMOVE, gone)
        await group.stop([gone])
        left = [*(node for node in NODES if node != gone), "n3"]
        await group.send(await group.leader(), 10)
        await group.stop()
        await group.start(left)  # the settings of three members still name the one that is gone
        leader = await group.leader()
        assert group.member(leader).node.members.voters == set(left)
        await group.send(leader, 10)
        await group.check()
        await group.stop([leader])
        await group.send(await group.leader(), 10)
        await group.check()


async def test_a_leader_that_is_removed_steps_down(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        old = await group.leader()
        await group.send(old, 5)
        await group.member(old).change_members(MemberChange(ChangeKind.REMOVE, old))
        new = await group.leader(but=old)
        await until(lambda: old not in group.serving())
        await group.stop([old])
        await group.send(new, 5)
        await group.check()
        assert old not in group.member(new).roster.addresses


async def test_a_member_with_an_impossible_address_harms_no_other(tmp_path: Path) -> None:
    """A request names no such address, but the log may have one of an earlier version."""
    async with group_of_three(tmp_path) as group:
        await change(group, ChangeKind.ADD_LEARNER, "n3", "host..example:40911")
        leader = group.member(await group.leader())
        await until(lambda: "no possible host name" in leader.links.problems.get("n3", ""))
        await group.send(await group.leader(), 5)
        await group.stop()
        await group.start(NODES)
        await group.send(await group.leader(), 5)
        await group.check()
