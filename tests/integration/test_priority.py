"""Priorities on a real broker: popped from the highest level down, also after retries and kills."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.client import (
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    RouteNotFound,
    SimpleConsumer,
    StartFrom,
)
from rocketpost.client.admin import AdminClient
from rocketpost.codec.headers.pop import pop_retry_topic
from rocketpost.model.group import GroupConfig
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.cluster import Cluster

pytestmark = pytest.mark.slow

LEVELS = 10
TOPIC = "Jobs"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        async with AdminClient(name_servers=cluster.addresses) as admin:
            config = TopicConfig(
                topic_name=TOPIC,
                read_queue_nums=LEVELS,
                write_queue_nums=LEVELS,
                attributes={"+message.type": "PRIORITY"},
            )
            await admin.topics.create(cluster.broker_addresses[0], config)
            async with asyncio.timeout(20):
                while TOPIC not in await admin.cluster.topics():
                    await asyncio.sleep(0.05)
        yield cluster


async def send(cluster: Cluster, *priorities: int | None) -> None:
    async with Producer("jobs", name_servers=cluster.addresses) as producer:
        for priority in priorities:
            result = await producer.send(Message(TOPIC, b"job", priority=priority))
            assert result.queue.queue_id == min(priority or 0, LEVELS - 1)


def consumer(cluster: Cluster, group: str = "workers") -> SimpleConsumer:
    return SimpleConsumer(group, name_servers=cluster.addresses, start_from=StartFrom.FIRST)


async def taken(simple: SimpleConsumer, count: int, *, ack: bool = True) -> list[int]:
    """Receive messages one by one; return their priorities."""
    found: list[int] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            for message in await simple.receive(count_max=1, invisible_seconds=1.0):
                found.append(message.priority or 0)
                if ack:
                    await simple.ack(message)
    return found


async def test_higher_levels_are_handed_out_first(cluster: Cluster) -> None:
    await send(cluster, 0, 3, 9, None, 3, 5, 12, 0, 9)
    async with consumer(cluster) as simple:
        await simple.subscribe(TOPIC)
        assert await taken(simple, 5) == [9, 9 + 3, 9, 5, 3]
        await send(cluster, 4)
        assert await taken(simple, 5) == [4, 3, 0, 0, 0]


async def come_again(cluster: Cluster, *levels: int) -> None:
    """Wait until the messages that nobody acknowledged lie in the queues of these levels."""
    topic = pop_retry_topic("workers", TOPIC)
    async with (
        PullConsumer("looking", name_servers=cluster.addresses) as reader,
        asyncio.timeout(30),
    ):
        for level in levels:
            while True:
                try:
                    queues = {queue.queue_id: queue for queue in await reader.queues(topic)}
                    if await reader.max_offset(queues[level]):
                        break
                except (RouteNotFound, KeyError):
                    await asyncio.sleep(0.1)


async def test_a_level_survives_retries_and_a_killed_broker(cluster: Cluster) -> None:
    await send(cluster, 7, *[0] * 5, 8)
    async with consumer(cluster) as simple:
        await simple.subscribe(TOPIC)
        assert await taken(simple, 2, ack=False) == [8, 7]
    cluster.brokers[0].kill()
    cluster.brokers[0].start()
    await come_again(cluster, 7, 8)
    async with consumer(cluster) as simple:
        await simple.subscribe(TOPIC)
        assert await taken(simple, 4) == [8, 7, 0, 0]


async def test_a_group_may_have_some_pops_go_by_chance(cluster: Cluster) -> None:
    async with AdminClient(name_servers=cluster.addresses) as admin:
        group = GroupConfig(group_name="fair", attributes={"+priority.factor": "0"})
        await admin.groups.create(cluster.broker_addresses[0], group)
    await send(cluster, *[0] * 30, *[9] * 30)
    async with consumer(cluster, "fair") as simple:
        await simple.subscribe(TOPIC)
        assert set(await taken(simple, 30)) == {0, 9}  # by level all of them would be 9


async def test_a_push_consumer_handles_its_cached_messages_by_level(cluster: Cluster) -> None:
    await send(cluster, *[0] * 8, *[5] * 8, *[9] * 8)
    handled: list[int] = []
    all_here = asyncio.Event()

    def fetched() -> int:
        return sum(owned.tracker.count for owned in push._assigned_queues.owned if owned.tracker)

    async def handle(message: ReceivedMessage) -> None:
        while not handled and fetched() < 24:  # the first is at work until all are here
            await asyncio.sleep(0.02)
        handled.append(message.priority or 0)
        if len(handled) == 24:
            all_here.set()

    config = PushConsumerConfig(
        name_servers=cluster.addresses,
        start_from=StartFrom.FIRST,
        concurrency=1,
        by_priority=True,
    )
    push = PushConsumer("pushed", config=config)
    push.subscribe(TOPIC, handle)
    async with push, asyncio.timeout(30):
        await all_here.wait()
    assert handled[1:] == sorted(handled[1:], reverse=True)
