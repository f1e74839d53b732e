"""Sharding keys: Java and the SDK choose the same queues, and each keeps the order of the other."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from interop.peer import Peer, named
from interop.servers import Cluster
from rocketpost.client import (
    Message,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)

pytestmark = pytest.mark.interop

# "polygenelubricants" has the one hash that has no positive counterpart.
KEYS = ["a", "order-17", "größe", "雪☃", "polygenelubricants", "\U0001f600", "-1", "x" * 60]


async def test_a_key_has_the_same_queue_with_java(peer: Peer, cluster: Cluster, topic: str) -> None:
    common: dict[str, object] = {"namesrv": cluster.namesrv, "topic": topic}
    async with Producer("sdk-order", name_servers=cluster.namesrv) as producer:
        for key in KEYS:
            events = await asyncio.to_thread(peer.run, "send", **common, shardingKey=key)
            [theirs] = named(events, "sent")
            ours = await producer.send(Message(topic, b"x", sharding_key=key))
            assert ours.queue.queue_id == theirs["queueId"], key


async def test_java_handles_our_keys_in_order(peer: Peer, cluster: Cluster, topic: str) -> None:
    async with Producer("sdk-order", name_servers=cluster.namesrv) as producer:
        for number in range(5):
            for key in KEYS:
                await producer.send(Message(topic, f"{number}".encode(), sharding_key=key))
    args = {"group": f"java-order-{topic}", "orderly": 1, "count": 5 * len(KEYS)}
    events = await asyncio.to_thread(peer.run, "push", namesrv=cluster.namesrv, topic=topic, **args)
    found: dict[str, list[int]] = defaultdict(list)
    for message in named(events, "message"):
        found[message["properties"]["__SHARDINGKEY"]].append(int(message["body"]))
    assert found == {key: list(range(5)) for key in KEYS}


async def test_the_sdk_handles_javas_keys_in_order(
    peer: Peer, cluster: Cluster, topic: str
) -> None:
    common: dict[str, object] = {"namesrv": cluster.namesrv, "topic": topic}
    for key in KEYS[:3]:
        await asyncio.to_thread(peer.run, "send", **common, shardingKey=key, count=5, tags="T")
    found: dict[int, list[int]] = defaultdict(list)

    async def handle(message: ReceivedMessage) -> None:
        found[message.queue.queue_id].append(message.queue_offset)

    config = PushConsumerConfig(name_servers=cluster.namesrv, start_from=StartFrom.FIRST)
    consumer = PushConsumer(f"sdk-order-{topic}", config=config)
    consumer.subscribe(topic, handle, orderly=True)
    async with consumer, asyncio.timeout(30):
        while sum(map(len, found.values())) < 15:
            await asyncio.sleep(0.05)
    assert all(offsets == list(range(len(offsets))) for offsets in found.values())
