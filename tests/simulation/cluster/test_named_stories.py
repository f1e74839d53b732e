"""Stories of simulated clusters by which planted bugs are found; see ``chaos.test_named_bugs``."""

from __future__ import annotations

import asyncio

import pytest

from rocketpost.client import Message
from rocketpost.client.admin import AdminClient
from rocketpost.testing import SimulatedCluster

pytestmark = pytest.mark.slow


async def send(cluster: SimulatedCluster, count: int, topic: str = "Orders") -> None:
    async with cluster.producer() as producer:
        for number in range(count):
            await producer.send(Message(topic, b"order %d" % number))


def the_next_leader_is_found() -> None:
    """Cut the leader off: name servers give its place to the next one, and clients find that."""
    with SimulatedCluster(nodes=3, seed=2) as cluster:
        first = cluster.leader()
        assert first is not None
        cluster.partition(first, cluster.nodes)  # clients and name server still reach it
        cluster.run_for(10)
        second = cluster.leader()
        assert second not in (None, first)
        assert second is not None
        assert cluster.brokers[second].unregistered == []


def queues_of(cluster: SimulatedCluster, node: str, topic: str) -> dict[str, bytes]:
    part = f"/consumequeue/{topic}/"
    return {path: data for path, data in cluster.files(node).items() if part in path}


def deleted_topics_are_equal() -> None:
    """Delete a topic and use it again: every member shows the messages sent since."""

    async def story(cluster: SimulatedCluster) -> None:
        await send(cluster, 5)
        async with AdminClient(name_servers=cluster.name_servers) as admin:
            leader = cluster.leader()
            assert leader is not None
            await admin.topics.delete("Orders", [cluster.address_of(leader)])
        await send(cluster, 7)
        await asyncio.sleep(65)

    with SimulatedCluster(nodes=3, seed=6) as cluster:
        cluster.run(story(cluster))
        found = []
        for broker in cluster.brokers.values():
            queues = broker._context.store.queues_of("Orders")
            found.append({each.queue_id: (each.first, each.end) for each in queues})
        assert found[0] == found[1] == found[2]
        assert sum(end - first for first, end in found[0].values()) == 7


def test_the_next_leader_is_found() -> None:
    the_next_leader_is_found()


def test_deleted_topics_are_equal() -> None:
    deleted_topics_are_equal()
