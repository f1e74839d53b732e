"""Messages that a consumer fails to handle: they come again, later each time, then are dead."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.client import (
    Message,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    Retry,
    StartFrom,
)
from rocketpost.codec.record import Record
from rocketpost.testing import Cluster
from rocketpost.testing.link import BrokerLink

from .flush_modes import FLUSH_MODES

pytestmark = pytest.mark.slow

# Level 3, the first of a retry, and those after it.
LEVELS = "1s 1s 1s 2s 1s 1s"
_groups = (f"group-{number}" for number in itertools.count())


@pytest.fixture(params=FLUSH_MODES)
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    settings = {"messageDelayLevel": LEVELS, "flushDiskType": request.param}
    with Cluster(tmp_path, settings=settings) as cluster:
        yield cluster


async def dead_letters(cluster: Cluster, group: str, count: int) -> list[Record]:
    link = await BrokerLink.connect(cluster.broker_addresses[0])
    topic = f"%DLQ%{group}"
    try:
        async with asyncio.timeout(20):
            while not await link.has_topic(topic) or await link.max_offset(topic, 0) < count:
                await asyncio.sleep(0.05)
        return await link.read(topic, 0, 0, count + 1)
    finally:
        link.close()


async def test_a_message_is_retried_and_then_dead(cluster: Cluster) -> None:
    group = next(_groups)
    seen: list[tuple[str, int, float]] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append((message.topic, message.reconsume_times, time.monotonic()))
        raise Retry

    async with Producer("producers", name_servers=cluster.addresses) as producer:
        sent = await producer.send(Message("Orders", b"bad", tags="A", keys="k1"))
    config = PushConsumerConfig(
        name_servers=cluster.addresses, start_from=StartFrom.FIRST, retry_max=2
    )
    consumer = PushConsumer(group, config=config)
    consumer.subscribe("Orders", handle)
    async with consumer:
        [dead] = await dead_letters(cluster, group, 1)
    assert [(topic, times) for topic, times, _ in seen] == [
        ("Orders", 0),
        ("Orders", 1),
        ("Orders", 2),
    ]
    assert seen[1][2] - seen[0][2] >= 1.0
    assert seen[2][2] - seen[1][2] >= 2.0
    assert (bytes(dead.body), dead.reconsume_times) == (b"bad", 3)
    properties = dead.properties
    assert properties["UNIQ_KEY"] == sent.message_id
    assert (properties["RETRY_TOPIC"], properties["TAGS"], properties["KEYS"]) == (
        "Orders", "A", "k1",
    )  # fmt: skip
    assert properties["ORIGIN_MESSAGE_ID"] == sent.offset_id


async def test_a_broker_killed_between_retries_loses_none(cluster: Cluster) -> None:
    group = next(_groups)
    rounds: dict[bytes, list[int]] = {}

    async def handle(message: ReceivedMessage) -> None:
        rounds.setdefault(message.body, []).append(message.reconsume_times)
        raise Retry(1)

    bodies = [f"bad-{number}".encode() for number in range(50)]
    async with Producer("producers", name_servers=cluster.addresses) as producer:
        for body in bodies:
            await producer.send(Message("Orders", body))
    config = PushConsumerConfig(
        name_servers=cluster.addresses, start_from=StartFrom.FIRST, retry_max=2
    )
    consumer = PushConsumer(group, config=config)
    consumer.subscribe("Orders", handle)
    async with consumer:
        async with asyncio.timeout(20):
            while len(rounds) < len(bodies):
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.9)  # the first retries are about to come
        cluster.brokers[0].kill()
        await asyncio.to_thread(cluster.brokers[0].start)
        dead = await dead_letters(cluster, group, len(bodies))
    assert {bytes(record.body) for record in dead} == set(bodies)
    for times in rounds.values():
        assert set(times) == {0, 1, 2}
