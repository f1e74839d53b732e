"""SQL filters through every consumer of the SDK: ours, or what ``ROCKETPOST_NAMESRV`` points at."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from rocketpost.client import (
    FilterError,
    LitePullConsumer,
    LitePullConsumerConfig,
    Message,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    Retry,
    SimpleConsumer,
    StartFrom,
)
from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.client import ClientConfigCheck
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.faults import SubscriptionParseFailed
from rocketpost.codec.lenient_json import encode
from rocketpost.model.group import SQL92, Subscription
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.cluster import Cluster

pytestmark = pytest.mark.slow

EU_OVER_FIVE = "size > 5 AND region = 'eu'"

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
async def admin(name_servers: str) -> AsyncIterator[AdminClient]:
    async with AdminClient(name_servers=name_servers) as client:
        yield client


@pytest.fixture
async def address(admin: AdminClient) -> str:
    [broker] = (await admin.cluster.info()).broker_addr_table.values()
    assert broker.master is not None
    return broker.master


@pytest.fixture
async def topic(admin: AdminClient, address: str) -> str:
    """A fresh topic with two queues."""
    name = f"FilterTopic-{_run}-{next(_numbers)}"
    config = TopicConfig(topic_name=name, read_queue_nums=2, write_queue_nums=2)
    await admin.topics.create(address, config)
    async with asyncio.timeout(20):
        while name not in await admin.cluster.topics():
            await asyncio.sleep(0.05)
    return name


@pytest.fixture
async def producer(name_servers: str) -> AsyncIterator[Producer]:
    async with Producer(f"filter-producer-{_run}", name_servers=name_servers) as client:
        yield client


def fresh_group() -> str:
    return f"filter-group-{_run}-{next(_numbers)}"


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def send(producer: Producer, topic: str, sizes: range) -> list[str]:
    """Send messages of rising size, from eu and us in turn; return the bodies that match."""
    wanted = []
    for size in sizes:
        region = "eu" if size % 2 else "us"
        body = f"{region}-{size}"
        await producer.send(
            Message(topic, body.encode(), properties={"size": str(size), "region": region})
        )
        if size > 5 and region == "eu":
            wanted.append(body)
    return wanted


async def test_a_push_consumer_gets_what_matches_also_when_it_arrives_later(
    name_servers: str, producer: Producer, topic: str
) -> None:
    got: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body.decode())

    wanted = await send(producer, topic, range(12))
    config = PushConsumerConfig(name_servers=name_servers, start_from=StartFrom.FIRST)
    consumer = PushConsumer(fresh_group(), config=config)
    consumer.subscribe(topic, handle, sql=EU_OVER_FIVE)
    async with consumer:
        await until(lambda: len(got) >= len(wanted))
        wanted += await send(producer, topic, range(12, 24))
        await until(lambda: len(got) >= len(wanted))
    assert sorted(got) == sorted(wanted)


async def test_failed_messages_are_redelivered_although_filters_would_skip_them(
    name_servers: str, producer: Producer, topic: str
) -> None:
    rounds: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        rounds.append(message.reconsume_times)
        if message.reconsume_times == 0:
            raise Retry(delay_level=1)

    config = PushConsumerConfig(name_servers=name_servers, start_from=StartFrom.FIRST)
    consumer = PushConsumer(fresh_group(), config=config)
    consumer.subscribe(topic, handle, sql=EU_OVER_FIVE)
    async with consumer:
        await send(producer, topic, range(6, 8))
        await until(lambda: 1 in rounds)
    assert rounds == [0, 1]


async def test_a_lite_pull_consumer_gets_what_matches(
    name_servers: str, producer: Producer, topic: str
) -> None:
    wanted = await send(producer, topic, range(20))
    config = LitePullConsumerConfig(name_servers=name_servers, start_from=StartFrom.FIRST)
    consumer = LitePullConsumer(fresh_group(), config=config)
    consumer.subscribe(topic, sql=EU_OVER_FIVE)
    got: list[str] = []
    async with consumer, asyncio.timeout(30):
        while len(got) < len(wanted):
            got += [message.body.decode() for message in await consumer.poll(timeout=1)]
    assert sorted(got) == sorted(wanted)


async def test_a_pull_continues_after_messages_that_do_not_match(
    name_servers: str, producer: Producer, topic: str
) -> None:
    wanted = await send(producer, topic, range(20))
    got: list[str] = []
    async with PullConsumer(fresh_group(), name_servers=name_servers) as consumer:
        for queue in await consumer.queues(topic):
            offset, end = 0, await consumer.max_offset(queue)
            while offset < end:
                found = await consumer.pull(queue, offset, sql=EU_OVER_FIVE)
                assert found.status in (PullStatus.FOUND, PullStatus.NO_MATCHED_MSG)
                got += [message.body.decode() for message in found.messages]
                offset = found.next_offset
    assert sorted(got) == sorted(wanted)


async def test_a_simple_consumer_gets_what_matches(
    name_servers: str, producer: Producer, topic: str
) -> None:
    wanted = await send(producer, topic, range(20))
    consumer = SimpleConsumer(fresh_group(), name_servers=name_servers, start_from=StartFrom.FIRST)
    got: list[str] = []
    async with consumer, asyncio.timeout(30):
        await consumer.subscribe(topic, sql=EU_OVER_FIVE)
        while len(got) < len(wanted):
            for message in await consumer.receive(await_seconds=1):
                got.append(message.body.decode())
                await consumer.ack(message)
    assert sorted(got) == sorted(wanted)


async def test_a_wrong_filter_is_found_by_the_client_and_refused_by_the_broker(
    name_servers: str, admin: AdminClient, address: str, topic: str
) -> None:
    async with PullConsumer(fresh_group(), name_servers=name_servers) as consumer:
        [queue, *_] = await consumer.queues(topic)
        with pytest.raises(FilterError, match="at character 7"):
            await consumer.pull(queue, 0, sql="size >")
    wrong = Subscription(topic=topic, sub_string="size >", expression_type=SQL92)
    check = ClientConfigCheck(client_id="id", group=fresh_group(), subscription_data=wrong)
    with pytest.raises(SubscriptionParseFailed):
        await admin.session.call(address, RequestCode.CHECK_CLIENT_CONFIG, body=encode(check))
