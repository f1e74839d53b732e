"""The SDK while servers come and go: real processes, killed without warning."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rocketpost.client import (
    Message,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    RocketpostError,
    SendStatus,
    SimpleConsumer,
    StartFrom,
    blocking,
)
from rocketpost.testing.cluster import Cluster

pytestmark = pytest.mark.slow

TOPIC = "Failover"


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


async def send_until_all_brokers_serve(producer: Producer, count: int) -> None:
    """Send until ``count`` brokers have made the topic and producers are routed to all of them."""
    seen: set[str] = set()
    async with asyncio.timeout(30):
        while len(seen) < count:
            seen.add((await producer.send(Message(TOPIC, b"first"))).queue.broker_name)


async def test_one_of_two_name_servers_is_enough(tmp_path: Path) -> None:
    with Cluster(tmp_path, name_servers=2) as cluster:
        async with Producer("failover", name_servers=cluster.addresses) as producer:
            assert (await producer.send(Message("One", b"x"))).status is SendStatus.SEND_OK
            cluster.name_servers[0].kill()
            for n in range(4):
                result = await producer.send(Message(f"More{n}", b"x"))
                assert result.status is SendStatus.SEND_OK


async def test_a_killed_broker_costs_no_acknowledged_message(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=2) as cluster:
        config = ProducerConfig(name_servers=cluster.addresses, send_timeout=10.0, retries=5)
        consumer_config = PushConsumerConfig(
            name_servers=cluster.addresses, start_from=StartFrom.FIRST, rebalance_seconds=2
        )
        got: set[bytes] = set()

        async def handle(message: ReceivedMessage) -> None:
            got.add(message.body)

        async with Producer("failover", config=config) as producer:
            await send_until_all_brokers_serve(producer, 2)
            consumer = PushConsumer("failover-readers", config=consumer_config)
            consumer.subscribe(TOPIC, handle)
            async with consumer:
                stored: set[bytes] = set()
                for n in range(300):
                    if n == 100:
                        cluster.brokers[0].kill()
                    if n == 200:
                        cluster.brokers[0].start()
                    body = b"%d" % n
                    await producer.send(Message(TOPIC, body))
                    stored.add(body)
                await until(lambda: stored <= got)


async def test_a_consumer_survives_a_restart_of_its_only_broker(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        consumer_config = PushConsumerConfig(
            name_servers=cluster.addresses, start_from=StartFrom.FIRST, rebalance_seconds=2
        )
        got: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            got.append(message.body)

        async with Producer("failover", name_servers=cluster.addresses) as producer:
            await producer.send(Message(TOPIC, b"before"))
            consumer = PushConsumer("failover-readers", config=consumer_config)
            consumer.subscribe(TOPIC, handle)
            async with consumer:
                await until(lambda: b"before" in got)
                cluster.brokers[0].kill()
                with pytest.raises(RocketpostError):
                    await producer.send(Message(TOPIC, b"lost"), timeout=0.1)
                cluster.brokers[0].start()
                await producer.send(Message(TOPIC, b"after"))
                await until(lambda: b"after" in got)


async def test_a_restart_of_the_only_broker_fails_no_call(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        # A budget that the restart surely keeps to, also on a busy machine; nothing waits for it.
        config = ProducerConfig(name_servers=cluster.addresses, send_timeout=30.0)
        puller_config = PullConsumerConfig(name_servers=cluster.addresses, call_timeout=30.0)
        back = asyncio.Event()
        calls: Counter[str] = Counter()

        async def repeat(name: str, call: Callable[[], Awaitable[object]]) -> None:
            while not back.is_set():
                await call()
                calls[name] += 1
            await call()

        async with (
            Producer("restart", config=config) as plain,
            Producer("restart", config=config, idempotent=True) as once,
            PullConsumer("readers", config=puller_config) as puller,
            SimpleConsumer("workers", config=puller_config) as worker,
        ):
            sent = await plain.send(Message(TOPIC, b"x"))
            await worker.subscribe(TOPIC)
            threaded = blocking.Producer("threads", config=config)
            await asyncio.to_thread(threaded.start)

            async def work() -> None:
                for message in await worker.receive(await_seconds=30.0):
                    await worker.ack(message)

            callers = {
                "send": lambda: plain.send(Message(TOPIC, b"x")),
                "send once": lambda: once.send(Message(TOPIC, b"x")),
                "send in a thread": lambda: asyncio.to_thread(threaded.send, Message(TOPIC, b"x")),
                "pull": lambda: puller.pull(sent.queue, 0),
                "ask": lambda: puller.max_offset(sent.queue),
                "receive": work,
            }
            async with asyncio.TaskGroup() as group:
                for name, call in callers.items():
                    group.create_task(repeat(name, call))
                await until(lambda: all(calls[name] >= 3 for name in callers))
                await asyncio.to_thread(cluster.brokers[0].kill)
                await asyncio.to_thread(cluster.brokers[0].start)
                back.set()
            await asyncio.to_thread(threaded.stop)


async def test_a_client_leaves_a_silent_broker_for_another(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=2) as cluster:
        config = ProducerConfig(
            name_servers=cluster.addresses, send_timeout=10.0, attempt_timeout=0.5
        )
        async with Producer("failover", config=config) as producer:
            await send_until_all_brokers_serve(producer, 2)
            cluster.brokers[0].pause()
            try:
                results = [await producer.send(Message(TOPIC, b"x")) for _ in range(6)]
            finally:
                cluster.brokers[0].resume()
            assert {result.queue.broker_name for result in results} == {"broker-1"}
            await send_until_all_brokers_serve(producer, 2)
