"""A store directory of either maker, read as a table, has the rows that clients of it get.

Running, killed, and copied while it runs. Spark itself is not needed to run its readers.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.peer import Peer, named
from interop.servers import Cluster, Maker
from rocketpost.client import (
    Compression,
    Message,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    Retry,
    StartFrom,
)
from rocketpost.client.admin import AdminClient
from rocketpost.errors import RemoteProtocolError
from rocketpost.spark.log.options import LogOptions
from rocketpost.spark.log.reader import LogReader
from rocketpost.spark.options import parse_options
from rocketpost.spark.records import columns

pytestmark = pytest.mark.interop

GROUP = "workers"
TOPICS = ("Orders", "Other", f"%RETRY%{GROUP}", f"%DLQ%{GROUP}")
SETTINGS = {
    "mappedFileSizeCommitLog": "65536",
    "maxMessageSize": "32768",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "400",
}
Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def reader(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    with Peer("5.3", tmp_path_factory.mktemp("reader")) as running:
        yield running


def write(peer: Peer, cluster: Cluster, name: str) -> None:
    """Write what a store can hold, by Java's client and ours."""
    common: dict[str, object] = {"namesrv": cluster.namesrv, "topic": "Orders"}
    peer.run("send", **common, body=name, count=20, tags="paid,open", keys=f"{name}-#,{name}")
    peer.run("batch", **common, body=f"{name}-batch", count=4, keys=f"{name}-batch")
    peer.run("send", **common, body=f"{name}-packed", size=20_000, queue=3)
    peer.run("transaction", **common, body=f"{name}-done", decision="COMMIT_MESSAGE")
    peer.run("transaction", **common, body=f"{name}-undone", decision="ROLLBACK_MESSAGE")
    peer.run("send", namesrv=cluster.namesrv, topic="Other", body=name, count=5, tags="paid")
    asyncio.run(send(cluster.namesrv, name))
    asyncio.run(consume(cluster.namesrv, name))


async def send(name_servers: str, name: str) -> None:
    for compression in Compression:
        config = ProducerConfig(compress_bytes_min=2000, compression=compression)
        async with Producer("p", name_servers=name_servers, config=config) as producer:
            for at in range(12):
                await producer.send(Message("Orders", b"%d" % at * 4000, keys=f"{name}-{at}"))
                await producer.send(Message("Orders", os.urandom(1500), tags="open"))
    async with Producer("p", name_servers=name_servers) as producer:
        late = [Message("Orders", b"delayed", delay_level=1, keys=f"{name}-delayed")]
        late.append(Message("Other", b"timed", delay_seconds=2, keys=f"{name}-timed"))
        for message in late:
            await producer.send(message)


async def consume(name_servers: str, name: str) -> None:
    """Fail one message once and another for good; wait for what comes late."""
    seen: set[str] = set()
    done = asyncio.Event()
    wanted = {f"{name}-{kind}" for kind in ("delayed", "timed", "1", "2")}

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
    consumer = PushConsumer(GROUP, name_servers=name_servers, config=config)
    for topic in ("Orders", "Other"):
        consumer.subscribe(topic, handle)
    async with consumer:
        await asyncio.wait_for(done.wait(), 120)


def delete_segments(cluster: Cluster, count: int) -> None:
    oldest = sorted(path for path in (cluster.store / "commitlog").iterdir() if path.is_file())
    for path in oldest[:count]:
        os.utime(path, (1, 1))

    async def delete() -> None:
        async with AdminClient(name_servers=cluster.namesrv) as admin:
            while any(path.exists() for path in oldest[:count]):
                await admin.brokers.delete_expired_log(cluster.broker)
                await asyncio.sleep(1)

    asyncio.run(asyncio.wait_for(delete(), 120))


async def pulled(name_servers: str, topics: tuple[str, ...] = TOPICS) -> list[Row]:
    rows = []
    async with PullConsumer("reader", name_servers=name_servers) as consumer:
        for topic in topics:
            for queue in await consumer.queues(topic):
                at, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
                while at < end:
                    found = await consumer.pull(queue, at)
                    rows += [of_message(message) for message in found.messages]
                    at = found.next_offset
    return sorted(rows)


async def pulled_when_settled(name_servers: str) -> list[Row]:
    """Pull when Apache's broker has moved the beginnings of its queues, as it does after deletions.

    Until then it answers pulls of what is deleted with bytes that are no messages.
    """
    while True:
        try:
            return await pulled(name_servers)
        except RemoteProtocolError:
            await asyncio.sleep(0.5)


def of_message(message: ReceivedMessage) -> Row:
    record = message.record
    return (
        record.topic, record.queue_id, record.queue_offset, record.position, record.message_id,
        record.size, record.sys_flag, record.reconsume_times, record.store_ms, record.born_ms,
        message.tags or "", message.body, tuple(sorted(message.properties.items())),
    )  # fmt: skip


def read(store: Path, **options: str) -> list[Row]:
    base = {"path": str(store), "topic": ",".join(TOPICS)}
    found = LogReader(parse_options(LogOptions, base | options), columns.ALL)
    return sorted(
        of_row(row)
        for part in found.partitions()
        for batch in found.read(part)
        for row in batch.to_pylist()
    )


def of_row(row: dict[str, Any]) -> Row:
    return (
        row["topic"], row["queueId"], row["queueOffset"], row["commitLogOffset"], row["msgId"],
        row["storeSize"], row["sysFlag"], row["reconsumeTimes"], ms(row["storeTimestamp"]),
        ms(row["bornTimestamp"]), row["tags"] or "", row["body"],
        tuple(sorted(dict(row["properties"]).items())),
    )  # fmt: skip


def ms(when: Any) -> int:
    return round(when.timestamp() * 1000)


def check(store: Path, rows: list[Row]) -> None:
    """Compare all rows, and those that each way of reading gives."""
    assert read(store) == rows
    assert read(store, topic="Other") == [row for row in rows if row[0] == "Other"]
    assert read(store, tags="paid") == [row for row in rows if row[10] == "paid"]
    keyed = [row for row in rows if "two-3" in dict(row[12]).get("KEYS", "").split()]
    assert keyed
    assert read(store, keys="two-3") == keyed
    unique = dict(rows[0][12])["UNIQ_KEY"]
    same = [row for row in rows if dict(row[12]).get("UNIQ_KEY") == unique]
    assert read(store, uniqKey=unique) == same
    middle = sorted(row[8] for row in rows)[len(rows) // 2]
    assert read(store, startingTimestamp=str(middle)) == [row for row in rows if row[8] >= middle]


def test_rows_of_a_log_are_what_clients_of_its_broker_get(reader: Peer, tmp_path: Path) -> None:
    maker: Maker = "apache"
    with Cluster(tmp_path / "cluster", maker, settings=SETTINGS) as cluster:
        write(reader, cluster, "one")
        write(reader, cluster, "two")
        delete_segments(cluster, 2)
        rows = asyncio.run(asyncio.wait_for(pulled_when_settled(cluster.namesrv), 120))
        assert {row[0] for row in rows} == set(TOPICS)
        assert rows[0][3] > 0
        check(cluster.store, rows)

        events = named(reader.run("pull", namesrv=cluster.namesrv, topic="Orders"), "message")
        java = sorted(
            (e["queueId"], e["queueOffset"], e["offsetMsgId"], e["bodyCrc"]) for e in events
        )
        orders = [row for row in rows if row[0] == "Orders"]
        assert java == sorted((row[1], row[2], row[4], zlib.crc32(row[11])) for row in orders)

        copies = [tmp_path / f"copy-{at}" for at in range(4)]
        for copy in copies:
            traffic = asyncio.run(under_traffic(cluster, copy))
        everything = asyncio.run(pulled(cluster.namesrv, ("Traffic",)))
        assert traffic
        for copy in copies:
            check(copy, rows)
            check_prefix(read(copy, topic="Traffic"), everything)

        cluster.kill_broker()
        check(cluster.store, rows)
        assert read(cluster.store, topic="Traffic") == everything


async def under_traffic(cluster: Cluster, copy: Path) -> int:
    """Copy a store while messages are sent; returns how many."""
    process = None
    sent = 0
    async with Producer("traffic", name_servers=cluster.namesrv) as producer:
        for round_ in range(60):
            some = [Message("Traffic", b"%d" % round_ + b"." * 900) for _ in range(20)]
            await asyncio.gather(*map(producer.send, some))
            sent += len(some)
            if round_ == 10:
                process = await asyncio.create_subprocess_exec("cp", "-r", cluster.store, copy)
            if process is not None and process.returncode is not None:
                break
        assert process is not None
        assert await process.wait() == 0
    return sent


def check_prefix(rows: list[Row], everything: list[Row]) -> None:
    for queue_id in {row[1] for row in everything}:
        found = [row for row in rows if row[1] == queue_id]
        assert found == [row for row in everything if row[1] == queue_id][: len(found)]
    assert rows
