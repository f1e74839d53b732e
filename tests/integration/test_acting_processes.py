"""A master is killed and returns, as real processes; consumers of the SDK read on meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rocketpost.client import (
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    RocketpostError,
    StartFrom,
)
from rocketpost.client.admin import AdminClient
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.replicas.group import ReplicaGroup

pytestmark = pytest.mark.slow

TOPIC = "Orders"
QUEUES = 2
SETTINGS = {"enableSlaveActingMaster": "true", "totalReplicas": "2", "brokerRole": "SYNC_MASTER"}


@asynccontextmanager
async def acting_group(
    root: Path, *, notifies: bool, **slave: str
) -> AsyncIterator[tuple[ReplicaGroup, AdminClient]]:
    """Run a group whose members know each other, with a topic."""
    name_server = {
        "supportActingMaster": "true",
        "notifyMinBrokerIdChanged": str(notifies).lower(),
        "scanNotActiveBrokerInterval": "500",
    }
    with ReplicaGroup(
        root, settings=SETTINGS, slave={"brokerRole": "SLAVE", **slave}, name_server=name_server
    ) as group:
        async with AdminClient(name_servers=group.addresses) as admin:
            for replica in (group.master, *group.slaves):
                await until_shown(admin, replica.address, preOnline="done", aliveReplicas="2")
            config = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
            await admin.topics.create(group.master.address, config)
            yield group, admin


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.05)


async def until_shown(admin: AdminClient, address: str, **expected: str) -> None:
    """Wait until ``brokerStatus`` shows these values."""

    async def is_shown() -> bool:
        try:
            values = await admin.brokers.runtime(address)
        except RocketpostError:
            return False
        return expected.items() <= values.items()

    await until(is_shown)


async def send(group: ReplicaGroup, first: int, count: int) -> None:
    config = ProducerConfig(name_servers=group.addresses, send_timeout=20.0, retries=9)
    async with Producer("senders", config=config) as producer:
        for number in range(first, first + count):
            message = Message(TOPIC, b"%d" % number)
            await producer.send(message, queue=MessageQueue("group", number % QUEUES, TOPIC))


async def committed(group: ReplicaGroup) -> int:
    """Return how many messages the group of consumers has committed."""
    async with PullConsumer("readers", name_servers=group.addresses) as reader:
        queues = [MessageQueue("group", queue_id, TOPIC) for queue_id in range(QUEUES)]
        return sum([max(await reader.fetch_offset(queue) or 0, 0) for queue in queues])


class Readers:
    """A push consumer that stops after some messages until it may go on."""

    def __init__(self, group: ReplicaGroup, *, orderly: bool) -> None:
        self.got: Counter[bytes] = Counter()
        self.order: list[bytes] = []
        self.gate = asyncio.Event()
        config = PushConsumerConfig(
            name_servers=group.addresses,
            start_from=StartFrom.FIRST,
            cached_count_max=8,
            pull_count_max=8,
            error_seconds=0.2,
            rebalance_seconds=1,
            persist_seconds=0.5,
            lock_renew_seconds=1,
        )
        self.consumer = PushConsumer("readers", config=config)
        self.consumer.subscribe(TOPIC, self._handle, orderly=orderly)

    async def _handle(self, message: ReceivedMessage) -> None:
        if sum(self.got.values()) >= 40:
            await self.gate.wait()
        self.got[message.body] += 1
        self.order.append(message.body)

    async def until_read(self, count: int) -> None:
        async def is_read() -> bool:
            return len(self.got) >= count

        await until(is_read)


@pytest.mark.parametrize(
    ("notifies", "orderly"), [(True, False), pytest.param(False, True, marks=pytest.mark.long)]
)
async def test_consumers_read_on_and_keep_their_progress(
    tmp_path: Path, notifies: bool, orderly: bool
) -> None:
    poll = {"syncBrokerMemberGroupPeriod": "600000"} if notifies else {}
    async with acting_group(tmp_path, notifies=notifies, **poll) as (group, admin):
        await send(group, 0, 200)
        readers = Readers(group, orderly=orderly)
        async with readers.consumer:
            await readers.until_read(40)
            group.master.process.kill()
            (slave,) = group.slaves
            await until_shown(admin, slave.address, actingMaster="true", minBrokerId="1")
            readers.gate.set()
            await readers.until_read(200)

            async def is_committed() -> bool:
                return await committed(group) == 200

            await until(is_committed)
            group.master.start()
            await until_shown(admin, group.master.address, preOnline="done")
            await until_shown(admin, slave.address, actingMaster="false", followsMaster="true")
            assert await committed(group) == 200, "the master has the offsets of the slave"
            await send(group, 200, 60)
            await readers.until_read(260)
    assert readers.got.keys() == {b"%d" % number for number in range(260)}
    assert sum(readers.got.values()) - 260 <= 40  # what was in hand when the master died, at most
    if orderly:
        for queue_id in range(QUEUES):
            mine = [int(body) for body in readers.order if int(body) % QUEUES == queue_id]
            first = list(dict.fromkeys(mine))
            assert first == sorted(first)


async def test_a_master_that_freezes_is_replaced_and_comes_back(tmp_path: Path) -> None:
    settings = {"brokerNotActiveTimeoutMillis": "2000"}
    async with acting_group(tmp_path, notifies=False) as (group, admin):
        (slave,) = group.slaves
        group.master.process.kill()
        group.master.start(**settings)
        await until_shown(admin, group.master.address, preOnline="done", aliveReplicas="2")
        group.master.process.pause()
        await until_shown(admin, slave.address, actingMaster="true")
        group.master.process.resume()
        await until_shown(admin, slave.address, actingMaster="false")
        await send(group, 0, 2)
