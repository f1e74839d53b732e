"""``consumerProgress -e`` on real servers: what waits for a group that filters by tags."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rocketpost.admin.main import mqadmin
from rocketpost.client import (
    Message,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)
from rocketpost.client.admin import AdminClient
from rocketpost.diagnosis import lag
from rocketpost.errors import InvalidParameter
from rocketpost.model.route import MessageQueue
from rocketpost.testing import Cluster

pytestmark = pytest.mark.slow

TOPIC = "Orders"


def progress(cluster: Cluster, *words: str) -> str:
    words = ("consumerProgress", "-g", "picky", *words)
    result = CliRunner().invoke(mqadmin, words, env={"NAMESRV_ADDR": cluster.addresses})
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    return result.stdout


async def exact(cluster: Cluster) -> dict[str, Any]:
    words = ("-t", TOPIC, "-e", "--json")
    return dict(json.loads(await asyncio.to_thread(progress, cluster, *words)))


async def until_known(cluster: Cluster, topic: str) -> None:
    async with AdminClient(name_servers=cluster.addresses) as admin, asyncio.timeout(20):
        while topic not in await admin.cluster.topics():
            await asyncio.sleep(0.05)


async def test_only_matching_messages_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag, "_ENTRIES_PER_REQUEST", 7)
    begun = asyncio.Event()
    release = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        begun.set()
        await release.wait()

    with Cluster(tmp_path) as cluster:
        async with Producer("shop", name_servers=cluster.addresses) as producer:
            for number in range(90):
                await producer.send(Message(TOPIC, b"x", tags="A" if number % 3 == 0 else "B"))
            queues = await producer.queues(TOPIC)
        config = PushConsumerConfig(
            name_servers=cluster.addresses, start_from=StartFrom.FIRST, persist_seconds=0.1
        )
        consumer = PushConsumer("picky", config=config)
        consumer.subscribe(TOPIC, handle, tags="A")
        async with consumer:
            await begun.wait()
            await until_known(cluster, "%RETRY%picky")
            waits = await exact(cluster)
            assert waits["matchingTotal"] == 30
            assert sum(each["matching"] for each in waits["queues"]) == 30
            assert waits["diffTotal"] > 30
            shown = await asyncio.to_thread(progress, cluster, "-t", TOPIC, "-e", "-s", "true")
            assert "Consume Matching Total: 30" in shown
            release.set()
            async with asyncio.timeout(20):
                while (await exact(cluster))["matchingTotal"]:
                    await asyncio.sleep(0.1)
        async with AdminClient(name_servers=cluster.addresses) as admin:
            beyond = MessageQueue(queues[0].broker_name, 0, TOPIC)
            with pytest.raises(InvalidParameter, match="commitOffset=10000 is outside queue 0"):
                await admin.groups.set_offset(cluster.broker_addresses[0], "picky", beyond, 10_000)
        after = await exact(cluster)
        assert after["queues"][0]["diff"] == 0
        assert min(each["diff"] for each in after["queues"]) >= 0
