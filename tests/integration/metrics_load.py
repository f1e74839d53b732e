"""A little of everything that a broker counts, so that a scrape shows its metrics.

``tests/interop/make_metrics_golden.py`` runs it against Apache's broker, tests against ours.
"""

from __future__ import annotations

import asyncio
import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families as parse

from rocketpost.client import (
    Message,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    SimpleConsumer,
    StartFrom,
    TransactionProducer,
    TransactionState,
)
from rocketpost.client.admin import AdminClient
from rocketpost.model.group import GroupConfig
from rocketpost.model.topic import TopicConfig

TOPIC = "Golden"
POPPED = "GoldenPopped"
SECONDS_MAX = 90.0
OUTCOMES = {
    b"yes": TransactionState.COMMIT,
    b"no": TransactionState.ROLLBACK,
    b"pending": TransactionState.UNKNOWN,
}


async def make_load(name_servers: str, broker: str) -> None:
    """Send, consume, delay, commit, pop and give up messages."""
    async with asyncio.timeout(SECONDS_MAX):
        await _create(name_servers, broker)
        async with Producer("golden", name_servers=name_servers) as producer:
            for topic in (TOPIC, POPPED):
                for number in range(1, 9):
                    await producer.send(Message(topic, b"x" * 100 * number))
            await producer.send(Message(TOPIC, b"later", delay_seconds=1))
            await producer.send(Message(TOPIC, b"much later", delay_seconds=600))
            await producer.send(Message(TOPIC, b"by level", delay_level=18))
            await _commit(name_servers)
            await _consume(name_servers)
            await _pop(name_servers)


async def _create(name_servers: str, broker: str) -> None:
    async with AdminClient(name_servers=name_servers) as admin:
        for topic in (TOPIC, POPPED):
            config = TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)
            await admin.topics.create(broker, config)
        for group in ("readers", "poppers"):
            config_of_group = GroupConfig(group_name=group, retry_max_times=0)
            await admin.groups.create(broker, config_of_group)
        for topic in (TOPIC, POPPED):
            while True:
                try:
                    await admin.cluster.route(topic)
                    break
                except Exception:  # not registered yet
                    await asyncio.sleep(0.1)


async def _commit(name_servers: str) -> None:
    def decide(message: Message, transaction_id: str) -> TransactionState:
        return OUTCOMES[message.body]

    def look_up(message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    async with TransactionProducer(
        "golden-halves", checker=look_up, topics=[TOPIC], name_servers=name_servers
    ) as producer:
        for body in OUTCOMES:
            await producer.send_in_transaction(Message(TOPIC, body), decide)


async def _consume(name_servers: str) -> None:
    seen = asyncio.Event()
    bodies: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        bodies.append(message.body)
        if b"later" in bodies and len(bodies) >= 8:
            seen.set()
        if len(message.body) == 100:
            raise ValueError("a dead letter")

    config = PushConsumerConfig(name_servers=name_servers, start_from=StartFrom.FIRST, retry_max=0)
    consumer = PushConsumer("readers", config=config)
    consumer.subscribe(TOPIC, handle)
    async with consumer:
        await seen.wait()
        await asyncio.sleep(1)  # the dead letter and the offsets arrive


async def _pop(name_servers: str) -> None:
    async with SimpleConsumer(
        "poppers", name_servers=name_servers, start_from=StartFrom.FIRST
    ) as consumer:
        await consumer.subscribe(POPPED)
        found: list[Any] = []
        while len(found) < 2:
            found += await consumer.receive(2, invisible_seconds=10, await_seconds=5)
        await consumer.ack(found[0])
        await consumer.change_invisible_duration(found[1], 1)
        bodies: set[bytes] = set()
        while found[1].body not in bodies:
            for message in await consumer.receive(8, invisible_seconds=10):
                bodies.add(message.body)
                await consumer.ack(message)


def scrape(url: str) -> dict[str, dict[str, Any]]:
    """Return type and label names of every family that is served."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    found: dict[str, dict[str, Any]] = {}
    for family in parse(text):
        if not family.samples:
            continue
        is_counter = family.type == "counter"
        name = f"{family.name}_total" if is_counter else family.name
        labels = {label for sample in family.samples for label in sample.labels}
        found[name] = {"type": family.type, "labels": sorted(labels - {"le"})}
    return found
