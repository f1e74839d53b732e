"""Ordinary, strict and global ordered topics when one of two brokers is down."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.client import (
    ClientError,
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)
from rocketpost.client.admin import AdminClient
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.cluster import Cluster

pytestmark = pytest.mark.slow

ORDERS = "ORDER_TOPIC_CONFIG"
KEYS = [f"order-{n}" for n in range(12)]
Places = dict[str, MessageQueue]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    with Cluster(tmp_path, brokers=2) as cluster:
        yield cluster


async def make_topic(
    cluster: Cluster, topic: str, *, brokers: tuple[int, ...] = (0, 1), queues: int = 2, order: str
) -> None:
    async with AdminClient(name_servers=cluster.addresses) as admin:
        await admin.cluster.update_config({"orderMessageEnable": "true"})
        if order:
            await admin.cluster.put_kv(ORDERS, topic, order)
        config = TopicConfig(
            topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, order=bool(order)
        )
        for broker in brokers:
            await admin.topics.create(cluster.broker_addresses[broker], config)
        async with asyncio.timeout(20):
            while topic not in await admin.cluster.topics():
                await asyncio.sleep(0.05)
            while len((await admin.cluster.route(topic)).queue_datas) < len(brokers):
                await asyncio.sleep(0.05)


def producer(cluster: Cluster) -> Producer:
    config = ProducerConfig(name_servers=cluster.addresses, send_timeout=2.0)
    return Producer("ordering", config=config)


async def send(
    producer: Producer, topic: str, key: str, number: int, timeout: float | None = None
) -> MessageQueue:
    message = Message(topic, b"%d" % number, sharding_key=key)
    result = await producer.send(message, timeout=timeout)
    return result.queue


async def send_until_taken(producer: Producer, topic: str, key: str, number: int) -> MessageQueue:
    async with asyncio.timeout(30):
        while True:
            try:
                return await send(producer, topic, key, number)
            except ClientError:
                await asyncio.sleep(0.1)


async def handled(cluster: Cluster, topic: str, count: int) -> dict[str, list[int]]:
    """Consume in order until ``count`` messages came; return the numbers of each key."""
    found: dict[str, list[int]] = defaultdict(list)
    left = count
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        nonlocal left
        assert message.sharding_key is not None
        found[message.sharding_key].append(int(message.body))
        left -= 1
        if left <= 0:
            done.set()

    config = PushConsumerConfig(name_servers=cluster.addresses, start_from=StartFrom.FIRST)
    consumer = PushConsumer(f"order-of-{topic}", config=config)
    consumer.subscribe(topic, handle, orderly=True)
    async with consumer, asyncio.timeout(30):
        await done.wait()
    return dict(found)


async def test_ordinary_topics_keep_accepting_sends_and_move_keys(cluster: Cluster) -> None:
    await make_topic(cluster, "Ordinary", order="")
    async with producer(cluster) as sender:
        before: Places = {key: await send(sender, "Ordinary", key, 0) for key in KEYS}
        assert {queue.broker_name for queue in before.values()} == {"broker-0", "broker-1"}
        cluster.brokers[1].kill()
        during = {key: await send_until_taken(sender, "Ordinary", key, 1) for key in KEYS}
        assert {queue.broker_name for queue in during.values()} == {"broker-0"}
        cluster.brokers[1].start()
        async with asyncio.timeout(30):
            while len(await sender.queues("Ordinary")) < 4:
                await sender._running()[0].routes.refresh("Ordinary")
                await asyncio.sleep(0.1)
        after = {key: await send_until_taken(sender, "Ordinary", key, 2) for key in KEYS}
    assert after == before  # the same queues as at first: what came between lies elsewhere
    numbers = await handled(cluster, "Ordinary", 3 * len(KEYS))
    # Nothing is lost, and a key that never left its queue kept its order.
    assert {key: sorted(each) for key, each in numbers.items()} == {key: [0, 1, 2] for key in KEYS}
    stayed = [key for key in KEYS if before[key] == during[key]]
    assert [numbers[key] for key in stayed] == [[0, 1, 2]] * len(stayed)


@pytest.mark.long
async def test_strict_topics_refuse_keys_of_a_broker_that_is_down(cluster: Cluster) -> None:
    await make_topic(cluster, "Strict", order="broker-0:2;broker-1:2")
    async with producer(cluster) as sender:
        before: Places = {key: await send(sender, "Strict", key, 0) for key in KEYS}
        lost = [key for key in KEYS if before[key].broker_name == "broker-1"]
        kept = [key for key in KEYS if before[key].broker_name == "broker-0"]
        assert lost
        assert kept
        cluster.brokers[1].kill()
        for number in (1, 2):
            for key in kept:
                assert await send(sender, "Strict", key, number) == before[key]
            for key in lost:
                with pytest.raises(ClientError):
                    await send(sender, "Strict", key, number, timeout=0.1)
            await asyncio.sleep(1.1)  # long enough for a new route, which changes nothing
            await sender._running()[0].routes.refresh("Strict")
        async with producer(cluster) as newcomer:  # which never knew the broker
            for key in lost:
                with pytest.raises(ClientError):
                    await send(newcomer, "Strict", key, 3, timeout=0.1)
            for key in kept:
                assert await send(newcomer, "Strict", key, 3) == before[key]
        cluster.brokers[1].start()
        for key in lost:
            assert await send_until_taken(sender, "Strict", key, 3) == before[key]
    numbers = await handled(cluster, "Strict", 4 * len(kept) + 2 * len(lost))
    assert numbers == {key: [0, 1, 2, 3] if key in kept else [0, 3] for key in KEYS}


async def test_global_order_waits_for_its_one_broker(cluster: Cluster) -> None:
    await make_topic(cluster, "Global", brokers=(1,), queues=1, order="")
    async with producer(cluster) as sender:
        for number in range(3):
            await send(sender, "Global", "all", number)
        cluster.brokers[1].kill()
        with pytest.raises(ClientError):
            await send(sender, "Global", "all", 3, timeout=0.1)
        cluster.brokers[1].start()
        for number in range(3, 6):
            queue = await send_until_taken(sender, "Global", "all", number)
            assert (queue.broker_name, queue.queue_id) == ("broker-1", 0)
    numbers = await handled(cluster, "Global", 6)
    assert numbers == {"all": list(range(6))}
