"""Transactions of a broker that dies at every named point of them, and at random.

Producers run local transactions against a database in this process. Whatever happens to the broker:
a message whose transaction committed is delivered once, or, after too many questions, lies where
operators find it; one that was rolled back, or never ran, is not delivered; nothing stays pending.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chaos.deaths import POINTS
from rocketpost.client import (
    ClientError,
    Fault,
    Message,
    ProducerConfig,
    PullConsumer,
    PullStatus,
    TransactionProducer,
)
from rocketpost.client.admin import AdminClient
from rocketpost.model.topic import TopicConfig
from rocketpost.settings import format_properties
from rocketpost.testing.campaign import TINY_STORE
from rocketpost.testing.cluster import BROKER_READY, Cluster
from rocketpost.testing.process import ServerFailed, ServerProcess, free_port
from rocketpost.testing.workloads.transactions import Database

pytestmark = pytest.mark.long

PROGRAM = str(Path(__file__).with_name("odd_broker.py"))
TOPIC, GROUP = "Orders", "shop"
SETTINGS = {
    **TINY_STORE,
    "transactionTimeOut": "200",
    "transactionCheckInterval": "200",
    "transactionCheckMax": "25",
    "transactionOpBatchInterval": "300",
    "flushConsumerOffsetInterval": "100",
}
PRODUCERS = 2
STREAMS = 4


class World:
    """A name server, a broker that dies, producers that do not."""

    def __init__(self, directory: Path, rng: random.Random, *, flush: str) -> None:
        self.rng = rng
        self.cluster = Cluster(directory, brokers=0)
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        path = directory / "broker.conf"
        values = {
            "listenPort": str(port),
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerName": "broker",
            "namesrvAddr": self.cluster.addresses,
            "storePathRootDir": str(directory / "store"),
            "flushDiskType": flush,
            **SETTINGS,
        }
        path.write_text(format_properties(values))
        self._path = str(path)
        self.database = Database(rng)
        self.begun = self.refused = self.kills = self.kills_while_starting = 0
        self.reached: Counter[str] = Counter()

    @asynccontextmanager
    async def running(
        self, point: str | None = None, count: int = 0
    ) -> AsyncIterator[ServerProcess]:
        """Run a broker, and kill it if it does not die by itself."""
        program = [PROGRAM, *(["--die", point, str(count)] if point else []), "--"]
        broker = ServerProcess(["mqbroker", "-c", self._path], ready=BROKER_READY, program=program)
        try:
            await asyncio.to_thread(broker.start)
            yield broker
        finally:
            broker.kill()

    async def produce(self, producer: TransactionProducer, name: str) -> None:
        """Run transactions one after the other, for ever."""
        number = 0
        while True:
            number += 1
            message = Message(TOPIC, f"{name}-{number}".encode())
            try:
                await producer.send_in_transaction(message, self.database.run)
                self.begun += 1
            except (ClientError, Fault):
                self.refused += 1
                await asyncio.sleep(0.05)

    async def die_at(self, point: str) -> None:
        """Start a broker and wait until it has died at a point of its own accord."""
        count = self.rng.randrange(1, 8)
        if point in ("recovered", "commits looked for"):
            count = 1
        try:
            async with self.running(point, count) as broker:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(20):
                        while broker.is_running:
                            await asyncio.sleep(0.02)
                self.reached[point] += not broker.is_running
        except ServerFailed:
            self.reached[point] += 1
            self.kills_while_starting += 1
        self.kills += 1

    async def die_at_random(self) -> None:
        """Start a broker and kill it some time later."""
        async with self.running():
            await asyncio.sleep(self.rng.uniform(0.05, 1.5))
        self.kills += 1

    async def settle(self) -> None:
        """Wait until no transaction is pending."""
        async with AdminClient(name_servers=self.cluster.addresses) as admin:
            async with asyncio.timeout(120):
                while True:
                    values = await admin.brokers.runtime(self.address)
                    if values["transactionsPending"] == "0":
                        return
                    await asyncio.sleep(0.2)

    async def read(self) -> Counter[str]:
        """Return how often each transaction was delivered."""
        found: Counter[str] = Counter()
        async with PullConsumer("reader", name_servers=self.cluster.addresses) as consumer:
            for queue in await consumer.queues(TOPIC):
                offset = await consumer.min_offset(queue)
                while (result := await consumer.pull(queue, offset)).status is PullStatus.FOUND:
                    found.update(message.message_id for message in result.messages)
                    offset = result.next_offset
        return found

    async def given_up(self) -> set[str]:
        async with AdminClient(name_servers=self.cluster.addresses) as admin:
            return {half.id async for half in admin.transactions.discarded()}


async def campaign(world: World, deaths: list[str | None]) -> None:
    config = ProducerConfig(name_servers=world.cluster.addresses, send_timeout=5.0, retries=5)
    async with (
        world.running(),
        AdminClient(name_servers=world.cluster.addresses) as admin,
    ):
        await admin.topics.create(world.address, TopicConfig(topic_name=TOPIC))
    async with contextlib.AsyncExitStack() as stack:
        work = await stack.enter_async_context(asyncio.TaskGroup())
        tasks = []
        for number in range(PRODUCERS):
            producer = TransactionProducer(
                GROUP, checker=world.database.look_up, topics=[TOPIC], config=config
            )
            await stack.enter_async_context(producer)
            tasks += [
                work.create_task(world.produce(producer, f"p{number}s{stream}"))
                for stream in range(STREAMS)
            ]
        for point in deaths:
            await (world.die_at_random() if point is None else world.die_at(point))
        async with world.running():
            await asyncio.sleep(2)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await world.settle()
            await judge(world)


async def judge(world: World) -> None:
    delivered, given_up = await world.read(), await world.given_up()
    database = world.database
    broken = database.find_broken(delivered, given_up)
    print(
        f"kills={world.kills} while_starting={world.kills_while_starting} "
        f"transactions={world.begun} refused={world.refused} "
        f"committed={len(database.committed)} "
        f"rolled_back={len(database.ended) - len(database.committed)} "
        f"never_ended={len(database.undecided)} delivered={len(delivered)} "
        f"questions={database.questions} given_up={len(given_up)} "
        f"given_up_though_committed={len(database.committed & given_up)} "
        f"broken={ {how: len(each) for how, each in broken.items()} } "
        f"points={dict(world.reached)}"
    )
    assert not broken


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_broker_that_dies_at_every_point_of_a_transaction(
    tmp_path: Path, seed: int, flush: str
) -> None:
    world = World(tmp_path, random.Random(seed), flush=flush)
    deaths: list[str | None] = [*POINTS, *POINTS]
    world.rng.shuffle(deaths)
    with world.cluster:
        await campaign(world, deaths)
    assert set(world.reached) == set(POINTS)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_broker_that_dies_at_random(
    tmp_path: Path, seed: int, rounds: int, flush: str
) -> None:
    world = World(tmp_path, random.Random(seed), flush=flush)
    with world.cluster:
        await campaign(world, [None] * max(1, rounds // 3))
