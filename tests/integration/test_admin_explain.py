"""``mqadmin explain`` on real servers: every state that a message can be in."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
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
    SendResult,
    SimpleConsumer,
    StartFrom,
)
from rocketpost.client.admin import AdminClient
from rocketpost.model.group import GroupConfig
from rocketpost.model.topic import TopicConfig
from rocketpost.testing import Cluster

pytestmark = pytest.mark.slow

TOPIC = "Orders"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    with Cluster(tmp_path, settings={"messageDelayLevel": "1s 1s 2s 300s 300s"}) as cluster:
        async with AdminClient(name_servers=cluster.addresses) as admin:
            one_queue = TopicConfig(topic_name=TOPIC, read_queue_nums=1, write_queue_nums=1)
            await admin.topics.create(cluster.broker_addresses[0], one_queue)
            async with asyncio.timeout(20):
                while TOPIC not in await admin.cluster.topics():
                    await asyncio.sleep(0.05)
        yield cluster


async def send(cluster: Cluster, body: bytes, **more: Any) -> SendResult:
    async with Producer("shop", name_servers=cluster.addresses) as producer:
        return await producer.send(Message(TOPIC, body, **more))


def run(cluster: Cluster, *words: str) -> Result:
    environment = {"NAMESRV_ADDR": cluster.addresses}
    return CliRunner().invoke(mqadmin, ("explain", *words), env=environment)


async def told(cluster: Cluster, *words: str) -> dict[str, Any]:
    result = await asyncio.to_thread(run, cluster, *words, "--json")
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    [one] = json.loads(result.stdout)
    return dict(one)


async def text(cluster: Cluster, *words: str) -> str:
    result = await asyncio.to_thread(run, cluster, *words)
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    return result.stdout


async def fate(cluster: Cluster, sent: SendResult, group: str) -> dict[str, Any]:
    [one] = [
        each for each in (await told(cluster, sent.offset_id))["groups"] if each["group"] == group
    ]
    return dict(one)


async def until(
    cluster: Cluster, sent: SendResult, group: str, ready: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            groups = (await told(cluster, sent.offset_id))["groups"]
            for each in groups:
                if each["group"] == group and ready(each):
                    return dict(each)
            await asyncio.sleep(0.1)


def consumer_of(cluster: Cluster, group: str, **more: Any) -> PushConsumer:
    config = PushConsumerConfig(
        name_servers=cluster.addresses,
        start_from=StartFrom.FIRST,
        persist_seconds=0.1,
        **more,
    )
    return PushConsumer(group, config=config)


async def test_a_message_is_found_by_all_its_names(cluster: Cluster) -> None:
    sent = await send(cluster, b"x", keys="k1", tags="A")
    by_offset_id = await told(cluster, sent.offset_id)
    assert by_offset_id["msgId"] == sent.message_id
    assert by_offset_id["groups"] == []
    place = by_offset_id["place"]
    assert place["indexed"] is True
    assert await asyncio.to_thread(Path(place["file"]).is_file)
    assert place["address"] == cluster.broker_addresses[0]
    assert await told(cluster, sent.message_id, "-t", TOPIC) == by_offset_id
    assert await told(cluster, "k1", "-t", TOPIC) == by_offset_id
    assert await told(cluster, sent.offset_id, "-t", TOPIC) == by_offset_id
    where = ["-t", TOPIC, "-b", sent.queue.broker_name, "-i", "0", "-o", "0"]
    assert await told(cluster, *where) == by_offset_id
    shown = await text(cluster, sent.offset_id)
    assert "none has offsets" in shown
    assert f"position {place['commitLogOffset']}" in shown


async def test_a_missing_message_or_topic_is_reported_in_one_line(cluster: Cluster) -> None:
    for words, status in (
        (["nothing", "-t", TOPIC], 1),
        (["nothing"], 1),
        (["A" * 32, "-t", "NoSuchTopic"], 1),
        (["-t", "NoSuchTopic"], 1),
        (["-g", "no-such-group"], 1),
        ([], 2),
        (["x", "-b", "y"], 2),
    ):
        result = await asyncio.to_thread(run, cluster, *words)
        assert result.exit_code == status, (words, result.stderr)
        assert len(result.stderr.splitlines()) == 1


async def test_a_group_that_has_not_read_anything_has_lost_nothing(cluster: Cluster) -> None:
    async with AdminClient(name_servers=cluster.addresses) as admin:
        await admin.groups.create(cluster.broker_addresses[0], GroupConfig(group_name="idle"))
    found = await text(cluster, "-g", "idle")
    assert found == "no message of any topic of the group is known to be lost\n"


async def test_consumed_filtered_and_behind_are_distinguished(cluster: Cluster) -> None:
    async def handle(message: ReceivedMessage) -> None:
        return None

    wanted = await send(cluster, b"1", tags="A")
    unwanted = await send(cluster, b"2", tags="B")
    consumer = consumer_of(cluster, "g1")
    consumer.subscribe(TOPIC, handle, tags="A || C")
    async with consumer:
        done = await until(cluster, wanted, "g1", lambda each: each["state"] == "CONSUMED")
        assert done["consumerOffset"] > 0
        assert done["members"] == 1
        kept_out = await until(cluster, unwanted, "g1", lambda each: each["state"] == "FILTERED")
        assert kept_out["filter"] == "A || C"
        assert "'B'" in kept_out["reason"]
    later = [await send(cluster, b"3", tags="A") for _ in range(3)]
    await until(cluster, later[0], "g1", lambda each: each["members"] == 0)
    behind = await fate(cluster, later[2], "g1")
    assert (behind["state"], behind["behind"]) == ("BEHIND", 2)
    assert "nobody is online" in await text(cluster, later[2].offset_id)


async def test_a_message_in_flight_names_its_consumer(cluster: Cluster) -> None:
    release, begun = asyncio.Event(), asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        begun.set()
        await release.wait()

    sent = await send(cluster, b"1")
    consumer = consumer_of(cluster, "g2")
    consumer.subscribe(TOPIC, handle)
    async with consumer:
        await begun.wait()
        flies = await until(cluster, sent, "g2", lambda each: each["state"] == "IN_FLIGHT")
        [owner] = flies["owners"]
        assert owner["clientId"] == consumer.client_id
        assert owner["locked"] is False
        assert owner["cachedCount"] == 1
        release.set()
        await until(cluster, sent, "g2", lambda each: each["state"] == "CONSUMED")


async def test_retries_are_counted_until_the_message_is_dead(cluster: Cluster) -> None:
    rounds: list[int] = []
    go_on = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        rounds.append(message.reconsume_times)
        if message.reconsume_times == 1:
            await go_on.wait()
            raise Retry(-1)
        raise Retry(3)

    sent = await send(cluster, b"1")
    began_ms = time.time_ns() // 1_000_000
    consumer = consumer_of(cluster, "g3", retry_max=5)
    consumer.subscribe(TOPIC, handle)
    async with consumer:
        waits = await until(
            cluster,
            sent,
            "g3",
            lambda each: each["state"] == "RETRYING" and each["copy"]["topic"][:1] == "S",
        )
        assert (waits["retry"], waits["retryMax"]) == (1, 16)
        assert began_ms + 1000 <= waits["untilTimestamp"] <= began_ms + 30_000
        flies = await until(cluster, sent, "g3", lambda each: each["state"] == "IN_FLIGHT")
        assert flies["retry"] == 1
        assert flies["copy"]["topic"] == "%RETRY%g3"
        go_on.set()
        dead = await until(cluster, sent, "g3", lambda each: each["state"] == "DEAD")
    assert dead["copy"]["topic"] == "%DLQ%g3"
    assert dead["deadSince"] >= began_ms
    shown = await text(cluster, sent.offset_id)
    assert "group g3: DEAD since" in shown
    assert rounds == [0, 1]
    copy = await told(cluster, dead["copy"]["offsetMsgId"])
    assert copy["originMsgId"] == sent.offset_id
    assert "Copy of" in await text(cluster, dead["copy"]["offsetMsgId"])


async def test_a_retry_that_succeeds_is_consumed(cluster: Cluster) -> None:
    async def handle(message: ReceivedMessage) -> None:
        if not message.reconsume_times:
            raise Retry(1)

    sent = await send(cluster, b"1")
    consumer = consumer_of(cluster, "g4")
    consumer.subscribe(TOPIC, handle)
    async with consumer:
        done = await until(
            cluster, sent, "g4", lambda each: each["state"] == "CONSUMED" and each["retry"] == 1
        )
    assert "done with retry 1" in done["reason"]


async def test_a_delayed_message_shows_its_due_time(cluster: Cluster) -> None:
    began_ms = time.time_ns() // 1_000_000
    sent = await send(cluster, b"1", delay_level=4)
    one = await told(cluster, sent.message_id, "-t", TOPIC)
    assert began_ms + 300_000 <= one["delayedUntil"] <= began_ms + 330_000
    assert one["topic"] == "SCHEDULE_TOPIC_XXXX"
    assert f"for {TOPIC}" in await text(cluster, sent.message_id, "-t", TOPIC)


async def test_a_timed_message_shows_its_due_time(cluster: Cluster) -> None:
    due_ms = time.time_ns() // 1_000_000 + 300_000
    sent = await send(cluster, b"1", deliver_at_ms=due_ms)
    one = await told(cluster, sent.message_id, "-t", TOPIC)
    assert (one["delayedUntil"], one["topic"]) == (due_ms, "rmq_sys_wheel_timer")
    assert f"for {TOPIC}" in await text(cluster, sent.message_id, "-t", TOPIC)


async def test_the_holder_of_a_lock_is_named(cluster: Cluster) -> None:
    release, begun = asyncio.Event(), asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        begun.set()
        await release.wait()

    sent = await send(cluster, b"1")
    consumer = consumer_of(cluster, "g5")
    consumer.subscribe(TOPIC, handle, orderly=True)
    async with consumer:
        await begun.wait()
        flies = await until(cluster, sent, "g5", lambda each: bool(each["owners"]))
        assert flies["owners"][0]["locked"] is True
        assert "locked by it" in await text(cluster, sent.offset_id)
        release.set()


async def test_popped_messages_are_in_flight_acknowledged_or_redelivered(cluster: Cluster) -> None:
    sent = await send(cluster, b"popped")
    consumer = SimpleConsumer("workers", name_servers=cluster.addresses, start_from=StartFrom.FIRST)
    async with consumer:
        await consumer.subscribe(TOPIC)
        [message] = await consumer.receive(invisible_seconds=60, await_seconds=10)
        held = await fate(cluster, sent, "workers")
        assert held["state"] == "IN_FLIGHT"
        assert held["untilTimestamp"] == message.visible_at_ms
        assert "unless it is acknowledged" in held["reason"]
        assert "IN_FLIGHT until" in await text(cluster, sent.offset_id)
        await consumer.change_invisible_duration(message, 0)
        again = await until(cluster, sent, "workers", lambda each: each["retry"] == 1)
        assert again["state"] == "RETRYING"
        assert again["copy"]["topic"] == f"%RETRY%workers_{TOPIC}"
        [message] = await consumer.receive(invisible_seconds=60, await_seconds=10)
        held = await fate(cluster, sent, "workers")
        assert (held["state"], held["retry"]) == ("IN_FLIGHT", 1)
        assert held["untilTimestamp"] == message.visible_at_ms
        await consumer.ack(message)
        done = await fate(cluster, sent, "workers")
        assert done["state"] == "CONSUMED"
        assert done["reason"].startswith("done with retry 1")
    other = await send(cluster, b"in order")
    ordered = SimpleConsumer(
        "fifo", name_servers=cluster.addresses, start_from=StartFrom.FIRST, orderly=True
    )
    async with ordered:
        await ordered.subscribe(TOPIC)
        messages = await ordered.receive(invisible_seconds=60, await_seconds=10)
        held = await fate(cluster, other, "fifo")
        assert held["state"] == "IN_FLIGHT"
        for message in messages:
            await ordered.ack(message)
        assert (await fate(cluster, other, "fifo"))["state"] == "CONSUMED"


async def test_a_message_lost_to_damage_is_reported(cluster: Cluster) -> None:
    async with AdminClient(name_servers=cluster.addresses) as admin:
        await admin.brokers.update_config(
            cluster.broker_addresses[0], {"checkCRCOnReadInterval": "0"}
        )
    sent = [await send(cluster, b"body %d" % number, keys=f"k{number}") for number in range(3)]
    shown = await told(cluster, sent[1].offset_id)
    assert shown["place"]["file"]
    path, position = Path(shown["place"]["file"]), shown["place"]["commitLogOffset"]

    def flip() -> None:
        with path.open("r+b") as file:
            file.seek(position - int(path.name) + 90)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))

    await asyncio.to_thread(flip)
    assert await text(cluster, "-t", TOPIC) == f"no message of {TOPIC} is known to be lost\n"
    consumer = consumer_of(cluster, "readers")
    bodies: list[bytes] = []

    async def take(message: ReceivedMessage) -> None:
        bodies.append(message.body)

    consumer.subscribe(TOPIC, take)
    async with consumer, asyncio.timeout(20):
        while len(bodies) < 2:
            await asyncio.sleep(0.05)
    assert bodies == [b"body 0", b"body 2"]
    place = shown["place"]["brokerName"]
    for words in (
        ("-t", TOPIC),
        ("-g", "readers"),
        ("-t", TOPIC, "-b", place, "-i", "0", "-o", "1"),
    ):
        lost = await told(cluster, *words)
        assert (lost["state"], lost["topic"], lost["queueId"]) == ("LOST_TO_DAMAGE", TOPIC, 0)
        assert (lost["queueOffset"], lost["brokerName"]) == (1, place)
        assert "CRC" in lost["reason"]
    assert f"LOST TO DAMAGE  {place}, {TOPIC}, queue 0, offset 1: " in await text(
        cluster, "-t", TOPIC
    )
    result = await asyncio.to_thread(run, cluster, sent[1].offset_id)
    assert result.exit_code != 0
    assert "is damaged" in result.stderr
    result = await asyncio.to_thread(run, cluster, "k1", "-t", TOPIC)
    assert result.exit_code != 0
    assert "lost to damage" in result.stderr
