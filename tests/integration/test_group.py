"""A group of three brokers that elects its leader: real sockets, real files, one process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.record import pack_host
from rocketpost.errors import ClientError, OutcomeUnknown
from rocketpost.raft.messages import Vote
from rocketpost.server.term import LeaderTerm
from rocketpost.store.draft import Draft

from .group_brokers import NODES, TOPIC, Group, group_of_three
from .replicas import name_server

HOST = pack_host("10.0.0.1", 10911)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_a_leader_is_elected_and_every_member_gets_what_it_acknowledges(
    tmp_path: Path, flush: str
) -> None:
    async with group_of_three(tmp_path, flushDiskType=flush) as group:
        leader = await group.leader()
        await group.send(leader, 300)
        assert list(group.serving()) == [leader]
        await group.check()
        assert len(group.stored) == 300


async def test_another_member_leads_when_the_leader_stops_and_it_comes_back(
    tmp_path: Path,
) -> None:
    async with group_of_three(tmp_path) as group:
        first = await group.leader()
        await group.send(first, 50)
        await group.stop([first])
        second = await group.leader()
        assert second != first
        await group.send(second, 50)
        await group.start([first])
        await group.check()
        assert len(group.stored) == 100
        assert list(group.serving()) == [second], "a member that returns disturbs nobody"


async def test_a_leader_that_is_cut_off_acknowledges_nothing_and_loses_its_tail(
    tmp_path: Path,
) -> None:
    async with group_of_three(tmp_path, slaveTimeout=60_000) as group:
        old = await group.leader()
        await group.send(old, 20)
        heal = group.isolate(old)
        async with group.client(old) as peer:
            lost = [asyncio.create_task(peer.send(TOPIC, b"lost %d" % n)) for n in range(5)]
            new = await group.leader(but=old)
            await group.send(new, 20)
            for answer in await asyncio.gather(*lost):
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert "may or may not be stored" in (answer.remark or "")
            answer = await peer.send(TOPIC, b"late")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        tail = group.servers[old]._context.store.written_position
        heal()
        await group.send(new, 1)
        await group.check()
        assert len(group.stored) == 41
        assert group.servers[old]._context.store.written_position != tail
        assert list(group.serving()) == [new]


async def test_the_whole_group_stops_and_starts_with_everything(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        await group.send(await group.leader(), 30)
        await group.stop(NODES)
        await group.start()
        await group.send(await group.leader(), 30)
        await group.check()
        assert len(group.stored) == 60


async def test_a_minority_serves_nobody(tmp_path: Path) -> None:
    async with group_of_three(tmp_path, slaveTimeout=200) as group:
        leader = await group.leader()
        others = [node for node in NODES if node != leader]
        await group.send(leader, 5)
        await group.stop(others)
        async with group.client(leader) as peer:
            answer = await peer.send(TOPIC, b"lonely")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            while (answer := await peer.send(TOPIC, b"lonely")).code == ResponseCode.SYSTEM_ERROR:
                pass
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert group.serving() == {}
        await group.start(others)
        await group.send(await group.leader(), 5)
        await group.check()


async def test_name_servers_know_the_leader_as_id_0_in_every_term(tmp_path: Path) -> None:
    async with (
        name_server(tmp_path) as address,
        group_of_three(tmp_path, namesrvAddr=address) as group,
    ):
        first = await group.leader()
        await group.until_registered(address, first)
        await group.stop([first])
        second = await group.leader()
        await group.until_registered(address, second)
        await group.start([first])
        await group.until_registered(address, second)


async def test_a_leader_that_stops_answers_everybody_and_hands_over(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        first = await group.leader()
        await group.send(first, 5)
        term = group.serving()[first]
        async with group.client(first) as peer:
            sends = [asyncio.create_task(peer.send(TOPIC, b"last %d" % n)) for n in range(50)]
            await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
            await group.stop([first])
            answers = [await send for send in sends]
        stored = [answer for answer in answers if answer.code == ResponseCode.SUCCESS]
        refused = [answer.code for answer in answers if answer.code != ResponseCode.SUCCESS]
        assert set(refused) <= {ResponseCode.SERVICE_NOT_AVAILABLE}, "no outcome is unknown"
        second = await group.leader()
        assert group.serving()[second] == term + 1, "the first campaign was enough"
        await group.send(second, 1)
        found = await group.bodies(second)
        assert {int(answer.fields["queueOffset"]) for answer in stored} <= found.keys()
        await group.check()


async def test_what_is_appended_in_the_turn_of_the_end_is_known_to_the_group(
    tmp_path: Path,
) -> None:
    async with group_of_three(tmp_path) as group:
        first = await group.leader()
        await group.send(first, 5)
        server = group.servers[first]
        member, term = server.group, server._term
        assert member is not None
        assert isinstance(term, LeaderTerm)
        node = member.node
        stored = term._sends.writer.put([Draft(TOPIC, 0, 0, 0, 0, HOST, HOST, 0, 0, b"last", b"")])
        peer = next(each for each in NODES if each != first)
        member._receive(peer, Vote(node.term + 1, 2**40, node.term, is_transfer=True), b"")
        assert member.member_status().role == "FOLLOWER"
        assert node.log.end == server._context.store.written_position
        with pytest.raises(OutcomeUnknown):
            await stored
        await group.send(await group.leader(), 5)
        await group.check()


async def send_to_whoever_leads(group: Group, numbers: Iterator[int]) -> None:
    """Send messages one after another until cancelled; note those that are acknowledged."""
    while True:
        body = b"number %d" % next(numbers)
        for node in list(group.servers):
            with contextlib.suppress(ClientError, OSError):
                async with asyncio.timeout(5), group.client(node) as peer:
                    answer = await peer.send(TOPIC, body)
                if answer.code == ResponseCode.SUCCESS:
                    offset = int(answer.fields["queueOffset"])
                    assert offset not in group.stored, "two messages at one offset"
                    group.stored[offset] = body
                    break
        await asyncio.sleep(0.002)


async def harm(group: Group, chance: random.Random) -> None:
    """Cut members off and stop them, one at a time, and let them come back."""
    node = chance.choice(NODES)
    if chance.random() < 0.6:
        node = next(iter(group.serving()), node)
    pause = chance.choice([0.05, 0.3, 1.2])
    if chance.random() < 0.5:
        heal = group.isolate(node)
        await asyncio.sleep(pause)
        heal()
    else:
        await group.stop([node])
        await asyncio.sleep(pause)
        await group.start([node])
    await asyncio.sleep(chance.choice([0, 0.2, 1.5]))


async def live_through_faults(root: Path, seed: int, faults: int) -> None:
    chance, numbers = random.Random(seed), itertools.count()
    async with group_of_three(root, slaveTimeout=300, flushDiskType="SYNC_FLUSH") as group:
        await group.leader()
        senders = [asyncio.create_task(send_to_whoever_leads(group, numbers)) for _ in range(4)]
        for _ in range(faults):
            await harm(group, chance)
        for sender in senders:
            assert not sender.done() or sender.exception() is None
            sender.cancel()
        await asyncio.wait(senders)
        await group.leader()
        await group.send(await group.leader(), 1, start=next(numbers))
        await group.check()


async def test_faults_one_after_another(tmp_path: Path) -> None:
    await live_through_faults(tmp_path, seed=7, faults=2)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
async def test_many_faults_one_after_another(tmp_path: Path, seed: int) -> None:
    await live_through_faults(tmp_path, seed, faults=12)
