"""A member whose whole store is replaced by an older copy: its peers tell it what it has lost."""

from __future__ import annotations

import asyncio

import pytest

from rocketpost.client import Message
from rocketpost.server.group.life import past
from rocketpost.testing import SimulatedCluster
from rocketpost.testing.sim.machine import MachineDisk

pytestmark = pytest.mark.slow


async def send(cluster: SimulatedCluster, count: int, *, pause: float = 0.0) -> None:
    async with cluster.producer() as producer:
        for number in range(count):
            await producer.send(Message("Orders", b"order %d" % number))
            await asyncio.sleep(pause)


def restore_old_copy(cluster: SimulatedCluster, node: str, *, seconds: float = 0.0) -> None:
    """Take a copy of a member's disk, use the cluster, and put the copy in the disk's place."""
    machine = cluster.network.machines[node]
    old = machine.disk.copy()
    cluster.run(send(cluster, 30))
    cluster.run_for(seconds)
    cluster.kill(node)
    machine.disk.take_over(old)
    cluster.start(node)


def follower_of(cluster: SimulatedCluster) -> str:
    return next(node for node in cluster.nodes if node != cluster.leader())


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_an_old_copy_makes_a_member_suspect_until_it_is_repaired(seconds: float) -> None:
    with SimulatedCluster(nodes=3, seed=3) as cluster:
        cluster.run(send(cluster, 5))
        node = follower_of(cluster)
        restore_old_copy(cluster, node, seconds=seconds)
        cluster.run_for(0.5)
        member = cluster.brokers[node].group
        assert member is not None
        assert "remembers more" in member.member_status().suspicions[0]
        cluster.run_for(5)
        status = member.member_status()
        assert not status.is_suspect
        assert not member._store.state.suspect
        cluster.kill(next(each for each in cluster.nodes if each not in (node, cluster.leader())))
        cluster.run(send(cluster, 5))  # it counts again


def test_a_repaired_member_is_not_suspect_again_when_a_link_is_made_anew() -> None:
    """Its peers still remember the disk before. With one of them gone, the group needs it."""
    with SimulatedCluster(nodes=3, seed=3) as cluster:
        cluster.run(send(cluster, 5, pause=1.0))  # promises are saved once a second
        node = follower_of(cluster)
        machine = cluster.network.machines[node]
        for disk in (machine.disk, MachineDisk(machine)):
            cluster.kill(node)
            machine.disk.take_over(disk)
            cluster.start(node)
            cluster.run(cluster.ready())
            cluster.run_for(2)
        cluster.kill(next(each for each in cluster.nodes if each not in (node, cluster.leader())))
        cluster.run(send(cluster, 1))  # it was repaired, and counts
        cluster.partition(node)
        cluster.run_for(8)
        cluster.heal()
        cluster.run(cluster.ready())
        member = cluster.brokers[node].group
        assert member is not None
        assert not member.member_status().is_suspect
        cluster.run(send(cluster, 1))


def test_a_member_that_was_merely_restarted_is_not_suspect() -> None:
    with SimulatedCluster(nodes=3, seed=4) as cluster:
        for node in cluster.nodes:
            cluster.run(send(cluster, 5))
            cluster.power_cut(node)
            cluster.run_for(3)
            cluster.start(node)
            cluster.run(cluster.ready())
            cluster.run_for(3)
            member = cluster.brokers[node].group
            assert member is not None
            assert not member.member_status().suspicions


def test_without_the_rule_it_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "find_loss", lambda *_: None)
    with SimulatedCluster(nodes=3, seed=3) as cluster:
        cluster.run(send(cluster, 5))
        node = follower_of(cluster)
        restore_old_copy(cluster, node)
        cluster.run_for(0.5)
        member = cluster.brokers[node].group
        assert member is not None
        assert not member.member_status().suspicions
