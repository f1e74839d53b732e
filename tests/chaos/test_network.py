"""A network that cuts, delays and swallows between the SDK and a broker.

The broker tells its clients an address of the loopback network where only the proxy listens.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from rocketpost.client import (
    Message,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    RocketpostError,
    SendResult,
    SendStatus,
    StartFrom,
)
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.fault_proxy import NONE, FaultProxy, InjectedFault

PROXY_HOST = "127.0.0.77"
TOPIC = "network"
WAVES = 12


def faults(rng: random.Random) -> list[InjectedFault]:
    return [
        NONE,
        InjectedFault(delay_s=rng.uniform(0.01, 0.2)),
        InjectedFault(cut_after_bytes=rng.randrange(1, 20_000)),
        InjectedFault(cut_answers_after_bytes=rng.randrange(1, 5_000)),
        InjectedFault(swallow_answers=True),
        InjectedFault(swallow_requests=True),
        InjectedFault(swallow_requests=True, swallow_answers=True),
        InjectedFault(refuse=True),
    ]


class Sent:
    """The answers that a producer got."""

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, SendResult] = {}
        self.unknown: set[bytes] = set()

    async def send(self, producer: Producer, body: bytes) -> None:
        try:
            result = await producer.send(Message(TOPIC, body))
        except RocketpostError:
            self.unknown.add(body)
            return
        if result.status is SendStatus.SEND_OK:
            self.acknowledged[body] = result
        else:
            self.unknown.add(body)


async def read_all(name_servers: str) -> Counter[bytes]:
    bodies: Counter[bytes] = Counter()
    async with PullConsumer("reader", name_servers=name_servers) as consumer:
        for queue in await consumer.queues(TOPIC):
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                pulled = await consumer.pull(queue, offset)
                assert pulled.next_offset > offset
                assert [m.queue_offset for m in pulled.messages] == list(
                    range(offset, pulled.next_offset)
                )
                bodies.update(bytes(message.body) for message in pulled.messages)
                offset = pulled.next_offset
    return bodies


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_retries_over_a_bad_network(tmp_path: Path, seed: int, flush: str) -> None:
    rng = random.Random(seed)
    settings = {"flushDiskType": flush, "brokerIP1": PROXY_HOST}
    with Cluster(tmp_path, settings=settings) as cluster:
        host, _, port = cluster.broker_addresses[0].partition(":")
        target = host, int(port)
        async with FaultProxy(target, listen=(PROXY_HOST, int(port))) as proxy:
            sent, received = await _run(cluster, proxy, rng)
            bodies = await read_all(cluster.addresses)
            everything = set(sent.acknowledged) | sent.unknown
            assert not set(sent.acknowledged) - set(bodies), "acknowledged messages are lost"
            assert not set(bodies) - everything, "messages that nobody sent"
            assert len(sent.acknowledged) > WAVES
            # Every attempt may have stored it; no more.
            assert max(bodies.values()) <= 1 + ProducerConfig().retries
            assert proxy.connection_count > 1
            missed = set(sent.acknowledged) - received
            assert not missed, f"{len(missed)} acknowledged messages were not consumed"


async def _run(cluster: Cluster, proxy: FaultProxy, rng: random.Random) -> tuple[Sent, set[bytes]]:
    """Send through all kinds of faults, then without any; returns what was sent and consumed."""
    sent, received = Sent(), set[bytes]()

    async def consume(message: ReceivedMessage) -> None:
        received.add(bytes(message.body))

    config = ProducerConfig(name_servers=cluster.addresses, send_timeout=2.0, attempt_timeout=0.5)
    consumer_config = PushConsumerConfig(
        name_servers=cluster.addresses, start_from=StartFrom.FIRST, rebalance_seconds=1
    )
    async with Producer("network", config=config) as producer:
        await sent.send(producer, b"first")
        consumer = PushConsumer("network-consumer", config=consumer_config)
        consumer.subscribe(TOPIC, consume)
        async with consumer:
            for wave in range(WAVES):
                proxy.fault = rng.choice(faults(rng))
                sends = [sent.send(producer, b"%d-%d" % (wave, n)) for n in range(40)]
                await asyncio.gather(*sends)
                proxy.fault = NONE
                await proxy.cut()
            await sent.send(producer, b"last")
            async with asyncio.timeout(60):
                while set(sent.acknowledged) - received:
                    await asyncio.sleep(0.05)
    return sent, received
