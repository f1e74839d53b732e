"""Dead letters in the console: causes, files, and a resend that survives kills."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketpost.client import Message, Producer
from rocketpost.client.admin import AdminClient
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.headers.retry import SendBackHeader
from rocketpost.codec.record import parse_message_id
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.waiting import until

from .console_client import Browser, Console, make_first_user, run_console
from .test_console_actions import confirm, preview

pytestmark = pytest.mark.slow


async def make_dead(cluster: Cluster, topic: str, group: str, count: int) -> None:
    """Send messages and give each up at once, for one of two causes."""
    async with (
        Producer("shop", name_servers=cluster.addresses) as producer,
        AdminClient(name_servers=cluster.addresses) as admin,
    ):
        [address] = cluster.broker_addresses
        config = TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2)
        await admin.topics.create(address, config)
        await until_topic(admin, topic)
        for number in range(count):
            body = json.dumps({"n": number, "card": "4711"}).encode()
            sent = await producer.send(Message(topic, body, keys=f"=k{number}"))
            header = SendBackHeader(
                offset=parse_message_id(sent.offset_id)[1],
                group=group,
                delay_level=-1,
                origin_topic=topic,
                failure_kind="ValueError" if number % 3 else "shop.OutOfStock",
                failure_text=f"number {number}",
            )
            await admin.session.call(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)
        await until_topic(admin, f"%DLQ%{group}")


async def until_topic(admin: AdminClient, topic: str) -> None:
    async with asyncio.timeout(30):
        while topic not in await admin.cluster.topics():
            await asyncio.sleep(0.05)


async def copies_of(cluster: Cluster, topic: str) -> int:
    async with AdminClient(name_servers=cluster.addresses) as admin:
        state = await admin.topics.state(topic)
    return sum(each.max_offset - each.min_offset for each in state.queues.values())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("dead")) as running:
        yield running


@pytest.fixture(scope="module")
def console(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with run_console(cluster.addresses, tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(scope="module")
def browser(console: Console) -> Browser:
    return make_first_user(console)


async def until_listed(browser: Browser, group: str) -> None:
    """Wait until the console knows the dead letters of a group."""
    # A change has the tables read again at once, instead of every 15 s.
    confirm(browser, "create-group", preview(browser, "create-group", group=f"beside-{group}"))
    await until(lambda: f'"{group}"' in browser.get("/dead-letters.json").text, seconds=30)


def job_of(browser: Browser, group: str, **fields: str) -> str:
    """Start a resend and return the path of its job."""
    shown = preview(browser, "resend-dead-letters", group=group, **fields)
    assert shown.status == 200, shown.text
    answer = confirm(browser, "resend-dead-letters", shown, typed=group)
    assert answer.status == 303, answer.text
    return answer.headers["location"]


def wait_for(browser: Browser, path: str, state: str, seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while (job := browser.json(path))["state"] != state:
        assert job["state"] in ("running", "interrupted"), job
        assert time.monotonic() < deadline, job
        time.sleep(0.1)
    return job


async def test_letters_are_shown_by_cause_and_sent_again_by_rule(
    cluster: Cluster, browser: Browser
) -> None:
    await make_dead(cluster, "Billed", "billing", 30)
    await until_listed(browser, "billing")
    [row] = [each for each in browser.json("/dead-letters")["rows"] if each["name"] == "billing"]
    assert row["count"] == 30
    [group] = [each for each in browser.json("/groups")["rows"] if each["name"] == "billing"]
    assert group["newDead"] in (None, 30)  # a survey counts them once a minute
    page = browser.json("/dead-letters/billing")
    causes = {each["kind"]: each["count"] for each in page["causes"]}
    assert causes == {"ValueError": 20, "shop.OutOfStock": 10}
    assert page["count"] == 30
    assert browser.json("/dead-letters/billing?cause=OutOfStock")["count"] == 10
    assert browser.json("/dead-letters/billing?keys=%3Dk4")["count"] == 1
    assert browser.json("/dead-letters/billing?begin=-1h&end=now")["count"] == 30
    assert browser.json("/dead-letters/billing?end=-1h")["count"] == 0
    assert "not a time" in browser.get("/dead-letters/billing?begin=soon").text
    shown = preview(browser, "resend-dead-letters", group="billing", cause="OutOfStock")
    assert "10 messages" in shown.text
    assert "0 sent before" in shown.text
    done = wait_for(browser, job_of(browser, "billing", cause="OutOfStock"), "done")
    assert done["counts"] == {"sent": 10}
    assert await copies_of(cluster, "Billed") == 40
    assert f'href="/jobs/{done["id"]}"' in browser.get("/dead-letters/billing").text
    assert done["id"] not in browser.get("/dead-letters/shipping").text
    again = wait_for(browser, job_of(browser, "billing", rate="1000"), "done")
    assert again["counts"] == {"sent": 20, "already_sent": 10}
    copy = browser.get(f"/messages/{again['events'][0]['copyId']}")
    assert copy.status == 200
    acts = [line["act"] for line in browser.json("/audit")["rows"]]
    assert "resend-dead-letters" in acts


def test_letters_are_exported_without_formulas(browser: Browser) -> None:
    lines = browser.get("/dead-letters/billing/export?format=jsonl").text.splitlines()
    assert len(lines) == 30
    assert json.loads(lines[0])["cause"].startswith("shop.OutOfStock")
    answer = browser.get("/dead-letters/billing/export?format=csv&cause=OutOfStock")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == 10
    assert rows[0]["keys"] == "'=k0"
    assert answer.headers["content-disposition"].startswith("attachment")
    refused = browser.get("/dead-letters/billing/export?format=xml")
    assert refused.status == 400
    assert "format must be one of jsonl, csv" in refused.text


def test_dead_letters_of_a_group_that_does_not_exist_are_not_found(browser: Browser) -> None:
    for path in ("/dead-letters/nope", "/dead-letters/nope/export?format=csv"):
        missing = browser.get(path)
        assert missing.status == 404
        assert "There is no consumer group nope." in missing.text


async def test_too_many_refusals_stop_it(cluster: Cluster, browser: Browser) -> None:
    await make_dead(cluster, "Gone", "refusing", 40)
    async with AdminClient(name_servers=cluster.addresses) as admin:
        await admin.topics.delete("Gone", list(cluster.broker_addresses))
    path = job_of(browser, "refusing", refused="50")
    job = wait_for(browser, path, "stopped")
    assert job["counts"] == {"refused": 20}
    assert job["problem"].startswith("20 / 20")


async def test_a_mask_holds_for_dead_letters_too(cluster: Cluster, tmp_path: Path) -> None:
    await make_dead(cluster, "Masked", "masking", 3)
    with run_console(cluster.addresses, tmp_path, "--mask", "Masked:card") as console:
        browser = make_first_user(console)
        await until_listed(browser, "masking")
        page = browser.get("/dead-letters/masking")
        assert "4711" not in page.text
        [letter, *_] = browser.json("/dead-letters/masking")["letters"]
        assert "4711" not in browser.get(f"/messages/{letter['id']}").text
        assert browser.get(f"/messages/{letter['id']}/body").status == 403
        assert browser.get("/dead-letters/masking/export").status == 403
        assert not browser.json("/messages?topic=Masked&begin=-1h&text=4711")["rows"]
        assert len(browser.json("/messages?topic=Masked&begin=-1h&text=card")["rows"]) == 3


async def test_a_resend_goes_on_after_the_console_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    count = 200
    await make_dead(cluster, "Killed", "killed", count)
    with run_console(cluster.addresses, tmp_path) as console:
        browser = make_first_user(console)
        await until_listed(browser, "killed")
        path = job_of(browser, "killed", rate="40")
        await until(lambda: browser.json(path)["counts"].get("sent", 0) > 30, seconds=30)
        console.process.kill()
    with run_console(cluster.addresses, tmp_path) as console:
        browser = console.browser()
        browser.log_in()
        job = browser.json(path)
        assert job["state"] == "interrupted"
        browser.post(f"{path}/resume", {"csrf": browser.csrf()})
        again = browser.post(f"{path}/resume", {"csrf": browser.csrf()})
        assert again.status == 400  # it runs
        await until(lambda: browser.json(path)["counts"].get("sent", 0) > 5, seconds=60)
        browser.post(f"{path}/stop", {"csrf": browser.csrf()})
        job = wait_for(browser, path, "stopped")
        assert job["counts"]["already_sent"] > 30
        browser.post(f"{path}/resume", {"csrf": browser.csrf()})
        job = wait_for(browser, path, "done")
        assert sum(job["counts"].values()) == count
        assert job["runs"] == 3
    assert await copies_of(cluster, "Killed") == 2 * count
