"""A console of a large cluster: quick pages, little memory, few questions to brokers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.client.admin import AdminClient
from rocketpost.client.config import ClientConfig
from rocketpost.model.group import GroupChange
from rocketpost.model.route import MessageQueue
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.waiting import until

from .console_client import Browser, Console, make_first_user, run_console

pytestmark = [pytest.mark.slow, pytest.mark.long]

TOPICS, GROUPS, QUEUES = 1000, 2300, 4
PAGE_SECONDS_MAX = 0.3
MEMORY_MB_MAX = 70
IDLE_SHARE_MAX = 0.01
IDLE_SECONDS = 60


async def fill(cluster: Cluster, *, topics: int, groups: int) -> None:
    """Make topics and groups, each group with offsets in one topic."""
    [address] = cluster.broker_addresses
    config = ClientConfig(name_servers=cluster.addresses, call_timeout=120.0)
    async with AdminClient(config=config) as admin:
        await admin.topics.put_many(
            address,
            [
                TopicConfig(
                    topic_name=f"topic-{number}", read_queue_nums=QUEUES, write_queue_nums=QUEUES
                )
                for number in range(topics)
            ],
        )
        changes = [GroupChange(group_name=f"group-{number}") for number in range(groups)]
        await admin.groups.put_many(address, changes)
        while f"topic-{topics - 1}" not in await admin.cluster.topics():
            await asyncio.sleep(0.1)
        room = asyncio.Semaphore(1000)

        async def begin(number: int) -> None:
            for queue_id in range(QUEUES):
                queue = MessageQueue("broker-0", queue_id, f"topic-{number % topics}")
                async with room:
                    await admin.groups.set_offset(address, f"group-{number}", queue, 0)

        await asyncio.gather(*map(begin, range(groups)))


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with Cluster(tmp_path_factory.mktemp("large")) as cluster:
        asyncio.run(fill(cluster, topics=TOPICS, groups=GROUPS))
        with run_console(cluster.addresses, tmp_path_factory.mktemp("state")) as running:
            yield running


@pytest.fixture(scope="module")
def browser(console: Console) -> Browser:
    made = make_first_user(console)
    deadline = time.monotonic() + 60
    while made.json("/")["groups"] < GROUPS:
        assert time.monotonic() < deadline
    return made


def times_of(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024**2


def test_pages_are_quick(browser: Browser) -> None:
    paths = ("/", "/topics", "/topics?page=20", "/groups", "/groups?q=99", "/brokers", "/clients")
    for path in paths:
        began = time.perf_counter()
        assert browser.get(path).status == 200
        took = time.perf_counter() - began
        print(f"{path}: {took * 1000:.0f} ms")
        assert took < PAGE_SECONDS_MAX, path


def test_a_round_asks_a_few_questions(browser: Browser) -> None:
    found = browser.json("/")["round"]
    print(f"a round: {found}")
    assert 0 < found["calls"] <= 6  # one name server, and five questions to the only broker


async def test_it_is_small_and_idle(console: Console, browser: Browser) -> None:
    pid = console.process.pid
    assert pid is not None
    await until(lambda: browser.json("/")["round"]["calls"] > 0)
    await asyncio.sleep(30)  # nobody looks any more
    before, began = times_of(pid), time.monotonic()
    await asyncio.sleep(IDLE_SECONDS)
    share = (times_of(pid) - before) / (time.monotonic() - began)
    print(f"idle: {share:.2%} of a core; {memory_of(pid):.0f} MB")
    assert share < IDLE_SHARE_MAX
    assert memory_of(pid) < MEMORY_MB_MAX
