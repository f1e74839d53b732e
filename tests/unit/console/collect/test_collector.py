"""A round reads tables seldom, but at once if a page misses what it is about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.cluster import ClusterInfo
from rocketpost.codec.bodies.offset import BrokerConsumeState, ConsumeState, QueueProgress
from rocketpost.console.collect.collector import (
    UNWATCHED_SECONDS_MAX,
    WATCHED_SECONDS,
    WATCHED_SECONDS_MAX,
    Collector,
)
from rocketpost.console.collect.snapshot import Snapshot
from rocketpost.model.route import BrokerData, MessageQueue
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.virtual_time import in_virtual_time


class FakeAdmin:
    """A cluster of one broker, whose topics can be changed."""

    def __init__(self, *topics: str) -> None:
        self.names = list(topics)
        self.is_listed = True
        self.jump = 0.0
        """Seconds by which the clock has jumped."""
        self.halts: list[float] = []
        """Seconds for which the machine will stand still in the next rounds."""
        self.ends: dict[str, int] = {}
        """End offsets of topics that a group reads."""
        self.reads = 0
        """How often the tables were read."""
        self.cluster = self.brokers = self
        self.topics = SimpleNamespace(table=self.read_topics)
        self.groups = SimpleNamespace(table=self.read_groups, producers=self.find_producers)

    async def info(self) -> ClusterInfo:
        self.jump += self.halts.pop() if self.halts else 0
        if not self.is_listed:
            return ClusterInfo(broker_addr_table={}, cluster_addr_table={})
        data = BrokerData(cluster="c", broker_name="b", broker_addrs={0: "h:1"})
        return ClusterInfo(broker_addr_table={"b": data}, cluster_addr_table={"c": ["b"]})

    async def runtime(self, address: str) -> dict[str, str]:
        return {}

    async def consume_stats(self, address: str, *, timeout: float) -> BrokerConsumeState:
        queues = {
            MessageQueue("b", 0, topic): QueueProgress(
                broker_offset=end, consumer_offset=end, pull_offset=end, last_timestamp=0
            )
            for topic, end in self.ends.items()
        }
        return BrokerConsumeState(
            broker_addr=address, groups=[("g", [ConsumeState(queues=queues)])]
        )

    async def read_topics(self, address: str) -> Any:
        self.reads += 1
        return SimpleNamespace(
            topic_config_table={name: TopicConfig(topic_name=name) for name in self.names}
        )

    async def read_groups(self, address: str) -> Any:
        return SimpleNamespace(subscription_group_table={})

    async def find_producers(self, address: str) -> dict[str, list[Any]]:
        return {}


@asynccontextmanager
async def collect(admin: FakeAdmin) -> AsyncIterator[Collector]:
    client: AdminClient = admin  # type: ignore[assignment]
    loop = asyncio.get_running_loop()
    collector = Collector(client, clock=lambda: loop.time() + admin.jump)
    task = asyncio.create_task(collector.run())
    try:
        yield collector
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def has(name: str) -> Any:
    def check(snapshot: Snapshot) -> bool:
        return name in snapshot.topics

    return check


@in_virtual_time
async def test_a_topic_that_was_made_just_now_is_found() -> None:
    admin = FakeAdmin("Old")
    async with collect(admin) as collector:
        assert set((await collector.search(has("Old"))).topics) == {"Old"}
        admin.names.append("New")
        assert set((await collector.fresh_snapshot()).topics) == {"Old"}
        assert set((await collector.search(has("New"))).topics) == {"Old", "New"}


@in_virtual_time
async def test_searches_in_vain_do_not_read_tables_again_and_again() -> None:
    admin = FakeAdmin("Old")
    async with collect(admin) as collector:
        await collector.search(has("Old"))
        for _ in range(10):
            assert not has("None")(await collector.search(has("None")))
        assert admin.reads == 2
        await asyncio.sleep(5)
        await collector.search(has("None"))
        assert admin.reads == 3


@in_virtual_time
async def test_a_round_that_took_long_does_not_stop_the_next_ones() -> None:
    admin = FakeAdmin()
    async with collect(admin) as collector:
        await collector.fresh_snapshot()
        admin.halts.append(3600)
        while collector.snapshot.took_ms < 3_600_000:
            await asyncio.sleep(1)
        await asyncio.sleep(0)
        assert collector.snapshot.every_seconds == UNWATCHED_SECONDS_MAX  # nobody looked meanwhile
        seen = asyncio.get_running_loop().time()
        while collector.snapshot.took_ms:
            await collector.fresh_snapshot()
            await asyncio.sleep(1)
        assert asyncio.get_running_loop().time() - seen <= WATCHED_SECONDS_MAX + 2
        assert collector.snapshot.every_seconds == WATCHED_SECONDS


@in_virtual_time
async def test_rates_of_topics_are_remembered_from_their_first_messages_on() -> None:
    admin = FakeAdmin("Busy", "Quiet", "%RETRY%g")
    admin.ends = dict.fromkeys(admin.names, 7)
    async with collect(admin) as collector:
        for _ in range(10):
            await collector.fresh_snapshot()
            await asyncio.sleep(WATCHED_SECONDS)
            admin.ends["Busy"] += 50
            admin.ends["%RETRY%g"] += 50
        series = collector.topic_rates.find("Busy")
        assert series is not None
        assert {point.value for point in series.fine.points()} == {10.0}
        assert collector.topic_rates.find("Quiet") is None
        assert collector.topic_rates.find("%RETRY%g") is None
        admin.names.remove("Busy")
        collector.forget_tables()
        await collector.wait_round()
        assert collector.topic_rates.find("Busy") is None


@in_virtual_time
async def test_a_broker_that_is_no_longer_listed_is_shown_with_the_time_it_was_seen() -> None:
    admin = FakeAdmin("Old")
    async with collect(admin) as collector:
        await collector.fresh_snapshot()
        admin.is_listed = False
        await asyncio.sleep(1)
        admin.jump += 40  # nobody looked meanwhile
        [broker] = (await collector.fresh_snapshot()).brokers
        assert broker.problem == "no name server lists it any more; seen 41 s ago"
