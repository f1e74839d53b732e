"""Changes through the console: preview, confirmation, roles, tokens, results and the audit log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from rocketpost.client import (
    Message,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)
from rocketpost.client.admin import AdminClient
from rocketpost.codec.faults import TopicNotExist
from rocketpost.errors import RouteNotFound
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.waiting import until

from .console_client import PASSWORD, Answer, Browser, Console, make_first_user, run_console

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("actions")) as running:
        yield running


@pytest.fixture(scope="module")
def console(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with run_console(cluster.addresses, tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(scope="module")
def browser(console: Console) -> Browser:
    return make_first_user(console)


def preview(browser: Browser, action: str, **fields: str) -> Answer:
    return browser.get(f"/do/{action}?{urlencode({'preview': '1', **fields})}")


def confirm(browser: Browser, action: str, shown: Answer, typed: str = "") -> Answer:
    fields = {"csrf": shown.field("csrf"), "ticket": shown.field("ticket"), "typed": typed}
    return browser.post(f"/do/{action}", fields)


def invite(console: Console, browser: Browser, name: str, role: str) -> Browser:
    page = browser.post("/settings/invite", {"csrf": browser.csrf(), "name": name, "role": role})
    found = re.search(r"/invitation\?token=([\w-]+)", page.text)
    assert found is not None
    invited = console.browser()
    fields = {"token": found[1], "password": PASSWORD, "again": PASSWORD}
    assert invited.post("/invitation", fields).status == 303
    return invited


async def find_broker(admin: AdminClient) -> str:
    [broker] = (await admin.cluster.info()).broker_addr_table.values()
    return broker.broker_addrs[0]


async def read_letters(admin: AdminClient, group: str) -> list[object]:
    try:
        return [each async for each in admin.dead_letters.read(group)]
    except RouteNotFound:  # the broker has not registered the topic yet
        return []


async def test_a_topic_is_created_changed_and_deleted(cluster: Cluster, browser: Browser) -> None:
    assert browser.get("/do/create-topic").status == 200
    bad = preview(browser, "create-topic", topic="a b")
    assert bad.status == 400
    assert 'role="alert"' in bad.text
    shown = preview(browser, "create-topic", topic="Made", queues="4", type="FIFO")
    assert "4 / 4 RW- FIFO" in shown.text
    assert "<bdi>Made</bdi></span></h1>" in shown.text  # it has no page yet
    async with AdminClient(name_servers=cluster.addresses) as admin:
        address = await find_broker(admin)
        with pytest.raises(TopicNotExist):  # a preview changes nothing
            await admin.topics.config(address, "Made")
        done = confirm(browser, "create-topic", shown)
        assert "done" in done.text
        made = await admin.topics.config(address, "Made")
        assert (made.read_queue_nums, made.attributes["message.type"]) == (4, "FIFO")
        again = confirm(browser, "create-topic", shown)
        assert again.status == 400  # a ticket works once
        await until(lambda: "Made" in browser.get("/topics.json").text, seconds=30)
        found = browser.json("/search?q=d")["topics"]
        assert found.index("Made") < found.index("SCHEDULE_TOPIC_XXXX")
        shown = preview(browser, "change-topic", topic="Made", write_queues="6", perm="6")
        assert "4 / 6 RW-" in shown.text
        confirm(browser, "change-topic", shown)
        assert (await admin.topics.config(address, "Made")).write_queue_nums == 6
        shown = preview(browser, "delete-topic", topic="Made")
        assert '<a href="/topics/Made">Made</a></span></h1>' in shown.text
        refused = confirm(browser, "delete-topic", shown, typed="made")
        assert refused.status == 409
        assert (await admin.topics.config(address, "Made")).write_queue_nums == 6
        done = confirm(browser, "delete-topic", refused, typed="Made")
        assert "deleted" in done.text
        with pytest.raises(TopicNotExist):
            await admin.topics.config(address, "Made")
    line = browser.json("/audit")["rows"][0]
    assert (line["act"], line["what"], line["outcome"]) == ("delete-topic", "Made", "1 done")
    assert line["command"].startswith("mqadmin deleteTopic")


async def test_a_preview_of_an_action_that_brokers_refuse_says_why(
    cluster: Cluster, browser: Browser
) -> None:
    confirm(browser, "create-topic", preview(browser, "create-topic", topic="Kept", queues="2"))
    await until(lambda: "Kept" in browser.get("/topics.json").text, seconds=30)
    for topic in ("TBW102", "DefaultCluster"):
        shown = preview(browser, "delete-topic", topic=topic)
        assert shown.status == 400
        assert f"{topic} is a topic of the system; brokers do not delete it." in shown.text
        assert 'name="ticket"' not in shown.text
    shown = preview(browser, "reset-offsets", group="nobody", topic="Kept", when="now")
    assert shown.status == 404
    assert "There is no nobody." in shown.text
    assert 'name="ticket"' not in shown.text


async def test_a_preview_that_is_out_of_date_changes_nothing(
    cluster: Cluster, browser: Browser
) -> None:
    confirm(browser, "create-topic", preview(browser, "create-topic", topic="Moved", queues="2"))
    await until(lambda: "Moved" in browser.get("/topics.json").text, seconds=30)
    shown = preview(browser, "change-topic", topic="Moved", read_queues="8", write_queues="8")
    async with AdminClient(name_servers=cluster.addresses) as admin:
        address = await find_broker(admin)
        await admin.topics.update(address, "Moved", write_queue_nums=3)
        answer = confirm(browser, "change-topic", shown)
        assert answer.status == 409
        assert (await admin.topics.config(address, "Moved")).write_queue_nums == 3


async def test_offsets_are_reset_as_the_preview_said(cluster: Cluster, browser: Browser) -> None:
    topic, group = "Replayed", "replaying"
    async with Producer("console-test", name_servers=cluster.addresses) as producer:
        for number in range(12):
            await producer.send(Message(topic, b"%d" % number))
    handled: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message.body)

    config = PushConsumerConfig(start_from=StartFrom.FIRST)
    consumer = PushConsumer(group, name_servers=cluster.addresses, config=config)
    consumer.subscribe(topic, handle)
    async with consumer:
        await until(lambda: len(handled) == 12)
    shown = preview(browser, "reset-offsets", group=group, topic=topic, when="-1h")
    assert "12 messages are delivered again" in shown.text
    wish = {"preview": 1, "group": group, "topic": topic, "when": "-1h"}
    plan = browser.json(f"/do/reset-offsets?{urlencode(wish)}")["plan"]
    assert confirm(browser, "reset-offsets", shown).status == 200
    async with AdminClient(name_servers=cluster.addresses) as admin:
        state = await admin.groups.progress(group, topic)
    offsets = {
        f"{queue.broker_name} {queue.queue_id}": str(each.consumer_offset)
        for queue, each in state.queues.items()
    }
    assert offsets == {step["target"]: step["after"] for step in plan["steps"]}
    forward = preview(browser, "reset-offsets", group=group, topic=topic, when="now")
    assert "12 messages are skipped" in forward.text
    assert confirm(browser, "reset-offsets", forward).status == 409  # the name was not typed
    assert preview(browser, "reset-offsets", group=group, topic=topic, when="soon").status == 400


async def test_dead_letters_are_sent_again_once(cluster: Cluster, browser: Browser) -> None:
    topic, group = "Failing", "failing"
    async with Producer("console-test", name_servers=cluster.addresses) as producer:
        for number in range(3):
            await producer.send(Message(topic, b"%d" % number))
    tried: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        tried.append(message.body)
        raise ValueError("bad price")

    config = PushConsumerConfig(start_from=StartFrom.FIRST, retry_max=0)
    consumer = PushConsumer(group, name_servers=cluster.addresses, config=config)
    consumer.subscribe(topic, handle)
    async with consumer, AdminClient(name_servers=cluster.addresses) as admin:
        await until(lambda: len(tried) == 3)
        letters: list[object] = []
        while len(letters) < 3:
            letters = await read_letters(admin, group)
    # The preview names the groups that read the topic, so the group's offsets must be known.
    await until(lambda: f'"groups":["{group}"]' in browser.get(f"/topics/{topic}.json").text)
    [row, *_] = browser.json(f"/messages?topic={topic}&begin=-1h")["rows"]
    sentence = browser.json(f"/messages/{row['offsetId']}")["sentence"]
    assert "The last error was: ValueError: bad price." in sentence
    none = preview(browser, "resend-dead-letters", group=group, cause="no such cause")
    assert none.status == 400
    shown = preview(browser, "resend-dead-letters", group=group)
    assert "3 messages" in shown.text
    started = confirm(browser, "resend-dead-letters", shown)
    job = browser.json(started.headers["location"])
    while job["state"] == "running":
        job = browser.json(started.headers["location"])
    assert (job["state"], job["counts"]) == ("done", {"sent": 3})
    assert "3 sent before" in preview(browser, "resend-dead-letters", group=group).text
    async with AdminClient(name_servers=cluster.addresses) as admin:
        state = await admin.topics.state(topic)
    assert sum(each.max_offset - each.min_offset for each in state.queues.values()) == 6


def test_roles_and_tokens_are_checked(console: Console, browser: Browser) -> None:
    viewer = invite(console, browser, "vera", "viewer")
    assert viewer.get("/do/create-topic").status == 403
    operator = invite(console, browser, "oscar", "operator")
    assert operator.get("/do/create-topic").status == 200
    assert operator.get("/do/delete-topic").status == 403
    assert operator.get("/do/no-such-action").status == 404
    shown = preview(browser, "create-group", group="stolen")
    stolen = {"csrf": operator.csrf(), "ticket": shown.field("ticket")}
    assert operator.post("/do/create-group", stolen).status == 400  # another's ticket
    assert browser.post("/do/create-group", {"ticket": shown.field("ticket")}).status == 403
    foreign = browser.request(
        "POST",
        "/do/create-group",
        fields={"csrf": shown.field("csrf"), "ticket": shown.field("ticket")},
        headers={"Sec-Fetch-Site": "cross-site"},
    )
    assert foreign.status == 403
    assert "stolen" not in browser.get("/groups.json").text
    assert "done" in confirm(browser, "create-group", shown).text


def test_a_console_that_only_reads_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    with run_console(cluster.addresses, tmp_path, "--read-only") as console:
        browser = make_first_user(console)
        assert browser.get("/topics").status == 200
        assert browser.get("/do/create-topic").status == 403
        assert "/do/" not in browser.get("/topics").text
