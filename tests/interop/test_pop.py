"""Popping between makers: the SDK's simple consumer, Java's push consumer that pops, stores."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.peer import Peer, named
from interop.servers import SMALL_STORE, Cluster, Maker
from rocketpost.client import Message, PoppedMessage, Producer, SimpleConsumer, StartFrom

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("maker", ["apache", "rocketpost"])
async def test_receipts_mean_the_same_to_both_brokers(
    java: None, tmp_path: Path, maker: Maker
) -> None:
    with Cluster(tmp_path, maker, settings=dict(SMALL_STORE)) as cluster:
        async with (
            Producer("p", name_servers=cluster.namesrv) as producer,
            SimpleConsumer(
                "g", name_servers=cluster.namesrv, start_from=StartFrom.FIRST
            ) as consumer,
        ):
            for number in range(10):
                await producer.send(Message("Popped", b"%d" % number, tags="A"))
            await consumer.subscribe("Popped", "A")
            received = []
            async with asyncio.timeout(60):
                while len(received) < 10:
                    received += await consumer.receive(invisible_seconds=20, await_seconds=2)
            assert sorted(message.body for message in received) == [b"%d" % n for n in range(10)]
            given_up, *done = received
            await consumer.change_invisible_duration(given_up, 2)
            for message in done:
                await consumer.ack(message)
            again = []
            async with asyncio.timeout(60):
                while not again:
                    again = await consumer.receive(await_seconds=5)
            assert [message.body for message in again] == [given_up.body]
            assert again[0].reconsume_times == 1
            assert again[0].topic == "Popped"
            assert again[0].receipt.retry == 1
            await consumer.ack(again[0])


async def test_messages_in_flight_here_are_redelivered_by_apaches_broker(
    java: None, tmp_path: Path
) -> None:
    with Cluster(tmp_path, "rocketpost", settings=dict(SMALL_STORE)) as cluster:
        async with (
            Producer("p", name_servers=cluster.namesrv) as producer,
            SimpleConsumer(
                "g", name_servers=cluster.namesrv, start_from=StartFrom.FIRST
            ) as consumer,
        ):
            for number in range(10):
                await producer.send(Message("Popped", b"%d" % number))
            await consumer.subscribe("Popped")
            received = []
            async with asyncio.timeout(60):
                while len(received) < 10:
                    received += await consumer.receive(3, invisible_seconds=5, await_seconds=2)
            for message in received[3:]:
                await consumer.ack(message)
        cluster.stop_broker()
        cluster.start_broker("apache")
        async with SimpleConsumer("g", name_servers=cluster.namesrv) as consumer:
            await consumer.subscribe("Popped")
            again = []
            async with asyncio.timeout(60):
                while len(again) < 3:
                    found = await consumer.receive(await_seconds=3)
                    again += found
                    for message in found:
                        await consumer.ack(message)
            assert sorted(each.body for each in again) == sorted(each.body for each in received[:3])
            assert await consumer.receive(await_seconds=8) == []


@pytest.mark.parametrize("maker", ["apache", "rocketpost"])
async def test_popping_in_order_means_the_same_to_both_brokers(
    java: None, tmp_path: Path, maker: Maker
) -> None:
    with Cluster(tmp_path, maker, settings=dict(SMALL_STORE)) as cluster:
        async with (
            Producer("p", name_servers=cluster.namesrv) as producer,
            SimpleConsumer(
                "g", name_servers=cluster.namesrv, start_from=StartFrom.FIRST, orderly=True
            ) as consumer,
        ):
            queue = (await producer.send(Message("Ordered", b"0"))).queue
            for number in range(1, 6):
                await producer.send(Message("Ordered", b"%d" % number), queue=queue)
            await consumer.subscribe("Ordered")

            async def take(count: int) -> list[PoppedMessage]:
                async with asyncio.timeout(60):
                    while not (
                        found := await consumer.receive(
                            count, invisible_seconds=20, await_seconds=2
                        )
                    ):
                        continue
                return found

            first, second = await take(2)
            assert (first.body, second.body) == (b"0", b"1")
            assert first.receipt.revive_queue == 999
            assert await consumer.receive(await_seconds=1) == []
            await consumer.change_invisible_duration(first, 1)
            await consumer.change_invisible_duration(second, 1)
            first, second, third = await take(3)
            assert [first.body, second.body, third.body] == [b"0", b"1", b"2"]
            assert [each.reconsume_times for each in (first, second, third)] == [1, 1, 0]
            for message in (first, second, third):
                await consumer.ack(message)
            rest = await take(5)
            assert [each.body for each in rest] == [b"3", b"4", b"5"]


async def test_a_batch_in_hand_goes_along_when_the_store_changes_hands(
    java: None, tmp_path: Path
) -> None:
    with Cluster(tmp_path, "rocketpost", settings=dict(SMALL_STORE)) as cluster:
        async with (
            Producer("p", name_servers=cluster.namesrv) as producer,
            SimpleConsumer(
                "g", name_servers=cluster.namesrv, start_from=StartFrom.FIRST, orderly=True
            ) as consumer,
        ):
            queue = (await producer.send(Message("Handed", b"0"))).queue
            for number in range(1, 4):
                await producer.send(Message("Handed", b"%d" % number), queue=queue)
            await consumer.subscribe("Handed")
            first, second = await consumer.receive(2, invisible_seconds=120, await_seconds=10)
            await consumer.ack(first)
        cluster.stop_broker()
        cluster.start_broker("apache")
        async with SimpleConsumer("g", name_servers=cluster.namesrv, orderly=True) as consumer:
            await consumer.subscribe("Handed")
            assert await consumer.receive(await_seconds=3) == []
            await consumer.ack(second)
            rest = await consumer.receive(await_seconds=10)
            assert [each.body for each in rest] == [b"2", b"3"]


@pytest.fixture(scope="module")
def popper(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A Java client of the release that pops."""
    with Peer("5.3", tmp_path_factory.mktemp("popper")) as running:
        yield running


@pytest.mark.parametrize("share", [0, 1])
def test_a_java_push_consumer_pops(cluster: Cluster, popper: Peer, share: int) -> None:
    topic, group = f"PoppedByJava{share}", f"java-pops-{share}"
    made = f"updateTopic -b {cluster.broker} -t {topic} -r 4 -w 4"
    assert "success" in popper.mqadmin(cluster.namesrv, made)
    popper.mqadmin(cluster.namesrv, f"updateSubGroup -b {cluster.broker} -g {group}")
    mode = f"setConsumeMode -b {cluster.broker} -t {topic} -g {group} -m POP -q {share}"
    assert "success" in popper.mqadmin(cluster.namesrv, mode)
    popper.run("send", namesrv=cluster.namesrv, topic=topic, count=20, tags="TagA,TagB")
    # Each message is refused once; it comes again as one of its own topic.
    events = popper.run(
        "push",
        namesrv=cluster.namesrv,
        group=group,
        topic=topic,
        expression="TagA",
        askBrokers=1,
        refuse=1,
        count=20,
        timeout=90,
    )
    [end] = named(events, "consumed")
    assert end["complete"]
    messages = named(events, "message")
    assert {message["topic"] for message in messages} == {topic}
    assert sorted(message["reconsumeTimes"] for message in messages) == [0] * 10 + [1] * 10
    assert all("POP_CK" in message["properties"] for message in messages)
    # Everything is acknowledged: nothing is left for another look.
    again = popper.run(
        "push", namesrv=cluster.namesrv, group=group, topic=topic, askBrokers=1, count=1, timeout=3
    )
    assert named(again, "message") == []


def test_a_java_push_consumer_pulls_what_the_broker_assigns(cluster: Cluster, popper: Peer) -> None:
    topic, group = "AssignedByBroker", "java-asks"
    made = f"updateTopic -b {cluster.broker} -t {topic} -r 4 -w 4"
    assert "success" in popper.mqadmin(cluster.namesrv, made)
    popper.run("send", namesrv=cluster.namesrv, topic=topic, count=12)
    events = popper.run(
        "push",
        namesrv=cluster.namesrv,
        group=group,
        topic=topic,
        askBrokers=1,
        count=12,
        timeout=60,
    )
    messages = named(events, "message")
    assert len(messages) == 12
    assert not any("POP_CK" in message["properties"] for message in messages)
