"""Named filters, and what tools tell of expressions, on real servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rocketpost.admin.main import mqadmin
from rocketpost.client import (
    Message,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    Retry,
    StartFrom,
)
from rocketpost.client.admin import AdminClient
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.faults import SubscriptionParseFailed
from rocketpost.codec.headers.message import PullMessage
from rocketpost.model import sysflag
from rocketpost.model.topic import TopicConfig
from rocketpost.testing import Cluster

pytestmark = pytest.mark.slow

TOPIC = "Orders"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    with Cluster(tmp_path, settings={"namedFilterEnable": "true"}) as cluster:
        async with AdminClient(name_servers=cluster.addresses) as admin:
            one_queue = TopicConfig(topic_name=TOPIC, read_queue_nums=1, write_queue_nums=1)
            await admin.topics.create(cluster.broker_addresses[0], one_queue)
            async with asyncio.timeout(20):
                while TOPIC not in await admin.cluster.topics():
                    await asyncio.sleep(0.05)
        yield cluster


def run(cluster: Cluster, *words: str) -> Result:
    return CliRunner().invoke(mqadmin, words, env={"NAMESRV_ADDR": cluster.addresses})


async def ok(cluster: Cluster, *words: str) -> str:
    result = await asyncio.to_thread(run, cluster, *words)
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    return result.stdout


async def refused(cluster: Cluster, *words: str) -> str:
    result = await asyncio.to_thread(run, cluster, *words)
    assert result.exit_code != 0, result.stdout
    return result.stderr


async def send(cluster: Cluster, body: str, **properties: str) -> str:
    async with Producer("shop", name_servers=cluster.addresses) as producer:
        sent = await producer.send(Message(TOPIC, body.encode(), properties=properties))
        return sent.message_id


def consumer(cluster: Cluster, group: str, got: list[bytes], sql: str) -> PushConsumer:
    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body)

    config = PushConsumerConfig(
        name_servers=cluster.addresses, start_from=StartFrom.FIRST, persist_seconds=0.1
    )
    made = PushConsumer(group, config=config)
    made.subscribe(TOPIC, handle, sql=sql)
    return made


async def until_got(got: list[bytes], count: int) -> None:
    async with asyncio.timeout(20):
        while len(got) < count:
            await asyncio.sleep(0.02)


async def test_consumers_use_named_filters_that_read_bodies(cluster: Cluster) -> None:
    broker = cluster.broker_addresses[0]
    put = ("updateFilter", "-b", broker, "-f", "big")
    assert "at character" in await refused(cluster, *put, "-e", "body.total >")
    assert "success" in await ok(cluster, *put, "-e", "body.total > 100")
    [listed] = json.loads(await ok(cluster, "filterList", "-b", broker, "--json"))
    assert (listed["filter"], listed["expression"]) == ("big", "body.total > 100")

    got: list[bytes] = []
    wanted = "MATCHES('big') AND region = 'eu'"
    async with consumer(cluster, "picky", got, wanted):
        for total in (50, 150, 250):
            for region in ("eu", "us"):
                await send(cluster, f'{{"total": {total}}}', region=region)
        await send(cluster, "no json", region="eu")
        await send(cluster, '{"total": 350}', region="eu")
        await until_got(got, 3)
        assert got == [b'{"total": 150}', b'{"total": 250}', b'{"total": 350}']
        assert "in use by picky" in await refused(
            cluster, "deleteFilter", "-b", broker, "-f", "big", "--yes"
        )
    with pytest.raises(SubscriptionParseFailed, match="no named filter of that name"):
        await consumer(cluster, "lost", [], "MATCHES('none')").start()
    cluster.brokers[0].kill()
    cluster.brokers[0].start()
    async with asyncio.timeout(20):
        while (
            "big" not in (await asyncio.to_thread(run, cluster, "filterList", "-b", broker)).stdout
        ):
            await asyncio.sleep(0.1)
    kept = "this deletes the filter big"
    assert kept in await refused(cluster, "deleteFilter", "-b", broker, "-f", "big")
    assert "success" in await ok(cluster, "deleteFilter", "-b", broker, "-f", "big", "--yes")
    assert "big" not in await ok(cluster, "filterList", "-b", broker)


async def test_an_expression_is_tested_on_given_and_stored_messages(cluster: Cluster) -> None:
    broker = cluster.broker_addresses[0]
    test = ("testFilter", "-b", broker, "-e", "size > 5")
    assert "TRUE, the message matches" in await ok(cluster, *test, "-p", "size=6")
    assert "FALSE, the message does not match" in await ok(cluster, *test, "-p", "size=5")
    assert "UNKNOWN" in await ok(cluster, *test, "-m", "text")
    told = json.loads(await ok(cluster, *test, "-p", "size=x", "--json"))
    assert told["verdict"] == "ERROR"
    assert "'x'" in told["reason"]
    await send(cluster, "x", size="7")
    async with AdminClient(name_servers=cluster.addresses) as admin:
        [queue] = await admin.session.routes.subscribe(TOPIC)
        stored = await admin.messages.by_offset(queue, 0)
    assert "TRUE" in await ok(cluster, *test, "-i", stored.offset_id)
    assert "NAME=VALUE" in await refused(cluster, *test, "-p", "size")


async def test_a_named_filter_is_refused_unless_turned_on(cluster: Cluster) -> None:
    broker = cluster.broker_addresses[0]
    await ok(cluster, "updateBrokerConfig", "-b", broker, "-k", "namedFilterEnable", "-v", "false")
    put = ("updateFilter", "-b", broker, "-f", "big", "-e", "a = 1")
    assert "namedFilterEnable" in await refused(cluster, *put)


async def test_lag_and_fate_know_the_expression(cluster: Cluster) -> None:
    got: list[bytes] = []
    out = await send(cluster, "small", size="1")
    await send(cluster, "large", size="9")
    async with consumer(cluster, "picky", got, "size > 5"):
        await until_got(got, 1)
        async with asyncio.timeout(20):
            while True:
                [told] = json.loads(await ok(cluster, "explain", "-t", TOPIC, out, "--json"))
                [fate] = told["groups"]
                if fate["state"] == "FILTERED":
                    break
                await asyncio.sleep(0.1)
        assert fate["filter"] == "size > 5"
    for size in (3, 7, 8):
        await send(cluster, "later", size=str(size))
    waits: dict[str, Any] = json.loads(
        await ok(cluster, "consumerProgress", "-g", "picky", "-t", TOPIC, "-e", "--json")
    )
    assert (waits["matchingTotal"], waits["diffTotal"]) == (2, 3)  # by its last expression


async def test_a_pull_with_a_wrong_expression_is_refused(cluster: Cluster) -> None:
    # Apache's broker returns every message then.
    await send(cluster, "x", size="7")
    pull = PullMessage(
        consumer_group="picky",
        topic=TOPIC,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=sysflag.PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="size >",
        sub_version=0,
        expression_type="SQL92",
    )
    async with AdminClient(name_servers=cluster.addresses) as admin:
        with pytest.raises(SubscriptionParseFailed, match="at character 7"):
            await admin.session.call(cluster.broker_addresses[0], RequestCode.PULL_MESSAGE, pull)


async def test_retries_are_filtered_again_if_the_broker_is_set_to(cluster: Cluster) -> None:
    broker = cluster.broker_addresses[0]
    await ok(cluster, "updateBrokerConfig", "-b", broker, "-k", "filterSupportRetry", "-v", "true")
    rounds: list[tuple[bytes, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        rounds.append((message.body, message.reconsume_times))
        if message.reconsume_times == 0:
            raise Retry(delay_level=2)

    config = PushConsumerConfig(name_servers=cluster.addresses, start_from=StartFrom.FIRST)
    made = PushConsumer("picky", config=config)
    made.subscribe(TOPIC, handle, sql="size > 5")
    async with made, asyncio.timeout(60):
        await send(cluster, "medium", size="7")
        while (b"medium", 0) not in rounds:
            await asyncio.sleep(0.02)
        # Before it comes again, the group wants only what is larger.
        await made.subscribe(TOPIC, handle, sql="size > 8")
        await send(cluster, "large", size="9")
        while (b"large", 1) not in rounds:
            await asyncio.sleep(0.02)
    assert rounds == [(b"medium", 0), (b"large", 0), (b"large", 1)]
