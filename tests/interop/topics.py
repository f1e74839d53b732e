"""Topics of numbered messages: made, filled, read back and judged."""

from __future__ import annotations

import asyncio
from collections import Counter

from interop.servers import Cluster
from rocketpost.client import Message, MessageQueue, Producer, PullConsumer
from rocketpost.client.admin import AdminClient
from rocketpost.model.topic import TopicConfig

QUEUES = 4
KEYS = 8


def make_topic(cluster: Cluster, name: str) -> None:
    async def make() -> None:
        config = TopicConfig(topic_name=name, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        async with AdminClient(name_servers=cluster.namesrv) as admin:
            await admin.topics.create(cluster.broker, config)

    asyncio.run(make())


def fill(cluster: Cluster, topic: str, count: int) -> None:
    """Send numbered messages, those of one key to one queue in their order."""

    async def send() -> None:
        async with Producer("loader", name_servers=cluster.namesrv) as producer:
            for at in range(0, count, 200):
                sends = [
                    await producer.send_soon(
                        Message(topic, b"%d" % number, sharding_key=f"k{number % KEYS}", tags="T")
                    )
                    for number in range(at, min(at + 200, count))
                ]
                await asyncio.gather(*sends)

    make_topic(cluster, topic)
    asyncio.run(send())


def read(cluster: Cluster, topic: str) -> dict[int, list[int]]:
    """Return the numbers in each queue, in order, as the SDK reads them."""

    async def pull() -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        async with PullConsumer("reader", name_servers=cluster.namesrv) as consumer:
            for queue in await consumer.queues(topic):
                found[queue.queue_id] = await numbers(consumer, queue)
        return found

    async def numbers(consumer: PullConsumer, queue: MessageQueue) -> list[int]:
        some: list[int] = []
        end = await consumer.max_offset(queue)
        while len(some) < end:
            pulled = await consumer.pull(queue, len(some))
            some += [int(message.body) for message in pulled.messages]
        return some

    return asyncio.run(pull())


def judged(found: dict[int, list[int]], origin: dict[int, list[int]]) -> tuple[int, int, int]:
    """Return how many are missing, how many are there too often, how many overtook another.

    Apache's broker stores what one connection sends at the same time in any order, so that of the
    origin counts.
    """
    place = {number: at for numbers in origin.values() for at, number in enumerate(numbers)}
    counts = Counter(number for numbers in found.values() for number in numbers)
    disordered = 0
    for numbers in found.values():
        last: dict[int, int] = {}
        for number in numbers:
            disordered += place[number] < last.get(number % KEYS, -1)
            last[number % KEYS] = place[number]
    missing = len(place.keys() - counts.keys())
    return missing, sum(times - 1 for times in counts.values()), disordered
