"""Dead letters on real servers: seen, exported, sent again, also by a command that is killed."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rocketpost.admin.main import mqadmin
from rocketpost.client import Message, Producer, PullConsumer, ReceivedMessage
from rocketpost.client.admin import AdminClient, Outcome, Selection
from rocketpost.client.config import ClientConfig
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.headers.retry import SendBackHeader
from rocketpost.codec.record import parse_message_id
from rocketpost.errors import ClientError
from rocketpost.model.topic import TopicConfig
from rocketpost.testing import Cluster

pytestmark = pytest.mark.slow

GROUP = "billing"
MQADMIN = [sys.executable, "-c", "from rocketpost.admin.main import mqadmin; mqadmin()"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, brokers=2) as cluster:
        yield cluster


async def make_dead(cluster: Cluster, topic: str, count: int, **more: Any) -> list[str]:
    """Send messages and give each up at once; return their unique ids."""
    ids: list[str] = []
    homes: set[str] = set()
    config = ClientConfig(name_servers=cluster.addresses)
    async with (
        Producer("shop", name_servers=cluster.addresses) as producer,
        AdminClient(config=config) as admin,
    ):
        for address in cluster.broker_addresses:
            await admin.topics.create(address, topic_config(topic))
        while len((await admin.cluster.route(topic)).broker_datas) < len(cluster.brokers):
            await asyncio.sleep(0.05)
        queues = await producer.queues(topic)
        for number in range(count):
            message = Message(topic, b"body-%d" % number, keys=f"k{number}", **more)
            sent = await producer.send(message, queue=queues[number % len(queues)])
            _, position = parse_message_id(sent.offset_id)
            await admin.session.call(
                admin.session.routes.master(sent.queue.broker_name),
                RequestCode.CONSUMER_SEND_MSG_BACK,
                SendBackHeader(
                    offset=position,
                    group=GROUP,
                    delay_level=-1,
                    origin_topic=topic,
                    failure_kind="ValueError" if number % 2 else "shop.OutOfStock",
                    failure_text=f"number {number}",
                ),
            )
            ids.append(sent.message_id)
            homes.add(sent.queue.broker_name)
        await until_routed(admin, homes)
    return ids


async def until_routed(admin: AdminClient, homes: set[str]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            route = await admin.cluster.route(f"%DLQ%{GROUP}")
        except ClientError:
            route = None
        if route is not None and homes <= {each.broker_name for each in route.broker_datas}:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the dead-letter topic has no route")


def topic_config(topic: str) -> TopicConfig:
    return TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2)


async def read_all(cluster: Cluster, topic: str) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    async with PullConsumer("readers", name_servers=cluster.addresses) as consumer:
        for queue in await consumer.queues(topic):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                found += result.messages
                offset = result.next_offset
    return found


def copies(messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
    return [each for each in messages if "__DEAD_LETTER" in each.properties]


def run(cluster: Cluster, *words: str) -> Result:
    return CliRunner().invoke(mqadmin, words, env={"NAMESRV_ADDR": cluster.addresses})


def ok(cluster: Cluster, *words: str) -> str:
    result = run(cluster, *words)
    assert result.exit_code == 0, (words, result.stdout, result.stderr, result.exception)
    return result.stdout


def start(cluster: Cluster, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*MQADMIN, "dlqResend", "-n", cluster.addresses, "-g", GROUP, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def killed(process: subprocess.Popen[str], *, lines: int, later: float = 0.0) -> str:
    """Kill a run after so many lines; return the name that it gave itself."""
    assert process.stdout is not None
    assert process.stderr is not None
    for _ in range(lines):
        assert process.stdout.readline()
    time.sleep(later)
    process.kill()
    process.wait()
    note = process.stderr.readline()
    process.stdout.close()
    process.stderr.close()
    return note.split()[4].rstrip(";")


def test_dead_letters_are_listed_shown_and_exported(cluster: Cluster, tmp_path: Path) -> None:
    ids = asyncio.run(make_dead(cluster, "Orders", 5, tags="A", properties={"who": "me"}))
    others = asyncio.run(make_dead(cluster, "Bills", 2))
    listed = json.loads(ok(cluster, "dlqList", "-g", GROUP, "--json"))
    assert {each["msgId"] for each in listed} == {*ids, *others}
    assert {each["reconsumeTimes"] for each in listed} == {1}
    bills = json.loads(ok(cluster, "dlqList", "-g", GROUP, "-t", "Bills", "--json"))
    assert {each["msgId"] for each in bills} == set(others)
    assert "Orders" in ok(cluster, "dlqList", "-g", GROUP, "-k", "k3")
    span = ["-b", "0", "-e", "now"]
    [late] = json.loads(
        ok(cluster, "dlqList", "-g", GROUP, "-t", "Bills", "-k", "k1", *span, "--json")
    )
    [by_own_id] = json.loads(
        ok(cluster, "dlqList", "-g", GROUP, "-i", late["deadLetterId"], "--json")
    )
    assert by_own_id == late
    assert json.loads(ok(cluster, "dlqList", "-g", GROUP, "-e", "1000", "--json")) == []
    shown = ok(cluster, "dlqShow", "-g", GROUP, "-i", ids[3])
    assert "body-3" in shown
    assert "who=me" in shown
    assert run(cluster, "dlqShow", "-g", GROUP, "-i", "ABC").exit_code == 1

    path = tmp_path / "dead.jsonl"
    assert "7 dead letters" in ok(cluster, "dlqExport", "-g", GROUP, "-o", str(path))
    exported = [json.loads(line) for line in path.read_text().splitlines()]
    assert {base64.b64decode(each["body"]) for each in exported if each["topic"] == "Orders"} == {
        b"body-%d" % number for number in range(5)
    }
    assert [json.loads(line) for line in ok(cluster, "dlqExport", "-g", GROUP).splitlines()] == (
        exported
    )
    assert not path.with_name("dead.jsonl.part").exists()


def test_a_resent_message_is_the_original_without_retry_properties(cluster: Cluster) -> None:
    more = {"tags": "A", "properties": {"who": "me"}, "flag": 7, "sharding_key": "s"}
    [sent] = asyncio.run(make_dead(cluster, "Orders", 1, **more))
    [letter] = json.loads(ok(cluster, "dlqList", "-g", GROUP, "--json"))
    assert "WOULD_SEND" in ok(cluster, "dlqResend", "-g", GROUP, "-i", sent, "--dry-run")
    assert copies(asyncio.run(read_all(cluster, "Orders"))) == []
    [told] = map(json.loads, ok(cluster, "dlqResend", "-g", GROUP, "--json").splitlines())
    [copy] = copies(asyncio.run(read_all(cluster, "Orders")))
    assert (copy.body, copy.tags, copy.keys, copy.flag) == (b"body-0", "A", ["k0"], 7)
    assert copy.reconsume_times == 0
    assert copy.offset_id == told["offsetMsgId"]
    assert copy.message_id == told["resentMsgId"]
    assert copy.properties["__DEAD_LETTER"] == f"%DLQ%{GROUP}/{letter['deadLetterId']}"
    assert copy.sharding_key == "s"
    by_broker = {"MSG_REGION", "TRACE_ON", "CLUSTER"}
    assert copy.properties.keys() - by_broker == {
        "KEYS", "TAGS", "TRANSFER_FLAG", "UNIQ_KEY", "WAIT", "who", "__DEAD_LETTER",
        "__SHARDINGKEY",
    }  # fmt: skip
    assert "1 ALREADY_SENT" in ok(cluster, "dlqResend", "-g", GROUP)
    assert len(copies(asyncio.run(read_all(cluster, "Orders")))) == 1


def test_a_deleted_topic_is_not_created_again(cluster: Cluster) -> None:
    asyncio.run(make_dead(cluster, "Orders", 1))
    asyncio.run(make_dead(cluster, "Bills", 1))
    ok(cluster, "deleteTopic", "-t", "Bills", "-c", "DefaultCluster", "--yes")
    result = run(cluster, "dlqResend", "-g", GROUP)
    assert result.exit_code == 1
    assert "1 SENT, 1 REFUSED" in result.stdout
    assert "Bills" not in ok(cluster, "topicList").split()


@pytest.mark.long
def test_dead_letters_of_one_cause_are_resent_by_runs_that_are_killed(cluster: Cluster) -> None:
    asyncio.run(make_dead(cluster, "Orders", 30))
    counted = json.loads(ok(cluster, "dlqList", "-g", GROUP, "-c", "--json"))
    assert {each["cause"]: each["count"] for each in counted} == {
        "ValueError": 15,
        "shop.OutOfStock": 15,
    }
    [one] = json.loads(ok(cluster, "dlqList", "-g", GROUP, "-x", "stock: number 28", "--json"))
    assert one["cause"] == "shop.OutOfStock: number 28"
    words = ["-x", "outofstock"]
    name = killed(start(cluster, *words), lines=4)
    ok(cluster, "dlqResend", "-g", GROUP, *words, "-a", name)
    found = copies(asyncio.run(read_all(cluster, "Orders")))
    assert Counter(each.body for each in found) == Counter(b"body-%d" % n for n in range(0, 30, 2))
    assert not any("CONSUME_FAILURE" in each.properties for each in found)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_killed_runs_send_nothing_twice_and_forget_nothing(cluster: Cluster, seed: int) -> None:
    chance = random.Random(seed)
    ids = asyncio.run(make_dead(cluster, "Orders", 60))
    words: list[str] = []
    for _ in range(5):
        process = start(cluster, *words)
        name = killed(process, lines=chance.randrange(1, 14), later=chance.random() * 0.01)
        words = ["-a", name]
    last = run(cluster, "dlqResend", "-g", GROUP, *words)
    assert last.exit_code == 0, (last.stdout, last.stderr)
    found = copies(asyncio.run(read_all(cluster, "Orders")))
    assert Counter(each.body for each in found) == Counter(b"body-%d" % n for n in range(len(ids)))


@pytest.mark.long
def test_a_run_without_a_name_waits_for_the_lock_of_a_killed_one(cluster: Cluster) -> None:
    asyncio.run(make_dead(cluster, "Orders", 20))
    killed(start(cluster, "-r", "20"), lines=5)
    began = time.monotonic()
    result = run(cluster, "dlqResend", "-g", GROUP)
    assert result.exit_code == 0, (result.stdout, result.stderr)
    assert "another run has the lock" in result.stderr
    assert time.monotonic() - began > 50
    assert len(copies(asyncio.run(read_all(cluster, "Orders")))) == 20


async def test_two_runs_at_once_send_nothing_twice(cluster: Cluster) -> None:
    await make_dead(cluster, "Orders", 40)
    config = ClientConfig(name_servers=cluster.addresses)
    async with AdminClient(config=config) as one, AdminClient(config=config) as other:
        first, second = await asyncio.gather(
            one.dead_letters.resend(GROUP, rate=100), other.dead_letters.resend(GROUP)
        )
    both = Counter(each.outcome for each in (*first, *second))
    assert both == {Outcome.SENT: 40, Outcome.ALREADY_SENT: 40}
    assert len(copies(await read_all(cluster, "Orders"))) == 40


async def test_the_rate_is_kept_and_the_selection_too(cluster: Cluster) -> None:
    await make_dead(cluster, "Orders", 12)
    selection = Selection(keys=frozenset(f"k{number}" for number in range(6)))
    async with AdminClient(name_servers=cluster.addresses) as admin:
        began = time.monotonic()
        done = await admin.dead_letters.resend(GROUP, selection, rate=10)
        assert time.monotonic() - began >= 0.5
        assert [each.outcome for each in done] == [Outcome.SENT] * 6
    bodies = {each.body for each in copies(await read_all(cluster, "Orders"))}
    assert bodies == {b"body-%d" % number for number in range(6)}


async def test_the_copy_is_stored_on_the_broker_of_its_dead_letter(cluster: Cluster) -> None:
    await make_dead(cluster, "Orders", 8)
    async with AdminClient(name_servers=cluster.addresses) as admin:
        done = await admin.dead_letters.resend(GROUP)
    homes = {each.letter.resent_id: each.letter.message.queue.broker_name for each in done}
    found = copies(await read_all(cluster, "Orders"))
    assert len(set(homes.values())) == 2
    assert {each.message_id: each.queue.broker_name for each in found} == homes


async def test_without_a_key_index_it_stops_after_the_first(tmp_path: Path) -> None:
    with Cluster(tmp_path, settings={"messageIndexEnable": "false"}) as cluster:
        await make_dead(cluster, "Orders", 3)
        async with AdminClient(name_servers=cluster.addresses) as admin:
            with pytest.raises(ClientError, match="does not index"):
                await admin.dead_letters.resend(GROUP)
        assert len(copies(await read_all(cluster, "Orders"))) == 1


@pytest.mark.long
async def test_a_killed_broker_remembers_what_was_sent_again(cluster: Cluster) -> None:
    await make_dead(cluster, "Orders", 20)
    async with AdminClient(name_servers=cluster.addresses) as admin:
        await admin.dead_letters.resend(GROUP)
    for broker in cluster.brokers:
        broker.kill()
        await asyncio.to_thread(broker.start)
    async with AdminClient(name_servers=cluster.addresses) as admin:
        await until_routed(admin, {"broker-0", "broker-1"})
        again = await admin.dead_letters.resend(GROUP)
    assert Counter(each.outcome for each in again) == {Outcome.ALREADY_SENT: 20}
    assert len(copies(await read_all(cluster, "Orders"))) == 20


def test_a_broker_that_accepts_no_more_messages_is_still_asked(cluster: Cluster) -> None:
    asyncio.run(make_dead(cluster, "Orders", 8))
    assert "8 SENT" in ok(cluster, "dlqResend", "-g", GROUP)
    ok(cluster, "wipeWritePerm", "-b", "broker-0", "--yes")
    assert "8 ALREADY_SENT" in ok(cluster, "dlqResend", "-g", GROUP)
