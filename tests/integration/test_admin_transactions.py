"""Transactions as operators see them: pending, given up, resumed; and after a kill."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rocketpost.admin.main import mqadmin
from rocketpost.client import (
    Fault,
    Message,
    PullConsumer,
    PullStatus,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from rocketpost.client.admin import AdminClient
from rocketpost.model.topic import TopicConfig
from rocketpost.testing import Cluster

pytestmark = pytest.mark.slow

COMMIT, ROLLBACK, UNKNOWN = TransactionState
SETTINGS = {
    "transactionTimeOut": "300",
    "transactionCheckInterval": "200",
    "transactionCheckMax": "2",
    "transactionOpBatchInterval": "100",
}
TOPIC, GROUP = "Orders", "shop"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, settings=SETTINGS) as running:
        yield running


async def run(cluster: Cluster, *words: str) -> Any:
    """Run a command and return what it prints, as values if it can."""
    command = [words[0], "-n", cluster.addresses, *words[1:]]
    result = await asyncio.to_thread(CliRunner().invoke, mqadmin, command)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout) if "--json" in words else result.stdout


async def listed(cluster: Cluster, *words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = await run(cluster, "transactions", "--json", *words)
    return rows


async def make_topic(cluster: Cluster) -> None:
    async with AdminClient(name_servers=cluster.addresses) as admin:
        await admin.topics.create(cluster.broker_addresses[0], TopicConfig(topic_name=TOPIC))


async def bodies(cluster: Cluster) -> list[bytes]:
    found: list[bytes] = []
    async with PullConsumer("reader", name_servers=cluster.addresses) as consumer:
        for queue in await consumer.queues(TOPIC):
            result = await consumer.pull(queue, 0)
            if result.status is PullStatus.FOUND:
                found += [message.body for message in result.messages]
    return sorted(found)


async def test_operators_see_and_resume_what_producers_do_not_end(cluster: Cluster) -> None:
    await make_topic(cluster)
    answers = {"now": UNKNOWN}

    def check(message: ReceivedMessage) -> TransactionState:
        return answers["now"]

    async with TransactionProducer(
        GROUP, checker=check, name_servers=cluster.addresses
    ) as producer:
        done = await producer.send_in_transaction(
            Message(TOPIC, b"lost sight of", keys="k1"), lambda message, _: UNKNOWN
        )
        # After two questions it is given up.
        async with asyncio.timeout(20):
            while not (given_up := await listed(cluster, "-d")):
                await asyncio.sleep(0.1)
            while await listed(cluster):
                await asyncio.sleep(0.1)
        [row] = given_up
        assert (row["transactionId"], row["checks"]) == (done.sent.message_id, 2)
        assert (row["producerGroup"], row["topic"], row["keys"]) == (GROUP, TOPIC, ["k1"])
        assert await listed(cluster, "-d", "-g", "others") == []
        assert await bodies(cluster) == []

        answers["now"] = COMMIT
        printed = await run(cluster, "resumeCheckHalfMessage", "-i", row["transactionId"])
        assert "again" in printed
        async with asyncio.timeout(20):
            while await bodies(cluster) != [b"lost sight of"]:
                await asyncio.sleep(0.1)
        command = ["resumeCheckHalfMessage", "-n", cluster.addresses, "-i", row["offsetMsgId"]]
        result = await asyncio.to_thread(CliRunner().invoke, mqadmin, command)
        assert result.exit_code == 1
        assert "committed since" in result.output


async def test_pending_transactions_are_listed_and_counted(cluster: Cluster) -> None:
    await make_topic(cluster)
    async with TransactionProducer(
        GROUP, checker=lambda message: UNKNOWN, name_servers=cluster.addresses
    ) as producer:
        kept = await producer.begin(Message(TOPIC, b"one"), immunity_seconds=600)
        other = await producer.begin(Message(TOPIC, b"two"), immunity_seconds=600)
        assert {row["transactionId"] for row in await listed(cluster)} == {kept.id, other.id}
        assert await listed(cluster, "-t", "elsewhere") == []
        await other.rollback()
        cluster.brokers[0].kill()
        cluster.brokers[0].start()
        async with asyncio.timeout(20):
            while True:
                try:
                    [row] = await listed(cluster)
                    break
                except AssertionError:  # the broker is not back at the name server yet
                    await asyncio.sleep(0.1)
        assert row["transactionId"] == kept.id
        table = await run(cluster, "transactions")
        assert kept.id in table
        assert "#Checks" in table
        async with AdminClient(name_servers=cluster.addresses) as admin:
            values = await admin.brokers.runtime(cluster.broker_addresses[0])
        assert values["transactionsPending"] == "1"
        with pytest.raises(Fault, match="already rolled back"):
            await other.commit()
        await kept.commit()
        assert await bodies(cluster) == [b"one"]


async def test_no_transactions_if_the_broker_rejects_them(tmp_path: Path) -> None:
    with Cluster(tmp_path, settings={"rejectTransactionMessage": "true"}) as cluster:
        await make_topic(cluster)
        async with TransactionProducer(
            GROUP, checker=lambda message: UNKNOWN, name_servers=cluster.addresses
        ) as producer:
            with pytest.raises(Fault, match="rejectTransactionMessage"):
                await producer.begin(Message(TOPIC, b"one"))


async def test_a_producer_started_after_both_crashed_is_asked(cluster: Cluster) -> None:
    await make_topic(cluster)
    async with TransactionProducer(
        GROUP, checker=lambda message: UNKNOWN, name_servers=cluster.addresses
    ) as producer:
        transaction = await producer.begin(Message(TOPIC, b"orphan"))
        abandoned = transaction.id
        del transaction
        cluster.brokers[0].kill()
    cluster.brokers[0].start()
    async with AdminClient(name_servers=cluster.addresses) as admin, asyncio.timeout(20):
        while True:
            values = await admin.brokers.runtime(cluster.broker_addresses[0])
            if values["transactionsWithoutProducer"] == "1":
                break
            await asyncio.sleep(0.05)
    asked: list[str] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.message_id)
        return COMMIT

    async with TransactionProducer(
        GROUP, checker=check, topics=[TOPIC], name_servers=cluster.addresses
    ):
        async with asyncio.timeout(20):
            while await bodies(cluster) != [b"orphan"]:
                await asyncio.sleep(0.1)
    assert asked == [abandoned]


async def test_cleaning_deletes_no_pending_transaction(tmp_path: Path) -> None:
    settings = {
        **SETTINGS,
        "transactionCheckMax": "100",
        "mappedFileSizeCommitLog": str(256 * 1024),
        "maxMessageSize": str(64 * 1024),
        "flushIntervalConsumeQueue": "100",
        "flushConsumeQueueThoroughInterval": "100",
    }
    answers = {"now": UNKNOWN}
    with Cluster(tmp_path, settings=settings) as cluster:
        await make_topic(cluster)
        log = cluster.broker_directory() / "store" / "commitlog"
        async with TransactionProducer(
            GROUP, checker=lambda message: answers["now"], name_servers=cluster.addresses
        ) as producer:
            half = await producer.begin(Message(TOPIC, b"old"), immunity_seconds=3)
            for _ in range(16):
                await producer.send(Message("Filler", os.urandom(60_000)))
            names = sorted(path.name for path in log.iterdir())
            for name in names[:-1]:
                os.utime(log / name, (0, 0))  # as if nobody had written there for years
            async with AdminClient(name_servers=cluster.addresses) as admin:
                async with asyncio.timeout(30):
                    while (log / names[0]).exists():  # not before its queues are saved
                        await admin.brokers.delete_expired_log(cluster.broker_addresses[0])
                        await asyncio.sleep(0.1)
            [row] = await listed(cluster)
            assert row["transactionId"] == half.id
            answers["now"] = COMMIT
            del half
            async with asyncio.timeout(20):
                while await bodies(cluster) != [b"old"]:
                    await asyncio.sleep(0.1)
