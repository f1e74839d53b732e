"""``explain`` and the dead-letter commands against Apache's name server and broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from interop.servers import SMALL_STORE, Cluster
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

pytestmark = pytest.mark.interop

TOPIC = "Orders"


@pytest.fixture(scope="module")
def apache(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("apache"), "apache", settings=SMALL_STORE) as cluster:
        ok(cluster, "updateTopic", "-c", "DefaultCluster", "-t", TOPIC, "-r", "1", "-w", "1")
        yield cluster


def ok(cluster: Cluster, *words: str) -> str:
    result = CliRunner().invoke(mqadmin, words, env={"NAMESRV_ADDR": cluster.namesrv})
    assert result.exit_code == 0, (words, result.stdout, result.stderr, result.exception)
    return result.stdout


async def until(cluster: Cluster, name: str, group: str, state: str) -> dict[str, Any]:
    """Return what is told of a group once the message is in that state."""
    async with asyncio.timeout(60):
        while True:
            printed = await asyncio.to_thread(ok, cluster, "explain", name, "--json")
            [told] = json.loads(printed)
            for each in told["groups"]:
                if each["group"] == group and each["state"] == state:
                    return dict(each)
            await asyncio.sleep(0.2)


def consumer_of(cluster: Cluster, group: str) -> PushConsumer:
    config = PushConsumerConfig(
        name_servers=cluster.namesrv, start_from=StartFrom.FIRST, persist_seconds=0.2
    )
    return PushConsumer(group, config=config)


async def handled(
    cluster: Cluster, group: str, handle: Callable[[ReceivedMessage], None], state: str
) -> tuple[str, dict[str, Any]]:
    """Send a message to a consumer; return its offset id, and its fate once it is so far."""

    async def handler(message: ReceivedMessage) -> None:
        if message.body == group.encode():
            handle(message)

    consumer = consumer_of(cluster, group)
    consumer.subscribe(TOPIC, handler, tags="A")
    async with consumer, Producer("shop", name_servers=cluster.namesrv) as producer:
        message = Message(TOPIC, group.encode(), tags="A", keys="k1", properties={"who": "me"})
        sent = await producer.send(message)
        return sent.offset_id, await until(cluster, sent.offset_id, group, state)


async def test_a_retry_that_waits_is_explained(apache: Cluster) -> None:
    def handle(message: ReceivedMessage) -> None:
        raise Retry(5)

    offset_id, fate = await handled(apache, "waiting", handle, "RETRYING")
    assert (fate["retry"], fate["retryMax"]) == (1, 16)
    [told] = json.loads(await asyncio.to_thread(ok, apache, "explain", offset_id, "--json"))
    assert 50_000 <= fate["untilTimestamp"] - told["storeTimestamp"] <= 90_000
    assert told["place"]["indexed"] is True
    assert await asyncio.to_thread(Path(told["place"]["file"]).is_file)


async def test_consumed_and_filtered_are_explained(apache: Cluster) -> None:
    _, fate = await handled(apache, "done", lambda message: None, "CONSUMED")
    assert (fate["members"], len(fate["owners"])) == (1, 1)
    consumer = consumer_of(apache, "picky")

    async def handle(message: ReceivedMessage) -> None:
        return None

    consumer.subscribe(TOPIC, handle, tags="Nothing")
    async with consumer, Producer("shop", name_servers=apache.namesrv) as producer:
        sent = await producer.send(Message(TOPIC, b"x", tags="B"))
        kept_out = await until(apache, sent.offset_id, "picky", "FILTERED")
    assert kept_out["filter"] == "Nothing"


async def test_a_dead_letter_is_explained_and_sent_again_once(apache: Cluster) -> None:
    def handle(message: ReceivedMessage) -> None:
        if "__DEAD_LETTER" not in message.properties:
            raise Retry(-1)

    offset_id, fate = await handled(apache, "dying", handle, "DEAD")
    listed = json.loads(await asyncio.to_thread(ok, apache, "dlqList", "-g", "dying", "--json"))
    assert [each["deadLetterId"] for each in listed] == [fate["copy"]["offsetMsgId"]]
    assert listed[0]["topic"] == TOPIC
    shown = await asyncio.to_thread(ok, apache, "dlqShow", "-g", "dying", "-i", offset_id)
    assert "who=me" in shown
    first = await asyncio.to_thread(ok, apache, "dlqResend", "-g", "dying")
    assert "1 SENT" in first
    again = await asyncio.to_thread(ok, apache, "dlqResend", "-g", "dying")
    assert "1 ALREADY_SENT" in again
    printed = await asyncio.to_thread(ok, apache, "printMsg", "-t", TOPIC)
    assert printed.count("__DEAD_LETTER=%DLQ%dying/") == 1


async def test_a_delayed_message_is_explained(apache: Cluster) -> None:
    async with Producer("shop", name_servers=apache.namesrv) as producer:
        sent = await producer.send(Message(TOPIC, b"later", delay_level=6))
    words = ("explain", sent.message_id, "-t", TOPIC, "--json")
    async with asyncio.timeout(20):
        while True:
            runner = CliRunner()
            environment = {"NAMESRV_ADDR": apache.namesrv}
            result = await asyncio.to_thread(runner.invoke, mqadmin, words, env=environment)
            if result.exit_code == 0:
                break
            await asyncio.sleep(0.2)  # Apache's index follows the log a little later
    [told] = json.loads(result.stdout)
    assert 119_000 <= told["delayedUntil"] - told["storeTimestamp"] <= 121_000
