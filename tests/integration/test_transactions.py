"""Transactions through real servers: ours, or those that ``ROCKETPOST_NAMESRV`` names."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from rocketpost.client import (
    Message,
    MessageRefused,
    PullConsumer,
    PullStatus,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
    blocking,
)
from rocketpost.client.admin import AdminClient
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.cluster import Cluster

pytestmark = pytest.mark.slow

COMMIT, ROLLBACK, UNKNOWN = TransactionState
SETTINGS = {"transactionTimeOut": "500", "transactionCheckInterval": "500"}
CHECK_SECONDS = 90 if os.environ.get("ROCKETPOST_NAMESRV") else 20

_numbers = itertools.count(1)
_run = f"{os.getpid()}-{int(time.time())}"


@pytest.fixture(scope="module")
def name_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = os.environ.get("ROCKETPOST_NAMESRV")
    if given:
        yield given
        return
    with Cluster(tmp_path_factory.mktemp("cluster"), settings=SETTINGS) as cluster:
        yield cluster.addresses


@pytest.fixture
async def topic(name_servers: str) -> str:
    return await make_topic(name_servers)


async def make_topic(name_servers: str) -> str:
    async with AdminClient(name_servers=name_servers) as admin:
        name = f"Transactions-{_run}-{next(_numbers)}"
        for broker in (await admin.cluster.info()).broker_addr_table.values():
            assert broker.master is not None
            await admin.topics.create(broker.master, TopicConfig(topic_name=name))
        async with asyncio.timeout(20):
            while name not in await admin.cluster.topics():
                await asyncio.sleep(0.05)
    return name


async def read(name_servers: str, topic: str) -> list[ReceivedMessage]:
    """Return what consumers can see of a topic."""
    found: list[ReceivedMessage] = []
    async with PullConsumer("reader", name_servers=name_servers) as consumer:
        for queue in await consumer.queues(topic):
            offset = await consumer.min_offset(queue)
            while True:
                result = await consumer.pull(queue, offset)
                found += result.messages
                if result.status is not PullStatus.FOUND:
                    break
                offset = result.next_offset
    return found


async def read_until(name_servers: str, topic: str, count: int) -> list[str]:
    """Return the bodies of a topic, once there are as many as wanted."""
    async with asyncio.timeout(CHECK_SECONDS):
        while len(found := await read(name_servers, topic)) < count:
            await asyncio.sleep(0.1)
    return sorted(message.body.decode() for message in found)


class Checks:
    """A checker that answers as told and counts what it was asked."""

    def __init__(self, *answers: TransactionState | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[ReceivedMessage] = []
        self.changed = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> TransactionState:
        self.asked.append(message)
        self.changed.set()
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(CHECK_SECONDS * count):
            while len(self.asked) < count:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def producer(
    name_servers: str, checks: Checks, *, group: str = "", topics: tuple[str, ...] = ()
) -> AsyncIterator[TransactionProducer]:
    group = group or f"transactions-{_run}-{next(_numbers)}"
    async with TransactionProducer(
        group, checker=checks, topics=topics, name_servers=name_servers
    ) as made:
        yield made


async def test_a_commit_is_delivered_once_and_a_rollback_never(
    name_servers: str, topic: str
) -> None:
    ids: list[str] = []

    async def commit(message: Message, transaction_id: str) -> TransactionState:
        ids.append(transaction_id)
        return COMMIT

    async with producer(name_servers, Checks(ROLLBACK)) as sender:
        message = Message(topic, b"kept", tags="A", keys="k1 k2", properties={"mine": "yes"})
        result = await sender.send_in_transaction(message, commit)
        assert (result.state, result.confirmed, result.error) == (COMMIT, True, None)
        assert ids == [result.sent.message_id]
        gone = Message(topic, b"gone")
        result = await sender.send_in_transaction(gone, lambda message, _: ROLLBACK)
        assert (result.state, result.confirmed) == (ROLLBACK, True)
    [found] = await read(name_servers, topic)
    assert (found.body, found.tags, found.keys) == (b"kept", "A", ["k1", "k2"])
    assert found.properties["mine"] == "yes"
    assert found.message_id == ids[0]
    assert found.record.prepared_position > 0 or found.record.sys_flag & 0xC == 0x8


async def test_nobody_sees_a_half_message_before_its_commit(name_servers: str, topic: str) -> None:
    async with producer(name_servers, Checks(UNKNOWN)) as sender:
        transaction = await sender.begin(Message(topic, b"first half"))
        assert await read(name_servers, topic) == []
        await transaction.commit()
        assert await read_until(name_servers, topic, 1) == ["first half"]


async def test_a_producer_without_an_answer_is_asked(name_servers: str, topic: str) -> None:
    checks = Checks(RuntimeError("the database is away"), COMMIT)
    async with producer(name_servers, checks) as sender:

        def fail(message: Message, transaction_id: str) -> TransactionState:
            raise OSError("no answer from the database")

        result = await sender.send_in_transaction(Message(topic, b"late"), fail)
        assert (result.state, result.confirmed) == (UNKNOWN, False)
        assert isinstance(result.error, OSError)
        await checks.wait(2)
        assert await read_until(name_servers, topic, 1) == ["late"]
        first, second = checks.asked
        assert first.message_id == second.message_id == result.sent.message_id
        assert (second.topic, second.body) == (topic, b"late")


async def test_another_member_answers_for_one_that_died(name_servers: str, topic: str) -> None:
    group = f"transactions-{_run}-{next(_numbers)}"
    async with producer(name_servers, Checks(UNKNOWN), group=group) as first:
        sent = await first.begin(Message(topic, b"orphan"))
        abandoned = sent.id
        del sent
    checks = Checks(COMMIT)
    async with producer(name_servers, checks, group=group, topics=(topic,)):
        await checks.wait(1)
        assert checks.asked[0].message_id == abandoned
        assert await read_until(name_servers, topic, 1) == ["orphan"]


async def test_threads_have_transactions_too(name_servers: str, topic: str) -> None:
    def work() -> None:
        with blocking.TransactionProducer(
            f"transactions-{_run}-{next(_numbers)}",
            checker=lambda message: ROLLBACK,
            name_servers=name_servers,
        ) as sender:
            done = sender.send_in_transaction(Message(topic, b"one"), lambda message, _: COMMIT)
            assert (done.state, done.confirmed) == (COMMIT, True)
            done = sender.send_in_transaction(Message(topic, b"two"), lambda message, _: ROLLBACK)
            assert (done.state, done.confirmed) == (ROLLBACK, True)

            def fail(message: Message, transaction_id: str) -> TransactionState:
                raise ValueError(transaction_id)

            done = sender.send_in_transaction(Message(topic, b"three"), fail)
            assert done.state is UNKNOWN
            assert isinstance(done.error, ValueError)

    await asyncio.to_thread(work)
    assert await read_until(name_servers, topic, 1) == ["one"]


async def test_messages_that_cannot_be_transactional_are_refused(
    name_servers: str, topic: str
) -> None:
    async with producer(name_servers, Checks(UNKNOWN)) as sender:
        with pytest.raises(MessageRefused, match="cannot be delayed"):
            await sender.begin(Message(topic, b"later", delay_level=3))
        with pytest.raises(MessageRefused, match="immunity"):
            await sender.begin(Message(topic, b"never"), immunity_seconds=0)
