"""The simple consumer against real brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.client import (
    ClientError,
    ConfigError,
    Message,
    Producer,
    RouteNotFound,
    SimpleConsumer,
    StartFrom,
    blocking,
)
from rocketpost.codec.faults import NoMessage
from rocketpost.testing.cluster import Cluster

pytestmark = pytest.mark.slow


@pytest.fixture(params=[1, 2])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, brokers=request.param) as cluster:
        yield cluster


async def send(cluster: Cluster, bodies: list[bytes], *, tags: str | None = None) -> None:
    async with Producer("p", name_servers=cluster.addresses) as producer:
        for body in bodies:
            await producer.send(Message("T", body, tags=tags))


def consumer_of(cluster: Cluster, group: str = "g") -> SimpleConsumer:
    return SimpleConsumer(group, name_servers=cluster.addresses, start_from=StartFrom.FIRST)


async def test_messages_are_shared_acknowledged_and_redelivered(cluster: Cluster) -> None:
    bodies = [b"%d" % at for at in range(40)]
    await send(cluster, bodies)
    async with consumer_of(cluster) as first, consumer_of(cluster) as second:
        await first.subscribe("T")
        await second.subscribe("T")
        seen: list[bytes] = []
        kept = []
        while len(seen) < 40:
            for consumer in (first, second):
                for message in await consumer.receive(5, invisible_seconds=2, await_seconds=0.2):
                    seen.append(message.body)
                    if int(message.body) % 10:
                        await consumer.ack(message)
                    else:
                        kept.append(message)
        assert sorted(seen) == sorted(bodies)
        longer, shorter, *_ = kept
        await first.change_invisible_duration(longer, 60)
        await first.change_invisible_duration(shorter, 0)
        again: list[bytes] = []
        while len(again) < 3:
            for message in await second.receive(await_seconds=5):
                assert message.topic == "T"
                assert message.reconsume_times == 1
                again.append(message.body)
                await second.ack(message)
        assert sorted(again) == sorted(each.body for each in kept[1:])
        await first.ack(longer)
        with pytest.raises(NoMessage):
            await first.change_invisible_duration(longer, 1)
        assert await first.receive(await_seconds=0.5) == []


async def test_receiving_waits_for_a_message(cluster: Cluster) -> None:
    await send(cluster, [b"old"] * 8, tags="A")
    async with consumer_of(cluster) as consumer:
        await consumer.subscribe("T", "B")
        waiting = asyncio.ensure_future(consumer.receive(await_seconds=25))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        started = time.monotonic()
        await send(cluster, [b"new"], tags="B")
        [message] = await waiting
        assert message.body == b"new"
        assert time.monotonic() - started < 20  # woken, not at the end of its wait
        await consumer.ack(message)


async def test_arguments_are_checked(cluster: Cluster) -> None:
    with pytest.raises(ConfigError):
        SimpleConsumer("g", start_from=StartFrom.TIMESTAMP)
    consumer = consumer_of(cluster)
    with pytest.raises(ClientError):
        await consumer.receive()
    async with consumer:
        with pytest.raises(ClientError):
            await consumer.start()
        with pytest.raises(ConfigError):
            await consumer.receive()
        with pytest.raises(RouteNotFound):
            await consumer.subscribe("unknown")
        await send(cluster, [b"x"])
        await consumer.subscribe("T")
        for count, seconds in ((0, 1.0), (33, 1.0), (1, -1.0)):
            with pytest.raises(ConfigError):
                await consumer.receive(count, invisible_seconds=seconds)
        await consumer.unsubscribe("T")
        with pytest.raises(ConfigError):
            await consumer.receive()


def test_threads_receive_too(cluster: Cluster) -> None:
    asyncio.run(send(cluster, [b"x"]))
    with blocking.SimpleConsumer(
        "g", name_servers=cluster.addresses, start_from=StartFrom.FIRST
    ) as consumer:
        consumer.subscribe("T")
        [message] = consumer.receive(await_seconds=5)
        consumer.change_invisible_duration(message, 30)
        consumer.ack(message)
        assert consumer.receive(await_seconds=0) == []
        consumer.unsubscribe("T")
        with pytest.raises(ConfigError):
            consumer.receive()


async def test_an_orderly_group_gets_messages_of_a_queue_in_their_order(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        first, second = (
            SimpleConsumer(
                "fifo", name_servers=cluster.addresses, start_from=StartFrom.FIRST, orderly=True
            )
            for _ in range(2)
        )
        producer = Producer("p", name_servers=cluster.addresses)
        async with producer, first, second:
            queue = (await producer.send(Message("Fifo", b"0"))).queue
            for number in range(1, 9):
                await producer.send(Message("Fifo", b"%d" % number), queue=queue)
            for consumer in (first, second):
                await consumer.subscribe("Fifo")
            done: list[bytes] = []
            given_up = 0
            async with asyncio.timeout(60):
                while len(done) < 9:
                    for consumer in (first, second):
                        batch = await consumer.receive(2, invisible_seconds=5, await_seconds=1)
                        if batch:
                            assert await second.receive(2, await_seconds=0) == []
                        for message in batch:
                            if message.body == b"4" and message.reconsume_times == 0:
                                await consumer.change_invisible_duration(message, 0)
                                given_up += 1
                            else:
                                await consumer.ack(message)
                                done.append(message.body)
            assert given_up == 1
            # What was acknowledged behind the one that was given up did not come again.
            assert sorted(done) == [b"%d" % number for number in range(9)]
            assert [body for body in done if body not in (b"4", b"5")] == [
                b"%d" % number for number in (0, 1, 2, 3, 6, 7, 8)
            ]
