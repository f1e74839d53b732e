"""Java clients and the SDK side by side: messages of either, groups with members of both."""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import Callable

import pytest

from interop.peer import Peer, named
from interop.servers import Cluster
from interop.test_clients import pull_all, sized_body
from rocketpost.client import (
    Compression,
    Message,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)

pytestmark = pytest.mark.interop

_groups = itertools.count(1)


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("kind", Compression)
async def test_java_reads_what_the_sdk_sent(
    peer: Peer, cluster: Cluster, topic: str, kind: Compression
) -> None:
    body = sized_body("größe", 300_000)
    config = ProducerConfig(name_servers=cluster.namesrv, compression=kind)
    async with Producer("sdk-and-java", config=config) as producer:
        sent = await producer.send(
            Message(
                topic, body, tags="T", keys=["k1", "k2"], properties={"größe": "mittel"}, flag=3
            )
        )
    [message] = pull_all(peer, cluster, topic)
    assert (message["bodySize"], message["bodyCrc"]) == (len(body), zlib.crc32(body))
    assert message["storeSize"] < len(body) / 10
    assert (message["msgId"], message["offsetMsgId"]) == (sent.message_id, sent.offset_id)
    assert (message["tags"], message["keys"], message["flag"]) == ("T", "k1 k2", 3)
    assert message["properties"]["größe"] == "mittel"


@pytest.mark.parametrize("kind", ["ZLIB", "LZ4", "ZSTD"])
async def test_the_sdk_reads_what_java_sent(
    peer: Peer, cluster: Cluster, topic: str, kind: str
) -> None:
    [sent] = named(
        peer.run(
            "send", namesrv=cluster.namesrv, topic=topic, size=300_000, compression=kind, keys="k"
        ),
        "sent",
    )
    async with PullConsumer("sdk-and-java", name_servers=cluster.namesrv) as reader:
        [queue] = [q for q in await reader.queues(topic) if q.queue_id == sent["queueId"]]
        result = await reader.pull(queue, sent["queueOffset"], hold=True)
    [message] = result.messages
    assert message.body == sized_body("body-0", 300_000)
    assert (message.message_id, message.offset_id) == (sent["msgId"], sent["offsetMsgId"])
    assert message.keys == ["k"]


async def test_a_batch_keeps_its_ids_with_java(peer: Peer, cluster: Cluster, topic: str) -> None:
    async with Producer("sdk-and-java", name_servers=cluster.namesrv) as producer:
        results = await producer.send_batch([Message(topic, b"%d" % n) for n in range(5)])
    found = {message["body"]: message["msgId"] for message in pull_all(peer, cluster, topic)}
    assert found == {str(n): result.message_id for n, result in enumerate(results)}


async def test_both_kinds_of_members_share_a_group(
    peer: Peer, cluster: Cluster, topic: str
) -> None:
    group = f"sdk-and-java-{next(_groups)}"
    mine: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        mine.append(message.body)

    config = PushConsumerConfig(
        name_servers=cluster.namesrv, start_from=StartFrom.FIRST, rebalance_seconds=2
    )
    consumer = PushConsumer(group, config=config)
    consumer.subscribe(topic, handle)
    async with consumer, Producer("sdk-and-java", name_servers=cluster.namesrv) as producer:

        def owned() -> set[int]:
            return {queue.queue_id for queue in consumer.queues if queue.topic == topic}

        await until(lambda: len(owned()) == 4)
        command = {"namesrv": cluster.namesrv, "topic": topic, "group": group, "count": 20}
        java = asyncio.ensure_future(asyncio.to_thread(peer.run, "push", **command))
        await until(lambda: len(owned()) == 2)
        queues = await producer.queues(topic)
        for n in range(40):
            await producer.send(Message(topic, b"%d" % n), queue=queues[n % 4])
        theirs = named(await java, "message")
        await until(lambda: len(mine) == 20)
    bodies = [body.decode() for body in mine] + [message["body"] for message in theirs]
    assert sorted(bodies, key=int) == [str(n) for n in range(40)]
