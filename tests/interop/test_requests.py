"""Java and the SDK ask each other, in both directions."""

from __future__ import annotations

import asyncio
import threading

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


async def test_java_asks_and_the_sdk_replies(peer: Peer, cluster: Cluster, topic: str) -> None:
    producer = Producer(f"sdk-replier-{topic}", name_servers=cluster.namesrv)

    async def handle(message: ReceivedMessage) -> None:
        await producer.reply_to(message, b"re: " + message.body, tags="T")

    config = PushConsumerConfig(name_servers=cluster.namesrv, start_from=StartFrom.FIRST)
    consumer = PushConsumer(f"sdk-repliers-{topic}", config=config)
    consumer.subscribe(topic, handle)
    async with producer, consumer:
        events = await asyncio.to_thread(
            peer.run, "request", namesrv=cluster.namesrv, topic=topic, count=3, timeout=15
        )
    bodies = sorted(event["body"] for event in named(events, "reply"))
    assert bodies == [f"re: body-{n}" for n in range(3)]


async def test_the_sdk_asks_and_java_replies(peer: Peer, cluster: Cluster, topic: str) -> None:
    subscribed = threading.Event()
    args: dict[str, object] = {
        "namesrv": cluster.namesrv,
        "topic": topic,
        "group": f"java-repliers-{topic}",
        "reply": "answered",
        "count": 2,
        "timeout": 20,
    }
    java = asyncio.ensure_future(
        asyncio.to_thread(peer.run_watched, "push", lambda event: subscribed.set(), **args)
    )
    async with Producer(f"sdk-asker-{topic}", name_servers=cluster.namesrv) as producer:
        await asyncio.to_thread(subscribed.wait, 20)
        replies = [await producer.request(Message(topic, b"ask"), timeout=20) for _ in range(2)]
    await java
    assert [reply.body for reply in replies] == [b"answered"] * 2
    assert all(reply.properties["MSG_TYPE"] == "reply" for reply in replies)
