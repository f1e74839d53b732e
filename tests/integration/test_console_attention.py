"""What the console finds by itself: alarms, owners of queues, traces, numbers of producers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rocketpost.client import (
    Message,
    Producer,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)
from rocketpost.client.admin import AdminClient
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.waiting import until

from .console_client import Browser, make_first_user, run_console
from .test_console_dead_letters import make_dead

pytestmark = pytest.mark.slow


@asynccontextmanager
async def consuming(
    cluster: Cluster, group: str, topic: str, tags: str = "*", *, name: str = ""
) -> AsyncIterator[list[bytes]]:
    """Run a member of a group, with traces."""
    handled: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message.body)

    config = PushConsumerConfig(
        start_from=StartFrom.FIRST, enable_trace=True, instance_name=name or group
    )
    consumer = PushConsumer(group, name_servers=cluster.addresses, config=config)
    consumer.subscribe(topic, handle, tags=tags)
    async with consumer:
        yield handled


async def fill(cluster: Cluster) -> str:
    """Leave a group without members behind, number messages, and return a traced message's id."""
    traced = ProducerConfig(enable_trace=True)
    async with (
        Producer("shop", name_servers=cluster.addresses, config=traced) as producer,
        Producer(
            "numbered", name_servers=cluster.addresses, idempotent=True, producer_id="till-7"
        ) as numbered,
        AdminClient(name_servers=cluster.addresses) as admin,
    ):
        sent = await producer.send(Message("Orders", b"first", tags="paid"))
        async with consuming(cluster, "billing", "Orders") as handled:
            await until(lambda: len(handled) == 1, seconds=30)
        for number in range(5):
            await producer.send(Message("Orders", b"%d" % number, tags="paid"))
        for sequence in (0, 1, 2, 5, 6):
            await numbered.send(Message("Orders", b"numbered"), sequence=sequence)
        await admin.cluster.put_kv("ORDER_TOPIC_CONFIG", "Orders", "broker-0:4")
    await make_dead(cluster, "Parcels", "shipping", 3)
    return sent.message_id


async def look(browser: Browser, path: str) -> Any:
    return await asyncio.to_thread(browser.json, path)


async def until_alarms(browser: Browser, *wanted: tuple[str, str]) -> list[dict[str, str]]:
    """Wait until the overview has some alarms, and return all."""
    async with asyncio.timeout(60):
        while True:
            alarms: list[dict[str, str]] = (await look(browser, "/"))["alarms"]
            if set(wanted) <= {(each["kind"], each["subject"]) for each in alarms}:
                return alarms
            await asyncio.sleep(0.2)


async def test_trouble_is_found_and_explained(tmp_path: Path) -> None:
    with Cluster(tmp_path / "servers") as cluster:
        message_id = await fill(cluster)
        async with (
            consuming(cluster, "picky", "Orders", "paid", name="one"),
            consuming(cluster, "picky", "Orders", "open", name="two"),
        ):
            with run_console(cluster.addresses, tmp_path / "state") as console:
                browser = await asyncio.to_thread(make_first_user, console)
                alarms = await until_alarms(
                    browser, ("offline", "billing"), ("mixed", "picky"), ("dead", "shipping")
                )
                [dead] = [each for each in alarms if each["kind"] == "dead"]
                assert (dead["detail"], dead["path"]) == ("3", "/dead-letters/shipping")
                kinds = [each["kind"] for each in alarms]
                assert kinds.index("offline") < kinds.index("dead")
                await check_pages(browser, message_id)
                await check_rebalance(cluster, browser)


async def test_an_address_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path / "servers", settings={"brokerIP1": "240.0.0.1"}) as cluster,
        run_console(cluster.addresses, tmp_path / "state") as console,
    ):
        browser = await asyncio.to_thread(make_first_user, console)
        [alarm] = await until_alarms(browser, ("unreachable", "broker-0"))
        assert alarm["detail"].startswith("240.0.0.1:")


async def check_pages(browser: Browser, message_id: str) -> None:
    found = await look(browser, "/groups?state=mixed")
    assert [each["name"] for each in found["rows"]] == ["picky"]
    billing = await look(browser, "/groups/billing")
    assert billing["configs"]["broker-0"]["retryMaxTimes"] == "16"
    assert (await look(browser, "/groups/shipping"))["newDead"] == 3
    [producer] = (await look(browser, "/clients"))["numbered"]
    assert (producer["producerId"], producer["missing"]) == ("till-7", 2)
    assert (producer["lastSequence"], producer["gaps"]) == (6, [[3, 4]])
    servers = await look(browser, "/name-servers")
    [server] = servers["servers"]
    assert (server["pairs"], servers["differentKeys"]) == ({"Orders": "broker-0:4"}, [])
    assert (await look(browser, "/name-servers?namespace=none"))["keys"] == []
    async with asyncio.timeout(30):
        while True:
            page = await look(browser, f"/messages/{message_id}?topic=Orders")
            steps = [each["what"] for each in page["events"] if each["source"] == "trace"]
            if {"trace_sent", "trace_handled"} <= set(steps):
                break
            await asyncio.sleep(0.2)


async def check_rebalance(cluster: Cluster, browser: Browser) -> None:
    """A member joins a group of one: its page says who held which queue, and since when."""
    async with consuming(cluster, "moving", "Orders", name="first"):
        async with asyncio.timeout(60):
            while not (await held(browser)):
                await asyncio.sleep(0.2)
        assert len(set((await held(browser)).values())) == 1
        async with consuming(cluster, "moving", "Orders", name="second"):
            async with asyncio.timeout(60):
                while len(set((await held(browser)).values())) < 2:
                    await asyncio.sleep(0.2)
        page = await look(browser, "/groups/moving")
        assert [each[1] for each in page["history"]["changes"]][-1] == "joined"
        moved = [row for row in page["history"]["timeline"]["rows"] if len(row["stints"]) > 1]
        assert moved
        text = (await asyncio.to_thread(browser.get, "/groups/moving")).text
        assert 'class="hold hold-1"' in text


async def held(browser: Browser) -> dict[str, str]:
    """Return the last owner of each queue."""
    answer = await asyncio.to_thread(browser.get, "/groups/moving", Accept="application/json")
    if answer.status == 404:
        return {}
    timeline = answer.json()["history"]["timeline"] or {"rows": []}
    return {row["queue"]: row["stints"][-1]["client"] for row in timeline["rows"]}
