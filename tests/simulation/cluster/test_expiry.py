"""Segments of a group that expire while they have messages to be delivered later."""

from __future__ import annotations

import asyncio
import random

import pytest

from rocketpost.client import Message
from rocketpost.testing import SimulatedCluster

pytestmark = pytest.mark.slow

SETTINGS = {"fileReservedTime": "1", "deleteWhen": "02"}
"""Segments expire after an hour, and are deleted between two and three o'clock."""
HOUR = 3600.0


def firsts(cluster: SimulatedCluster) -> dict[str, int]:
    """Return where the log of each member begins."""
    return {
        node: int(broker._context.store.first_position) for node, broker in cluster.brokers.items()
    }


async def send(cluster: SimulatedCluster, *, count: int = 15) -> None:
    """Send a message that is due long after its segment has expired, and fill some segments."""
    rng = random.Random(1)
    async with cluster.producer() as producer:
        await producer.send(Message("Later", b"due", delay_seconds=3 * HOUR))
        await asyncio.sleep(5)
        for _ in range(count):
            await producer.send(Message("Orders", rng.randbytes(50_000)))


async def receive(cluster: SimulatedCluster) -> list[bytes]:
    found: list[bytes] = []
    consumer = cluster.consumer()
    consumer.subscribe("Later", lambda message: found.append(message.body))
    async with consumer:
        await asyncio.sleep(30)
    return found


def test_a_follower_deletes_nothing_before_its_leader_has() -> None:
    """Only a leader can move messages out of a segment that is deleted."""
    with SimulatedCluster(nodes=3, seed=1, settings=SETTINGS) as cluster:
        cluster.run(send(cluster))
        old = cluster.leader()
        assert old is not None
        for node in set(cluster.nodes) - {old}:
            cluster.jump_clock(node, 1.75 * HOUR)  # from a quarter past midnight
        cluster.run_for(90)  # a round of cleaning, at least
        cluster.kill(old)  # it has not moved the message
        cluster.jump_clock(old, 1.75 * HOUR)
        cluster.run_for(5)
        cluster.start()
        cluster.run(cluster.ready())
        cluster.run_for(90)
        begins, leader = firsts(cluster), cluster.leader()
        assert leader is not None
        assert begins[leader] > 0, "it has moved the message"
        assert sorted(begins.values())[1] > 0, "and then others delete the segment"
        assert max(begins.values()) == begins[leader]
        for node in cluster.nodes:
            cluster.jump_clock(node, 2 * HOUR)
        assert cluster.run(receive(cluster)) == [b"due"]


def test_members_whose_disks_are_nearly_full_make_room_together() -> None:
    """The leader moves messages, and says so in its log, before any of them can delete a file."""
    with SimulatedCluster(nodes=3, seed=1, settings=SETTINGS) as cluster:
        cluster.run(send(cluster, count=60))
        cluster.run_for(10)
        for node in cluster.nodes:
            used = cluster.network.machines[node].disk.usage("/").used_bytes
            cluster.fill_disk(node, free_bytes=used * 7 // 93)
        cluster.run_for(120)
        assert min(firsts(cluster).values()) > 0
        for node in cluster.nodes:
            cluster.jump_clock(node, 3 * HOUR)
        assert cluster.run(receive(cluster)) == [b"due"]
