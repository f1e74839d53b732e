"""A store directory as a table has the rows of its broker and of a consumer, whatever it holds.

Of a running broker, of one that was killed, with a torn tail, and of copies made under traffic.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from rocketpost.client import (
    Compression,
    Message,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullStatus,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    Retry,
    StartFrom,
    TransactionProducer,
    TransactionState,
)
from rocketpost.client.admin import AdminClient
from rocketpost.testing.cluster import SMALL_STORE, Cluster

pytestmark = [pytest.mark.slow, pytest.mark.long]

GROUP = "workers"
TOPICS = ("Plain", "Small", f"%RETRY%{GROUP}", f"%DLQ%{GROUP}")
SETTINGS = {**SMALL_STORE, "mappedFileSizeCommitLog": str(64 * 1024), "maxMessageSize": "16384"}
Row = tuple[Any, ...]


async def send_all_kinds(addresses: str, name: str) -> None:
    """Send everything that a log can hold, and see to it that it is delivered."""
    for compression in Compression:
        config = ProducerConfig(compress_bytes_min=2000, compression=compression)
        async with Producer("p", name_servers=addresses, config=config) as producer:
            for at in range(12):
                packed = (b"%d " % at) * 1500
                tags, keys = "AB"[at % 2], f"{name}-{at} all"
                await producer.send(Message("Plain", packed, tags=tags, keys=keys))
                await producer.send(Message("Plain", b"%d" % at, properties={"at": str(at)}))
                await producer.send(Message("Small", os.urandom(900), tags="C"))
                await producer.send_batch([Message("Plain", b"in a batch")] * 5)
    async with Producer("p", name_servers=addresses) as producer:
        await producer.send(Message("Plain", b"delayed", delay_level=1, keys=f"{name}-delayed"))
        await producer.send(Message("Small", b"timed", delay_seconds=1.5, keys=f"{name}-timed"))
    async with TransactionProducer("t", name_servers=addresses, checker=_never) as producer:
        for state in (TransactionState.COMMIT, TransactionState.ROLLBACK):
            message = Message("Plain", state.name.encode(), keys=f"{name}-transaction")
            await producer.send_in_transaction(message, lambda *_, state=state: state)


def _never(message: ReceivedMessage) -> TransactionState:
    raise AssertionError(f"nobody need ask about {message}")


async def consume(addresses: str, name: str) -> None:
    """Fail some messages once and some for good, and wait until all of that is stored."""
    seen: set[str] = set()
    done = asyncio.Event()
    kinds = ("delayed", "timed", "transaction", "1", "2")
    wanted = {f"{name}-{kind}" for kind in kinds}

    async def handle(message: ReceivedMessage) -> None:
        keys = set(message.keys)
        if f"{name}-1" in keys and message.record.reconsume_times == 0:
            raise Retry(1)
        seen.update(keys)
        if wanted <= seen:
            done.set()
        if f"{name}-2" in keys:
            raise Retry(-1)

    config = PushConsumerConfig(start_from=StartFrom.FIRST)
    consumer = PushConsumer(GROUP, name_servers=addresses, config=config)
    consumer.subscribe("Plain", handle)
    consumer.subscribe("Small", handle)
    async with consumer:
        await asyncio.wait_for(done.wait(), 90)


async def consumed(addresses: str, topics: tuple[str, ...]) -> list[Row]:
    """Return what the SDK's consumer gets."""
    rows = []
    async with PullConsumer("reader", name_servers=addresses) as consumer:
        for topic in topics:
            for queue in await consumer.queues(topic):
                at = await consumer.min_offset(queue)
                end = await consumer.max_offset(queue)
                while at < end:
                    found = await consumer.pull(queue, at)
                    if found.status is PullStatus.FOUND:
                        rows += [_row(message) for message in found.messages]
                    at = found.next_offset
    return sorted(rows)


def _row(message: ReceivedMessage) -> Row:
    record = message.record
    return (
        record.topic, record.queue_id, record.queue_offset, record.position, record.message_id,
        record.size, record.reconsume_times, record.store_ms, message.tags or "", message.body,
        tuple(sorted(message.properties.items())),
    )  # fmt: skip


def narrow(rows: list[dict[str, Any]]) -> list[Row]:
    """Return the same of a table."""
    return sorted(
        (
            row["topic"], row["queueId"], row["queueOffset"], row["commitLogOffset"], row["msgId"],
            row["storeSize"], row["reconsumeTimes"], ms(row["storeTimestamp"]),
            row["tags"] or "", bytes(row["body"]), tuple(sorted(row["properties"].items())),
        )
        for row in rows
    )  # fmt: skip


def ms(when: datetime) -> int:
    return round(when.timestamp() * 1000)


def table(frame: DataFrame) -> list[dict[str, Any]]:
    """Return every column but the one that files cannot know, in a fixed order."""
    rows = [row.asDict() for row in frame.drop("brokerName").collect()]
    return sorted(rows, key=lambda row: (row["topic"], row["queueId"], row["queueOffset"]))


class Readers:
    """The two sources for one cluster."""

    def __init__(self, spark: SparkSession, cluster: Cluster) -> None:
        self._spark = spark
        self._cluster = cluster
        self.store = str(cluster.broker_directory() / "store")

    def broker(self, topics: tuple[str, ...]) -> list[dict[str, Any]]:
        source = self._spark.read.format("rocketmq").option("topic", ",".join(topics))
        return table(source.option("nameServer", self._cluster.addresses).load())

    def log(self, topics: tuple[str, ...], store: str = "", **options: str) -> list[dict[str, Any]]:
        source = self._spark.read.format("rocketmq-log").options(**options)
        return table(source.option("topic", ",".join(topics)).load(store or self.store))

    def end(self) -> int:
        """Return where the log ends."""
        source = self._spark.read.format("rocketmq-log").option("view", "log").load(self.store)
        last = source.selectExpr("max_by(commitLogOffset + storeSize, commitLogOffset)").first()
        assert last is not None
        return int(last[0])


def delete_segments(cluster: Cluster, count: int) -> None:
    """Let the broker delete its oldest segments."""
    folder = cluster.broker_directory() / "store/commitlog"
    oldest = sorted(path for path in folder.iterdir() if path.is_file())[:count]
    for path in oldest:
        os.utime(path, (1, 1))

    async def delete() -> None:
        async with AdminClient(name_servers=cluster.addresses) as admin:
            while any(path.exists() for path in oldest):
                await admin.brokers.delete_expired_log(cluster.broker_addresses[0])
                await asyncio.sleep(0.2)

    asyncio.run(asyncio.wait_for(delete(), 60))


@contextlib.contextmanager
def traffic(addresses: str, topic: str) -> Iterator[None]:
    """Send from a thread, fast enough to fill several segments a second."""
    stop = threading.Event()

    async def send() -> None:
        async with Producer("traffic", name_servers=addresses) as producer:
            at = 0
            while not stop.is_set():
                some = [Message(topic, b"%06d" % (at + i) + b"." * 700) for i in range(20)]
                await asyncio.gather(*map(producer.send, some))
                at += 20

    thread = threading.Thread(target=lambda: asyncio.run(send()))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def tear(store: str, end: int) -> None:
    """Leave the first part of a record behind the log, as a crash in the middle of a write does."""
    path = max(p for p in Path(store, "commitlog").iterdir() if p.is_file() and int(p.name) <= end)
    with path.open("r+b") as file:
        first = file.read(120)
        file.seek(end - int(path.name))
        file.write(first[:28] + end.to_bytes(8, "big") + first[36:])


def test_rows_of_a_log_are_those_of_its_broker_and_of_a_consumer(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Cluster(tmp_path / "cluster", settings=SETTINGS) as cluster:
        addresses = cluster.addresses
        read = Readers(spark, cluster)
        for name in ("one", "two"):
            asyncio.run(send_all_kinds(addresses, name))
            asyncio.run(consume(addresses, name))
        before = read.broker(TOPICS)
        assert {row["topic"] for row in before} == set(TOPICS)
        assert {row["sysFlag"] & 0x701 for row in before} == {0, 0x101, 0x201, 0x301}

        delete_segments(cluster, 1)
        by_broker = read.broker(TOPICS)
        assert 0 < len(by_broker) < len(before)

        def check(store: str = "") -> None:
            """Compare all rows, and those that each way of reading gives."""
            assert read.log(TOPICS, store) == by_broker
            small = [row for row in by_broker if row["topic"] == "Small"]
            assert read.log(("Small",), store) == small
            tagged = [row for row in by_broker if row["tags"] == "B"]
            assert read.log(TOPICS, store, tags="B") == tagged
            keyed = [row for row in by_broker if "two-3" in (row["keys"] or "").split()]
            assert keyed
            assert read.log(TOPICS, store, keys="two-3") == keyed
            for row in (by_broker[0], by_broker[-1]):
                same = [each for each in by_broker if each["uniqKey"] == row["uniqKey"]]
                assert read.log(TOPICS, store, uniqKey=row["uniqKey"]) == same
            middle = by_broker[len(by_broker) // 2]["storeTimestamp"]
            later = [row for row in by_broker if row["storeTimestamp"] >= middle]
            assert read.log(TOPICS, store, startingTimestamp=str(ms(middle))) == later

        assert narrow(by_broker) == asyncio.run(consumed(addresses, TOPICS))
        check()

        copies = [str(tmp_path / f"copy-{at}") for at in range(6)]
        with traffic(addresses, "Traffic"):
            for copy in copies:
                subprocess.run(["cp", "-r", read.store, copy], check=True)
        everything = read.broker(("Traffic",))
        check_prefixes([read.log(("Traffic",), copy) for copy in copies], everything)
        for copy in copies:
            check(copy)

        by_broker = read.broker(TOPICS)
        cluster.brokers[0].kill()
        check()
        assert read.log(("Traffic",)) == everything
        tear(read.store, read.end())
        check()
        assert read.log(("Traffic",)) == everything
        cluster.brokers[0].start()
        assert read.broker(TOPICS) == by_broker


def check_prefixes(copies: list[list[dict[str, Any]]], everything: list[dict[str, Any]]) -> None:
    """Every copy has the first messages of every queue, as they are."""
    queues: dict[int, list[dict[str, Any]]] = {}
    for row in everything:
        queues.setdefault(row["queueId"], []).append(row)
    sizes = []
    for rows in copies:
        found: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            found.setdefault(row["queueId"], []).append(row)
        for queue_id, some in found.items():
            assert some == queues[queue_id][: len(some)]
        sizes.append(len(rows))
    assert sizes == sorted(sizes)
    assert sizes[-1] > 0
    assert sizes[0] < len(everything)
