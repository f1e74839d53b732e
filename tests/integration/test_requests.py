"""Requests and replies through real servers: ours, or those that ``ROCKETPOST_NAMESRV`` names."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rocketpost.client import (
    Fault,
    Message,
    NoReply,
    Producer,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
    blocking,
)
from rocketpost.client.admin import AdminClient
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.cluster import Cluster

pytestmark = pytest.mark.slow

_numbers = itertools.count(1)
_run = f"{os.getpid()}-{int(time.time())}"


@pytest.fixture(scope="module")
def name_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = os.environ.get("ROCKETPOST_NAMESRV")
    if given:
        yield given
        return
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.addresses


@pytest.fixture
async def topic(name_servers: str) -> str:
    async with AdminClient(name_servers=name_servers) as admin:
        name = f"Requests-{_run}-{next(_numbers)}"
        for broker in (await admin.cluster.info()).broker_addr_table.values():
            assert broker.master is not None
            await admin.topics.create(broker.master, TopicConfig(topic_name=name))
        async with asyncio.timeout(20):
            while name not in await admin.cluster.topics():
                await asyncio.sleep(0.05)
    return name


def fresh(kind: str) -> str:
    return f"{kind}-{_run}-{next(_numbers)}"


@asynccontextmanager
async def replying(name_servers: str, topic: str, refusals: list[str]) -> AsyncIterator[None]:
    """Consume ``topic`` and reply to each message with its body turned round."""
    producer = Producer(fresh("replier"), name_servers=name_servers)

    async def handle(message: ReceivedMessage) -> None:
        assert message.wants_reply
        try:
            await producer.reply_to(message, message.body[::-1], tags="turned")
        except Fault as fault:
            refusals.append(fault.remark)

    config = PushConsumerConfig(name_servers=name_servers, start_from=StartFrom.FIRST)
    consumer = PushConsumer(fresh("repliers"), config=config)
    consumer.subscribe(topic, handle)
    async with producer, consumer:
        yield


async def test_requests_get_their_own_replies(name_servers: str, topic: str) -> None:
    refusals: list[str] = []
    async with (
        Producer(fresh("asker"), name_servers=name_servers) as producer,
        replying(name_servers, topic, refusals),
    ):
        asked = [b"request %d" % n for n in range(30)]
        replies = await asyncio.gather(
            *(producer.request(Message(topic, body), timeout=20) for body in asked)
        )
    assert [reply.body[::-1] for reply in replies] == asked
    assert {reply.tags for reply in replies} == {"turned"}
    assert refusals == []


async def test_a_large_reply_arrives_whole(name_servers: str, topic: str) -> None:
    body = bytes(range(256)) * 1000
    async with (
        Producer(fresh("asker"), name_servers=name_servers) as producer,
        replying(name_servers, topic, []),
    ):
        reply = await producer.request(Message(topic, body), timeout=20)
    assert reply.body == body[::-1]


def test_threads_ask_and_reply_too(name_servers: str, topic: str) -> None:
    asker = blocking.Producer(fresh("asker"), name_servers=name_servers)
    replier = blocking.Producer(fresh("replier"), name_servers=name_servers)
    config = PushConsumerConfig(name_servers=name_servers, start_from=StartFrom.FIRST)
    consumer = blocking.PushConsumer(fresh("repliers"), config=config)
    consumer.subscribe(topic, lambda message: replier.reply_to(message, b"pong"))
    with asker, replier, consumer:
        assert asker.request(Message(topic, b"ping"), timeout=20).body == b"pong"


async def test_without_a_replier_the_request_is_stored(name_servers: str, topic: str) -> None:
    async with Producer(fresh("asker"), name_servers=name_servers) as producer:
        with pytest.raises(NoReply):
            await producer.request(Message(topic, b"anybody?"), timeout=0.5)
        queues = await producer.queues(topic)
    async with PullConsumer(fresh("reader"), name_servers=name_servers) as reader:
        assert sum([await reader.max_offset(queue) for queue in queues]) == 1


async def test_a_replier_learns_that_the_requester_is_gone(name_servers: str, topic: str) -> None:
    async with Producer(fresh("asker"), name_servers=name_servers) as producer:
        asker_id = producer.client_id
        with pytest.raises(NoReply):
            await producer.request(Message(topic, b"quick"), timeout=0.2)
    refusals: list[str] = []
    async with replying(name_servers, topic, refusals), asyncio.timeout(20):
        while not refusals:
            await asyncio.sleep(0.02)
    assert asker_id in refusals[0]


async def test_a_reply_finds_its_requester_in_a_cluster_of_several(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=2, settings={"storeReplyMessageEnable": "false"}) as cluster:
        refusals: list[str] = []
        async with (
            Producer(fresh("asker"), name_servers=cluster.addresses) as producer,
            AdminClient(name_servers=cluster.addresses) as admin,
        ):
            await admin.topics.create(cluster.broker_addresses[1], TopicConfig(topic_name="One"))
            async with replying(cluster.addresses, "One", refusals):
                for n in range(4):
                    body = b"request %d" % n
                    reply = await producer.request(Message("One", body), timeout=20)
                    assert reply.body == body[::-1]
            queues = await producer.queues("DefaultCluster_REPLY_TOPIC")
        assert len(queues) == 2
        async with PullConsumer(fresh("reader"), name_servers=cluster.addresses) as reader:
            assert [await reader.max_offset(queue) for queue in queues] == [0, 0]
    assert refusals == []
