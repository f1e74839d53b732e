"""Priorities of RocketMQ 5.4, which older Java clients send as a property, on our broker."""

from __future__ import annotations

import asyncio

import pytest

from interop.peer import Peer, named
from interop.servers import Cluster, Maker
from rocketpost.client import SimpleConsumer, StartFrom
from rocketpost.client.admin import AdminClient

pytestmark = pytest.mark.interop


async def test_java_messages_are_popped_by_level_and_pulled_as_ever(
    peer: Peer, cluster: Cluster, topic: str, target: Maker
) -> None:
    if target == "apache":
        pytest.skip("this release has no priorities")
    async with AdminClient(name_servers=cluster.namesrv) as admin:
        await admin.topics.update(
            cluster.broker,
            topic,
            read_queue_nums=4,
            write_queue_nums=4,
            attributes={"message.type": "PRIORITY"},
        )
    common: dict[str, object] = {"namesrv": cluster.namesrv, "topic": topic}
    for level in (0, 2, 3, 1, 9):
        [sent] = named(peer.run("send", **common, properties=f"_SYS_MSG_PRIORITY_:{level}"), "sent")
        assert sent["queueId"] == min(level, 3)
    peer.run("send", **common, count=2, tags="none")
    events = await asyncio.to_thread(
        peer.run, "push", **common, group=f"java-levels-{topic}", count=7
    )
    assert len(named(events, "message")) == 7
    taken: list[int] = []
    consumer = SimpleConsumer(
        f"sdk-levels-{topic}", name_servers=cluster.namesrv, start_from=StartFrom.FIRST
    )
    async with consumer, asyncio.timeout(30):
        await consumer.subscribe(topic)
        while len(taken) < 7:
            for message in await consumer.receive(count_max=1):
                taken.append(message.priority or 0)
                await consumer.ack(message)
    assert taken == [3, 9, 2, 1, 0, 0, 0]
