"""Disks that fail for a moment: what could not be written or read is written or read later."""

from __future__ import annotations

import errno
import random

import pytest

from rocketpost.client import Message
from rocketpost.client.admin import AdminClient
from rocketpost.errors import Fault
from rocketpost.model.topic import TopicConfig
from rocketpost.testing import SimulatedCluster

pytestmark = pytest.mark.slow

NEW = TopicConfig(topic_name="New")


def knowing(cluster: SimulatedCluster) -> set[str]:
    """Return the members that know the new topic."""
    return {
        node
        for node, broker in cluster.brokers.items()
        if NEW.topic_name in broker._context.tables.topics.configs
    }


def test_a_topic_for_which_there_was_no_room_is_written_once_there_is() -> None:
    with SimulatedCluster(nodes=3, seed=1) as cluster:
        leader = cluster.leader()
        assert leader is not None
        disk = cluster.network.machines[leader].disk

        def fault(_number: int, call: str, path: str) -> int | None:
            return errno.ENOSPC if call == "pwrite" and "/commitlog/" in path else None

        async def main() -> None:
            async with cluster.producer() as producer:
                await producer.send(Message("Orders", b"order"))
            async with AdminClient(name_servers=cluster.name_servers) as admin:
                disk.fault = fault
                with pytest.raises(Fault, match="No space left"):
                    await admin.topics.create(cluster.address_of(leader), NEW)
                disk.fault = None

        cluster.run(main())
        assert knowing(cluster) == {leader}
        cluster.run_for(3)
        assert cluster.leader() == leader
        assert knowing(cluster) == set(cluster.nodes)


def test_a_follower_that_cannot_read_a_table_for_a_moment_reads_it_later() -> None:
    with SimulatedCluster(nodes=3, seed=1) as cluster:
        leader = cluster.leader()
        assert leader is not None
        follower = min(set(cluster.nodes) - {leader})
        disk, failed = cluster.network.machines[follower].disk, list[str]()
        rng = random.Random(1)

        def fault(_number: int, call: str, path: str) -> int | None:
            if call != "open" or "/commitlog/" not in path:
                return None
            failed.append(path)
            return errno.EMFILE

        async def main() -> None:
            async with cluster.producer() as producer:
                disk.fault = fault
                for _ in range(8):  # a new segment begins, which no reader has opened yet
                    await producer.send(Message("Orders", rng.randbytes(50_000)))
            async with AdminClient(name_servers=cluster.name_servers) as admin:
                await admin.topics.create(cluster.address_of(leader), NEW)

        cluster.run(main())
        cluster.run_for(3)
        assert failed
        assert follower not in knowing(cluster)
        disk.fault = None
        cluster.run_for(3)
        assert knowing(cluster) == set(cluster.nodes)


def test_a_leader_that_cannot_read_its_log_for_a_moment_sends_it_later() -> None:
    with SimulatedCluster(nodes=3, seed=1) as cluster:
        leader = cluster.leader()
        assert leader is not None
        disk, failed = cluster.network.machines[leader].disk, list[str]()
        rng = random.Random(1)

        def fault(_number: int, call: str, path: str) -> int | None:
            if call != "open" or "/commitlog/" not in path or len(failed) == 5:
                return None
            failed.append(path)
            return errno.EMFILE

        async def main() -> None:
            async with cluster.producer() as producer:
                disk.fault = fault
                for _ in range(8):  # a new segment begins, which no reader has opened yet
                    await producer.send(Message("Orders", rng.randbytes(50_000)))

        cluster.run(main())
        assert len(failed) == 5
        cluster.run_for(3)
        assert cluster.leader() == leader
        ends = {int(each._context.store.end_position) for each in cluster.brokers.values()}
        assert len(ends) == 1
