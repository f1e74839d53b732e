"""What operators do through the console: settings, offsets, messages, timers, transactions."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from rocketpost.client import (
    Message,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
    TransactionProducer,
    TransactionState,
)
from rocketpost.client.admin import AdminClient
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.waiting import until

from .console_client import Browser, Console, make_first_user, run_console
from .test_console_actions import confirm, preview

pytestmark = pytest.mark.slow

SETTINGS = {
    "transactionCheckInterval": "200",
    "transactionTimeOut": "200",
    "transactionCheckMax": "2",
    "recallMessageEnable": "true",
    "namedFilterEnable": "true",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("operations"), settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def console(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with run_console(cluster.addresses, tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(scope="module")
def browser(console: Console) -> Browser:
    return make_first_user(console)


async def make_topic(browser: Browser, topic: str) -> None:
    shown = preview(browser, "create-topic", topic=topic, queues="2")
    assert "done" in confirm(browser, "create-topic", shown).text
    await until(lambda: topic in browser.get("/topics.json").text, seconds=30)


async def consume(cluster: Cluster, topic: str, group: str, count: int) -> PushConsumer:
    """Start a member of a group that has handled all messages when this returns."""
    handled: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message.body)

    config = PushConsumerConfig(start_from=StartFrom.FIRST)
    consumer = PushConsumer(group, name_servers=cluster.addresses, config=config)
    consumer.subscribe(topic, handle)
    await consumer.start()
    await until(lambda: len(handled) == count)
    return consumer


async def send(cluster: Cluster, topic: str, count: int) -> None:
    async with Producer("shop", name_servers=cluster.addresses) as producer:
        for number in range(count):
            await producer.send(Message(topic, b"%d" % number))


async def offsets_of(cluster: Cluster, group: str, topic: str) -> dict[str, int]:
    async with AdminClient(name_servers=cluster.addresses) as admin:
        state = await admin.groups.progress(group, topic)
    return {
        f"{queue.broker_name} {queue.queue_id}": each.consumer_offset
        for queue, each in state.queues.items()
    }


def targets(answer: Any) -> dict[str, int]:
    return {step["target"]: int(step["after"]) for step in answer["plan"]["steps"]}


async def test_a_setting_is_changed_while_the_broker_runs(
    cluster: Cluster, browser: Browser
) -> None:
    fields = {"broker": "broker-0", "key": "maxMessageSize", "value": "1000000"}
    shown = preview(browser, "change-setting", **fields)
    assert "4194304" in shown.text
    done = confirm(browser, "change-setting", shown)
    assert "1000000" in done.text
    async with AdminClient(name_servers=cluster.addresses) as admin:
        config = await admin.brokers.config(cluster.broker_addresses[0])
    assert config["maxMessageSize"] == "1000000"
    assert preview(browser, "change-setting", broker="broker-0", key="noSuch").status == 400
    assert preview(browser, "change-setting", broker="nobody", key="x").status == 404
    fixed = preview(browser, "change-setting", broker="broker-0", key="brokerName", value="other")
    assert "refused" in confirm(browser, "change-setting", fixed).text
    everywhere = preview(browser, "change-setting", **{**fields, "broker": "*"})
    assert everywhere.status == 200


async def test_producers_are_kept_away_and_let_back(cluster: Cluster, browser: Browser) -> None:
    await make_topic(browser, "Drained")

    async def permission() -> int:
        async with AdminClient(name_servers=cluster.addresses) as admin:
            [queue] = (await admin.cluster.route("Drained")).queue_datas
        return queue.perm

    shown = preview(browser, "wipe-write", broker="broker-0")
    assert confirm(browser, "wipe-write", shown).status == 409  # the name must be typed
    shown = preview(browser, "wipe-write", broker="broker-0")
    assert "done" in confirm(browser, "wipe-write", shown, typed="broker-0").text
    assert await permission() == 4
    shown = preview(browser, "add-write", broker="broker-0")
    assert "done" in confirm(browser, "add-write", shown).text
    assert await permission() == 6
    for what in ("expired-queues", "unused-topics", "expired-log"):
        shown = preview(browser, "clean-broker", broker="broker-0", what=what)
        assert "done" in confirm(browser, "clean-broker", shown, typed="broker-0").text, what


async def test_a_reset_is_undone_by_its_button(cluster: Cluster, browser: Browser) -> None:
    await make_topic(browser, "Undone")
    await send(cluster, "Undone", 10)
    await (await consume(cluster, "Undone", "undoing", 10)).stop()
    before = await offsets_of(cluster, "undoing", "Undone")
    assert sum(before.values()) == 10
    shown = preview(browser, "reset-offsets", group="undoing", topic="Undone", when="-1h")
    done = confirm(browser, "reset-offsets", shown)
    assert sum((await offsets_of(cluster, "undoing", "Undone")).values()) == 0
    found = re.search(r'id="undo" href="([^"]+)"', done.text)
    assert found is not None
    back = browser.get(html.unescape(found[1]))
    assert "10 messages are skipped" in back.text
    assert "done" in confirm(browser, "set-offsets", back, typed="undoing").text
    assert await offsets_of(cluster, "undoing", "Undone") == before
    bad = preview(browser, "set-offsets", group="undoing", topic="Undone", offsets="x")
    assert bad.status == 400


async def test_offsets_are_reset_under_members_and_copied(
    cluster: Cluster, browser: Browser
) -> None:
    await make_topic(browser, "Copied")
    await send(cluster, "Copied", 12)
    consumer = await consume(cluster, "Copied", "original", 12)
    try:
        wish = "/do/reset-offsets?preview=1&group=original&topic=Copied&when=-1h"
        plan = targets(browser.json(wish))
        shown = browser.get(wish)
        results = confirm(browser, "reset-offsets", shown)
        assert results.status == 200
        assert set(plan.values()) == {0}
        assert results.text.count("<td>done</td>") == 2
        refused = preview(browser, "copy-offsets", source="x", group="original", topic="Copied")
        assert refused.status == 400
    finally:
        await consumer.stop()
    shown = preview(browser, "copy-offsets", source="original", group="shadow", topic="Copied")
    assert "done" in confirm(browser, "copy-offsets", shown).text
    async with AdminClient(name_servers=cluster.addresses) as admin:
        state = await admin.groups.progress("original", "Copied")
    copied = await offsets_of(cluster, "shadow", "Copied")
    assert sum(copied.values()) == sum(each.consumer_offset for each in state.queues.values())


async def test_a_group_is_changed(cluster: Cluster, browser: Browser) -> None:
    shown = preview(browser, "create-group", group="changing")
    confirm(browser, "create-group", shown)
    await until(lambda: "changing" in browser.get("/groups.json").text, seconds=30)
    await make_topic(browser, "Modes")
    assert preview(browser, "change-group", group="changing").status == 400
    fields = {"group": "changing", "retries": "3", "enabled": "no"}
    shown = preview(browser, "change-group", **fields)
    assert "gets no more messages" in shown.text
    assert "done" in confirm(browser, "change-group", shown, typed="changing").text
    shown = preview(browser, "set-consume-mode", group="changing", topic="Modes", mode="POP")
    assert "done" in confirm(browser, "set-consume-mode", shown).text
    async with AdminClient(name_servers=cluster.addresses) as admin:
        address = cluster.broker_addresses[0]
        config = await admin.groups.config(address, "changing")
        modes = await admin.groups.request_modes(address)
    assert (config.retry_max_times, config.consume_enable) == (3, False)
    assert modes["Modes"]["changing"].mode == "POP"


async def test_a_message_is_sent_copied_and_handled_now(cluster: Cluster, browser: Browser) -> None:
    await make_topic(browser, "Sent")
    fields = {
        "csrf": browser.csrf(), "preview": "1", "topic": "Sent", "body": "line 1\nline 2",
        "tags": "new", "keys": "k1", "properties": "shop=7\nnote=a=b", "sharding": "s1",
    }  # fmt: skip
    bad = browser.post("/do/send-message", {**fields, "properties": "nonsense"})
    assert bad.status == 400
    assert "line 2" in bad.text  # what was typed is not lost
    shown = browser.post("/do/send-message", fields)
    assert "13 bytes" in shown.text
    assert "SEND_OK" in confirm(browser, "send-message", shown).text
    [row] = browser.json("/messages?by=key&topic=Sent&key=k1")["rows"]
    stored = browser.json(f"/messages/{row['offsetId']}")
    assert stored["body"]["text"] == "line 1\nline 2"
    assert stored["properties"]["shop"] == "7"
    assert stored["properties"]["note"] == "a=b"
    form = browser.get(f"/do/send-message?topic=Sent&like={row['offsetId']}").text
    assert "line 1\nline 2</textarea>" in form
    assert f'value="{row["offsetId"]}"' in form
    consumer = await consume(cluster, "Sent", "handling", 1)
    try:
        member = consumer.client_id
        wish = {"group": "handling", "client": member, "id": row["offsetId"]}
        shown = await asyncio.to_thread(lambda: preview(browser, "consume-directly", **wish))
        done = await asyncio.to_thread(lambda: confirm(browser, "consume-directly", shown))
        assert "consumeResult=CR_SUCCESS" in done.text
    finally:
        await consumer.stop()
    foreign = "0A000001" + "00002A9F" + "0000000000000000"  # 10.0.0.1:10911
    wish = {"group": "handling", "client": "x", "id": foreign}
    assert preview(browser, "consume-directly", **wish).status == 400


async def test_filters_are_listed_and_tested(cluster: Cluster, browser: Browser) -> None:
    async with (
        AdminClient(name_servers=cluster.addresses) as admin,
        Producer("shop", name_servers=cluster.addresses) as producer,
    ):
        await admin.filters.put(cluster.broker_addresses[0], "cheap", "price < 10")
        sent = await producer.send(Message("Filtered", b"x", properties={"price": "5"}))
    [row] = browser.json("/filters")["filters"]
    assert (row["name"], row["expression"]) == ("cheap", "price < 10")

    def judge(expression: str) -> Any:
        query = urlencode({"expression": expression, "id": sent.offset_id})
        return browser.json(f"/filters?{query}")["verdict"]["accepts"]

    assert judge("price < 10") is True
    assert judge("price > 10") is False
    assert judge("size > 10") is None
    assert browser.get(f"/filters?expression=price+%3C&id={sent.offset_id}").status == 400


async def test_timed_messages_are_listed_and_recalled(cluster: Cluster, browser: Browser) -> None:
    await make_topic(browser, "Timed")
    async with Producer("shop", name_servers=cluster.addresses) as producer:
        first = await producer.send(Message("Timed", b"soon", delay_seconds=300))
        await producer.send(Message("Timed", b"later", delay_seconds=900))
    page = browser.json("/timers")
    assert [row["topic"] for row in page["timed"]] == ["Timed", "Timed"]
    assert page["timed"][0]["id"] == first.message_id
    assert page["timers"][0]["isOn"]
    assert len(page["byMinute"]) == 2
    wish = {"topic": "Timed", "id": first.message_id}
    message = browser.get(f"/messages/{page['timed'][0]['offsetId']}")
    assert "/do/recall-message" in message.text
    shown = preview(browser, "recall-message", **wish)
    typed = first.message_id[-6:]
    answer = confirm(browser, "recall-message", shown, typed=typed)
    assert "done" in answer.text, answer.text
    await until(lambda: len(browser.json("/timers")["timed"]) == 1)
    assert preview(browser, "recall-message", topic="Timed", id="no-such").status == 404


async def test_a_transaction_that_was_given_up_is_asked_about_again(
    cluster: Cluster, browser: Browser
) -> None:
    await make_topic(browser, "Halves")
    answers = {"now": TransactionState.UNKNOWN}

    def check(message: ReceivedMessage) -> TransactionState:
        return answers["now"]

    async with TransactionProducer(
        "paying", checker=check, name_servers=cluster.addresses
    ) as producer:
        done = await producer.send_in_transaction(
            Message("Halves", b"half"), lambda message, _: TransactionState.UNKNOWN
        )
        get = browser.json
        pending = await asyncio.to_thread(get, "/timers")
        assert len(pending["pending"]) + len(pending["discarded"]) >= 1
        async with asyncio.timeout(30):
            while not (rows := (await asyncio.to_thread(get, "/timers"))["discarded"]):
                await asyncio.sleep(0.1)
        assert (rows[0]["id"], rows[0]["group"]) == (done.sent.message_id, "paying")
        answers["now"] = TransactionState.COMMIT
        shown = await asyncio.to_thread(
            lambda: preview(browser, "check-transaction", id=rows[0]["offsetId"])
        )
        result = await asyncio.to_thread(lambda: confirm(browser, "check-transaction", shown))
        assert "done" in result.text
        async with asyncio.timeout(30):
            while not (
                await asyncio.to_thread(get, "/messages?topic=Halves&begin=-1h")
            )["rows"]:  # fmt: skip
                await asyncio.sleep(0.1)
