"""Java clients and the SDK side by side: messages of either, groups with members of both."""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from interop.peer import Peer, named
from interop.servers import Cluster
from interop.test_clients import pull_all, sized_body
from rocketpost.client import (
    Compression,
    Message,
    MessageModel,
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


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_both_kinds_of_members_share_a_group(
    peer: Peer, cluster: Cluster, topic: str, orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    group = f"sdk-and-java-{next(_groups)}"
    mine: list[ReceivedMessage] = []

    async def handle(message: ReceivedMessage) -> None:
        mine.append(message)

    config = PushConsumerConfig(
        name_servers=cluster.namesrv, start_from=StartFrom.FIRST, rebalance_seconds=2
    )
    consumer = PushConsumer(group, config=config)
    consumer.subscribe(topic, handle, orderly=orderly)
    async with consumer, Producer("sdk-and-java", name_servers=cluster.namesrv) as producer:

        def owned() -> set[int]:
            return {queue.queue_id for queue in consumer.queues if queue.topic == topic}

        await until(lambda: len(owned()) == 4)
        command: dict[str, object] = {"namesrv": cluster.namesrv, "topic": topic, "group": group}
        command |= {"count": 20} | ({"orderly": 1} if orderly else {})
        java = asyncio.ensure_future(asyncio.to_thread(peer.run, "push", **command))
        await until(lambda: len(owned()) == 2)
        queues = await producer.queues(topic)
        for n in range(40):
            await producer.send(Message(topic, b"%d" % n), queue=queues[n % 4])
        theirs = named(await java, "message")
        await until(lambda: len(mine) >= 20)
        await until(lambda: len(owned()) == 4)  # what Java left is ours again
        for queue in queues:
            await producer.send(Message(topic, b"later"), queue=queue)
        await until(lambda: len(mine) >= 24)
    ours = [message for message in mine if message.body != b"later"]
    bodies = [message.body.decode() for message in ours] + [each["body"] for each in theirs]
    assert sorted(bodies, key=int) == [str(n) for n in range(40)]
    assert "members of a group differ" not in caplog.text
    assert {m.queue.queue_id for m in ours}.isdisjoint(each["queueId"] for each in theirs)
    if orderly:
        for queue_id in range(4):
            assert in_order([m.queue_offset for m in mine if m.queue.queue_id == queue_id])
            assert in_order([each["queueOffset"] for each in theirs if each["queueId"] == queue_id])


def in_order(numbers: list[int]) -> bool:
    return numbers == sorted(set(numbers))


async def test_every_broadcasting_member_of_either_kind_gets_all(
    peer: Peer, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    group = f"sdk-and-java-{next(_groups)}"
    mine: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        mine.append(message.body)

    config = broadcasting(cluster, tmp_path)
    consumer = PushConsumer(group, config=config)
    consumer.subscribe(topic, handle)
    command = {"namesrv": cluster.namesrv, "topic": topic, "group": group, "count": 12}
    async with consumer, Producer("sdk-and-java", name_servers=cluster.namesrv) as producer:
        java = asyncio.ensure_future(asyncio.to_thread(peer.run, "push", **command, broadcasting=1))
        for n in range(12):
            await producer.send(Message(topic, b"%d" % n))
        theirs = named(await java, "message")
        await until(lambda: len(mine) == 12)
    assert sorted(mine, key=int) == [b"%d" % n for n in range(12)]
    assert sorted((each["body"] for each in theirs), key=int) == [str(n) for n in range(12)]


def broadcasting(cluster: Cluster, directory: Path, client_ip: str = "") -> PushConsumerConfig:
    return PushConsumerConfig(
        name_servers=cluster.namesrv,
        start_from=StartFrom.FIRST,
        model=MessageModel.BROADCASTING,
        offset_directory=str(directory),
        client_ip=client_ip,
    )


async def test_either_kind_continues_from_the_file_of_the_other(
    cluster: Cluster, peer: Peer, topic: str, tmp_path: Path
) -> None:
    group = f"sdk-and-java-{next(_groups)}"
    mine: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        mine.append(message.body)

    def java(count: int) -> set[str]:
        command = {"namesrv": cluster.namesrv, "topic": topic, "group": group}
        found = home.run("push", **command, count=count, broadcasting=1, timeout=60)
        return {each["body"] for each in named(found, "message")}

    async with Producer("sdk-and-java", name_servers=cluster.namesrv) as producer:

        async def send(numbers: range) -> None:
            for n in numbers:
                await producer.send(Message(topic, b"%d" % n))

        with Peer(peer.version, tmp_path) as home:  # it keeps its offsets in its home directory
            await send(range(8))
            assert await asyncio.to_thread(java, 8) == {str(n) for n in range(8)}
            directory = tmp_path / ".rocketmq_offsets"
            [file] = await asyncio.to_thread(lambda: list(directory.glob(f"*/{group}/*.json")))
            client_ip, _, instance = file.parent.parent.name.partition("@")
            assert instance == "DEFAULT"
            await send(range(8, 16))
            consumer = PushConsumer(group, config=broadcasting(cluster, directory, client_ip))
            consumer.subscribe(topic, handle)
            async with consumer:
                await until(lambda: len(mine) >= 8)
            assert sorted(mine, key=int) == [b"%d" % n for n in range(8, 16)]
            await send(range(16, 20))
            assert await asyncio.to_thread(java, 4) == {str(n) for n in range(16, 20)}
