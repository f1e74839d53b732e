"""Consumers while the master of a group is killed: they read on at the slave, and come back."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rocketpost.admin.main import mqadmin
from rocketpost.client import (
    LitePullConsumer,
    LitePullConsumerConfig,
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullStatus,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    RocketpostError,
    StartFrom,
)
from rocketpost.client.admin import AdminClient
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.headers.offset import QueryOffset
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.replicas.group import ReplicaGroup

pytestmark = pytest.mark.slow

TOPIC = "Orders"
QUEUES = 2


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ReplicaGroup]:
    with ReplicaGroup(tmp_path, settings={"slaveReadEnable": "true"}) as group:
        yield group


@pytest.fixture
async def admin(group: ReplicaGroup) -> AsyncIterator[AdminClient]:
    async with AdminClient(name_servers=group.addresses) as admin:
        config = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        await admin.topics.create(group.master.address, config)
        yield admin


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


async def send(group: ReplicaGroup, first: int, count: int) -> None:
    config = ProducerConfig(name_servers=group.addresses, send_timeout=10.0, retries=5)
    async with Producer("senders", config=config) as producer:
        for number in range(first, first + count):
            await producer.send(Message(TOPIC, b"%d" % number))


async def until_copied(admin: AdminClient, group: ReplicaGroup) -> None:
    """Wait until the slave has the master's whole log, and its tables."""
    async with asyncio.timeout(30):
        while True:
            state = await admin.brokers.replication(group.master.address)
            if [each.diff for each in state.ha_connection_info] == [0]:
                return
            await asyncio.sleep(0.02)


def numbers(count: int) -> set[bytes]:
    return {b"%d" % number for number in range(count)}


async def test_a_push_consumer_reads_on_at_the_slave_and_comes_back(
    group: ReplicaGroup, admin: AdminClient
) -> None:
    got: Counter[bytes] = Counter()
    gate = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        if sum(got.values()) >= 40:
            await gate.wait()
        got[message.body] += 1

    config = PushConsumerConfig(
        name_servers=group.addresses,
        start_from=StartFrom.FIRST,
        cached_count_max=8,
        pull_count_max=8,
        error_seconds=0.2,
    )
    await send(group, 0, 200)
    await until_copied(admin, group)
    consumer = PushConsumer("readers", config=config)
    consumer.subscribe(TOPIC, handle)
    async with consumer:
        await until(lambda: sum(got.values()) >= 40)
        group.master.process.kill()
        gate.set()
        await until(lambda: got.keys() == numbers(200))

        group.master.start()
        await send(group, 200, 100)
        await until(lambda: got.keys() == numbers(300))
        async with asyncio.timeout(30):
            while not await messages_read_at(admin, group.master.address):
                await send(group, 0, 1)
                await asyncio.sleep(0.1)
    assert sum(got.values()) - len(got) <= 40  # what was in hand when the master died, at most
    queues = [MessageQueue("group", queue_id, TOPIC) for queue_id in range(QUEUES)]
    assert sum([await offset_at(admin, queue) or 0 for queue in queues]) >= 300


async def test_consumers_begin_at_the_slave_while_there_is_no_master(
    group: ReplicaGroup, admin: AdminClient
) -> None:
    await send(group, 0, 60)
    queues = [MessageQueue("group", queue_id, TOPIC) for queue_id in range(QUEUES)]
    async with PullConsumer("readers", name_servers=group.addresses) as reader:
        for queue in queues:
            await reader.commit_offset(queue, 10)
    await until_copied(admin, group)
    await until_offsets_copied(admin, group, queues)
    group.master.process.kill()

    # It begins where the group was at the master, and keeps its progress at the slave.
    config = LitePullConsumerConfig(name_servers=group.addresses, error_seconds=0.2)
    bodies: list[bytes] = []
    async with LitePullConsumer("readers", config=config) as member:
        member.subscribe(TOPIC)
        async with asyncio.timeout(30):
            while len(bodies) < 40:
                bodies += [message.body for message in await member.poll(0.5)]
        await member.commit()
    assert len(bodies) == len(set(bodies)) == 40
    async with PullConsumer("readers", name_servers=group.addresses) as reader:
        assert [await reader.fetch_offset(queue) for queue in queues] == [30, 30]
        for queue in queues:
            result = await reader.pull(queue, 0)
            assert (result.status, result.messages[0].queue_offset) == (PullStatus.FOUND, 0)
        with pytest.raises(RocketpostError):
            await send(group, 60, 1)  # no slave takes a message

    group.master.start()
    async with asyncio.timeout(30):
        while [await offset_at(admin, queue) for queue in queues] != [30, 30]:
            await asyncio.sleep(0.05)


async def until_offsets_copied(
    admin: AdminClient, group: ReplicaGroup, queues: list[MessageQueue]
) -> None:
    [slave] = group.slaves
    async with asyncio.timeout(30):
        while True:
            copied = [
                await admin.session.call(
                    slave.address,
                    RequestCode.QUERY_CONSUMER_OFFSET,
                    QueryOffset(
                        consumer_group="readers", topic=queue.topic, queue_id=queue.queue_id
                    ),
                    accept=frozenset({ResponseCode.QUERY_NOT_FOUND}),
                )
                for queue in queues
            ]
            if [answer.fields.get("offset") for answer in copied] == ["10"] * len(queues):
                return
            await asyncio.sleep(0.02)


async def messages_read_at(admin: AdminClient, address: str) -> int:
    return int((await admin.brokers.runtime(address))["msgGetTotalTodayNow"])


async def offset_at(admin: AdminClient, queue: MessageQueue) -> int | None:
    """Return the group's offset at the master."""
    route = await admin.cluster.route(TOPIC)
    master = route.broker_datas[0].master
    if master is None:
        return None
    header = QueryOffset(consumer_group="readers", topic=queue.topic, queue_id=queue.queue_id)
    answer = await admin.session.call(
        master,
        RequestCode.QUERY_CONSUMER_OFFSET,
        header,
        accept=frozenset({ResponseCode.QUERY_NOT_FOUND}),
    )
    return int(answer.fields["offset"]) if answer.code == ResponseCode.SUCCESS else None


def test_questions_are_answered_by_the_slave_while_there_is_no_master(group: ReplicaGroup) -> None:
    [slave] = group.slaves

    def ask(*words: str) -> str:
        result = CliRunner().invoke(mqadmin, [*words, "-n", group.addresses])
        assert result.exit_code == 0, (words, result.stdout, result.stderr)
        return result.stdout

    def list_roles() -> dict[str, int]:
        """Return how many bytes each broker is behind, by its role."""
        return {row["role"]: row["behindBytes"] for row in json.loads(ask("clusterList", "--json"))}

    ask("updateTopic", "-b", group.master.address, "-t", TOPIC, "-r", "1", "-w", "1")
    ask("sendMessage", "-t", TOPIC, "-p", "hello", "-k", "invoice")
    until_true(lambda: list_roles() == {"ASYNC_MASTER": 0, "SLAVE": 0})
    until_true(lambda: f"{slave.address} has it" in ask("explain", "-t", TOPIC, "invoice"))
    ask("resetMasterFlushOffset", "-b", slave.address, "-o", "77")
    group.master.process.kill()
    until_true(lambda: list_roles() == {"SLAVE": None})
    assert "#MasterFlushOffset\t77" in ask("haStatus", "-c", "DefaultCluster")
    assert f"{slave.address} has it" in ask("explain", "-t", TOPIC, "invoice")
    assert "hello" in ask("printMsg", "-t", TOPIC)
    rows = ask("topicStatus", "-t", TOPIC).splitlines()
    assert rows[1].split()[:4] == ["group", "0", "0", "1"]


def until_true(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
