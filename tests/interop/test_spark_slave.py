"""Spark's reads from a slave of Apache's (``readFrom``), whatever the target is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.servers import SMALL_STORE, Cluster, ask_cluster_info
from interop.topics import fill
from rocketpost.client import MessageQueue, PullConsumer
from rocketpost.client.consumer.fetch import Replica
from rocketpost.errors import RocketpostError
from rocketpost.spark.broker_session import BrokerSession
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.records.chunk import find_records
from rocketpost.spark.source.plan import Range
from rocketpost.testing.process import free_port

pytestmark = [pytest.mark.interop, pytest.mark.long]

TOPIC, COUNT = "Copied", 600
SECONDS_MAX = 120.0


def settings(role: str, broker_id: int) -> dict[str, str]:
    more = {"brokerRole": role, "brokerId": str(broker_id), "haListenPort": str(free_port())}
    # Otherwise a slave refuses every pull as one that is too busy.
    return SMALL_STORE | more | {"slaveReadEnable": "true"}


@pytest.fixture
def master(java: None, tmp_path: Path) -> Iterator[Cluster]:
    # Our own name server spares a JVM.
    with Cluster(
        tmp_path / "master",
        "apache",
        settings=settings("ASYNC_MASTER", 0),
        namesrv_maker="rocketpost",
    ) as cluster:
        yield cluster


@pytest.fixture
def slave(master: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(
        tmp_path / "slave",
        "apache",
        settings=settings("SLAVE", 1),
        namesrv_port=master.namesrv_port,
    )
    try:
        cluster.start_broker()
        until = time.monotonic() + SECONDS_MAX
        while cluster.broker.encode() not in ask_cluster_info(master.namesrv_port):
            assert time.monotonic() < until, "the slave never registered"
            time.sleep(0.1)
        yield cluster
    finally:
        cluster.close()


def wait_until_copied(master: Cluster, ranges: list[Range]) -> None:
    """Return when the slave has every message."""

    async def has(consumer: PullConsumer, wanted: Range) -> bool:
        key = wanted.queue
        queue = MessageQueue(key.broker, key.queue_id, key.topic)
        try:
            pulled = await consumer.pull_raw(
                queue, wanted.end - 1, count_max=1, bytes_max=1 << 20, replica=Replica.SLAVE
            )
        except RocketpostError:
            return False  # it does not know the topic yet
        return pulled.next_offset == wanted.end

    async def wait() -> None:
        until = time.monotonic() + SECONDS_MAX
        async with PullConsumer("waiting", name_servers=master.namesrv) as consumer:
            while not all([await has(consumer, each) for each in ranges]):
                assert time.monotonic() < until, "the slave never had everything"
                await asyncio.sleep(0.2)

    asyncio.run(wait())


def test_messages_of_a_slave_are_read_while_its_master_is_gone(
    master: Cluster, slave: Cluster
) -> None:
    fill(master, TOPIC, COUNT)
    options = SourceOptions(
        name_servers=master.namesrv, topic=TOPIC, read_from="slave", outage_ms=20_000
    )
    with BrokerSession(options) as link:
        bounds = link.bounds(link.queues())
        ranges = [Range(queue, each.first, each.end) for queue, each in bounds.items()]
        assert sum(each.end - each.start for each in ranges) == COUNT
        wait_until_copied(master, ranges)
        master.kill_broker()
        # Only the slave is left to answer, so nothing here can have come from the master.
        found = sum(len(find_records(data)[0]) for each in ranges for data in link.pull(each))
    assert found == COUNT


def test_messages_that_a_slave_lacks_are_read_from_its_master(
    master: Cluster, slave: Cluster
) -> None:
    fill(master, TOPIC, COUNT)
    slave.kill_broker()
    options = SourceOptions(name_servers=master.namesrv, topic=TOPIC, read_from="slave")
    with BrokerSession(options) as link:
        bounds = link.bounds(link.queues())
        ranges = [Range(queue, each.first, each.end) for queue, each in bounds.items()]
        found = sum(len(find_records(data)[0]) for each in ranges for data in link.pull(each))
    assert found == COUNT
