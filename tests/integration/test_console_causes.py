"""Why a message is where it is: twenty-five planted causes, each read from the page by Chromium."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

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
    TransactionProducer,
    TransactionState,
)
from rocketpost.client.admin import AdminClient
from rocketpost.client.config import MessageModel
from rocketpost.model.group import GroupConfig
from rocketpost.model.route import MessageQueue
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.cluster import Cluster

from . import console_runs as runs
from .console_client import Console, run_console

pytest.importorskip("playwright.async_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(runs.CHROMIUM is None, reason=runs.NO_CHROMIUM),
]

TOPIC = "Orders"
SETTINGS = {
    "messageDelayLevel": "1s 1s 2s 300s 300s",
    "transactionCheckInterval": "200",
    "transactionTimeOut": "200",
    "transactionCheckMax": "2",
}


class Stage:
    """A cluster with causes, and a browser that looks for them."""

    def __init__(self, cluster: Cluster, admin: AdminClient, page: Any, console: Console) -> None:
        self.cluster = cluster
        self.admin = admin
        self.page = page
        self.console = console
        self.address = cluster.broker_addresses[0]
        self.seen = 0

    async def send(self, body: bytes, **more: Any) -> SendResult:
        async with Producer("shop", name_servers=self.cluster.addresses) as producer:
            return await producer.send(Message(TOPIC, body, **more))

    async def commit(self, group: str, offset: int) -> None:
        await self.admin.groups.create(self.address, GroupConfig(group_name=group))
        queue = MessageQueue("broker-0", 0, TOPIC)
        await self.admin.groups.set_offset(self.address, group, queue, offset)

    def consumer(self, group: str, **more: Any) -> PushConsumer:
        config = PushConsumerConfig(
            name_servers=self.cluster.addresses,
            start_from=StartFrom.FIRST,
            persist_seconds=0.1,
            **more,
        )
        return PushConsumer(group, config=config)

    async def sees(self, offset_id: str, *words: str, group: str = "") -> None:
        """Wait until the page of a message has words; in the row of a group, if one is named."""
        shown = ""
        try:
            async with asyncio.timeout(30):
                while True:
                    await self.page.goto(f"{self.console.url}/messages/{offset_id}")
                    place = f'#fates tr:has(a:text-is("{group}"))' if group else "main"
                    texts = await self.page.locator(place).all_inner_texts()
                    shown = " ".join(" ".join(texts).split())
                    if texts and all(word in shown for word in words):
                        self.seen += 1
                        return
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"{group}: {words} not in {shown[:500]!r}") from None


@contextlib.asynccontextmanager
async def open_stage(tmp_path: Path) -> AsyncIterator[Stage]:
    with (
        Cluster(tmp_path / "cluster", settings=SETTINGS) as cluster,
        run_console(cluster.addresses, tmp_path / "state") as console,
    ):
        async with (
            AdminClient(name_servers=cluster.addresses) as admin,
            runs.run_chromium() as browser,
        ):
            one = TopicConfig(topic_name=TOPIC, read_queue_nums=1, write_queue_nums=1)
            await admin.topics.create(cluster.broker_addresses[0], one)
            async with asyncio.timeout(20):
                while TOPIC not in await admin.cluster.topics():
                    await asyncio.sleep(0.05)
            state = await runs.make_user(console, browser)
            context = await runs.open_context(browser, storage_state=state)
            yield Stage(cluster, admin, await context.new_page(), console)
            await context.close()


async def ignore(message: ReceivedMessage) -> None:
    return None


@pytest.mark.timeout(600)
async def test_every_planted_cause_is_on_the_page(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await look_at_offsets(stage)
        await look_at_filters(stage)
        await look_at_handlers(stage)
        await look_at_retries(stage)
        await look_at_pops(stage)
        await look_at_times_and_transactions(stage)
        await look_at_what_is_unknown(stage)
        print(f"{stage.seen} causes read from the page")
        assert stage.seen >= 25


async def look_at_offsets(stage: Stage) -> None:
    first = await stage.send(b"1", tags="A")
    await stage.sees(first.offset_id, "No group has offsets or members for this topic")
    await stage.send(b"2", tags="B")
    third = await stage.send(b"3")
    await stage.commit("gone", 3)
    await stage.sees(
        first.offset_id, "consumed", "nobody is online, so the filter is unknown", group="gone"
    )
    await stage.commit("late", 0)
    await stage.sees(first.offset_id, "behind", "it is the next one", group="late")
    await stage.sees(third.offset_id, "behind", "2 messages come before it", group="late")


async def look_at_filters(stage: Stage) -> None:
    wanted = await stage.send(b"4", tags="A", properties={"price": "5"})
    other = await stage.send(b"5", tags="B", properties={"price": "50"})
    plain = await stage.send(b"6")
    by_tag = stage.consumer("by-tag")
    by_tag.subscribe(TOPIC, ignore, tags="A || C")
    by_sql = stage.consumer("by-sql")
    by_sql.subscribe(TOPIC, ignore, sql="price < 10")
    async with by_tag, by_sql:
        await stage.sees(wanted.offset_id, "consumed", group="by-tag")
        await stage.sees(other.offset_id, "filtered out", "'B' is not among", group="by-tag")
        await stage.sees(plain.offset_id, "filtered out", "it has no tag", group="by-tag")
        await stage.sees(wanted.offset_id, "consumed", group="by-sql")
        await stage.sees(other.offset_id, "filtered out", "properties do not match", group="by-sql")
    every = stage.consumer("everybody", model=MessageModel.BROADCASTING)
    every.subscribe(TOPIC, ignore)
    async with every:
        await stage.sees(wanted.offset_id, "every member keeps its own offset", group="everybody")


async def look_at_handlers(stage: Stage) -> None:
    release, begun = asyncio.Event(), [asyncio.Event(), asyncio.Event()]

    async def wait(message: ReceivedMessage) -> None:
        begun[0].set()
        await release.wait()

    async def wait_in_order(message: ReceivedMessage) -> None:
        begun[1].set()
        await release.wait()

    sent = await stage.send(b"7")
    busy, ordered = stage.consumer("busy"), stage.consumer("ordered")
    busy.subscribe(TOPIC, wait)
    ordered.subscribe(TOPIC, wait_in_order, orderly=True)
    async with busy, ordered:
        await begun[0].wait()
        await begun[1].wait()
        await stage.sees(sent.offset_id, "in flight", busy.client_id, group="busy")
        await stage.sees(sent.offset_id, "in flight", ordered.client_id, group="ordered")
        release.set()
        await stage.sees(sent.offset_id, "consumed", group="busy")


async def look_at_retries(stage: Stage) -> None:
    go_on = asyncio.Event()

    async def fail(message: ReceivedMessage) -> None:
        if message.body != b"8":
            return
        if message.reconsume_times == 1:
            await go_on.wait()
            raise Retry(-1)
        raise Retry(3)

    async def fail_once(message: ReceivedMessage) -> None:
        if message.body == b"8" and not message.reconsume_times:
            raise Retry(1)

    async def fail_long(message: ReceivedMessage) -> None:
        if message.body == b"8":
            raise Retry(4)

    sent = await stage.send(b"8")
    failing, once, waiting = (stage.consumer(name) for name in ("failing", "once", "waiting"))
    failing.subscribe(TOPIC, fail)
    once.subscribe(TOPIC, fail_once)
    waiting.subscribe(TOPIC, fail_long)
    async with failing, once, waiting:
        await stage.sees(sent.offset_id, "retrying", "waits until it is due", group="waiting")
        await stage.sees(sent.offset_id, "in flight", "retry 1 of 16", group="failing")
        go_on.set()
        await stage.sees(sent.offset_id, "dead letter", "given up after", group="failing")
        await stage.sees(sent.offset_id, "consumed", "done with retry 1", group="once")
    await stage.sees(sent.offset_id, "%DLQ%failing")  # the timeline leads to the dead letter
    await stage.page.click('.timeline a[href*="/messages/"] >> nth=0')
    await stage.page.wait_for_selector("#sentence")


async def look_at_pops(stage: Stage) -> None:
    sent = await stage.send(b"9")
    consumer = SimpleConsumer(
        "workers", name_servers=stage.cluster.addresses, start_from=StartFrom.FIRST
    )
    async with consumer:
        await consumer.subscribe(TOPIC)
        message: Any = None
        while message is None or message.body != b"9":
            for message in await consumer.receive(invisible_seconds=60, await_seconds=10):
                if message.body != b"9":
                    await consumer.ack(message)
        await stage.sees(sent.offset_id, "in flight", "unless it is acknowledged", group="workers")
        await consumer.change_invisible_duration(message, 0)
        await stage.sees(sent.offset_id, "retrying", "%RETRY%workers_", group="workers")
        [message] = await consumer.receive(invisible_seconds=60, await_seconds=10)
        await consumer.ack(message)
        await stage.sees(sent.offset_id, "consumed", "done with retry 1", group="workers")


async def look_at_times_and_transactions(stage: Stage) -> None:
    level = await stage.send(b"10", delay_level=4)
    timed = await stage.send(b"11", delay_seconds=900)
    for sent in (level, timed):
        page = stage.page
        url = f"{stage.console.url}/messages?by=id&topic={TOPIC}&id={sent.message_id}"
        await page.goto(url)
        await page.click("table.rows tbody a >> nth=0")
        await page.wait_for_selector("#sentence")
        offset_id = page.url.rpartition("/")[2].partition("?")[0]
        await stage.sees(offset_id, "delayed", "not delivered yet", group="late")

    def check(message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    async with TransactionProducer(
        "paying", checker=check, name_servers=stage.cluster.addresses
    ) as producer:
        await producer.send_in_transaction(
            Message(TOPIC, b"half"), lambda message, _: TransactionState.UNKNOWN
        )
        async with asyncio.timeout(30):
            while True:
                await stage.page.goto(stage.console.url + "/timers")
                if await stage.page.locator("#discarded tbody tr").count():
                    break
                await asyncio.sleep(0.2)
    assert "paying" in await stage.page.inner_text("#discarded")
    stage.seen += 1


async def look_at_what_is_unknown(stage: Stage) -> None:
    sent = await stage.send(b"12")
    stage.cluster.brokers[0].kill()
    answer = await stage.page.goto(f"{stage.console.url}/messages/{sent.offset_id}")
    assert answer.status == 502
    assert await stage.page.locator("[role=alert]").count() >= 1
    stage.seen += 1
