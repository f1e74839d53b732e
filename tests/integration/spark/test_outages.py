"""Queries outlive restarts of brokers; what was wrong from the start fails at once.

Drivers and tasks use ``BrokerSession``, ``StreamReader`` and ``Sending``, which need no Spark here.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

from rocketpost.client import Message, Producer
from rocketpost.client.admin import AdminClient
from rocketpost.client.producer.numbering import BLOCK
from rocketpost.errors import ClientError, RouteNotFound
from rocketpost.spark.bodies.shape import Shape
from rocketpost.spark.broker_session import BrokerSession
from rocketpost.spark.options import SourceOptions, parse_options
from rocketpost.spark.records.columns import all_columns
from rocketpost.spark.sink.known_brokers import FILE, update_known_brokers_blocking
from rocketpost.spark.sink.options import SinkOptions
from rocketpost.spark.sink.sender import Sender
from rocketpost.spark.source.batches import decode_batches
from rocketpost.spark.source.plan import QueueKey, Range, checkpoint_offsets
from rocketpost.spark.source.reader import StreamReader
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.link import BrokerLink

pytestmark = pytest.mark.slow

FOREVER = 600_000
DOWN_SECONDS = 0.7
COLUMNS = all_columns("map")


def stream_reader(settings: SourceOptions) -> StreamReader:
    return StreamReader(settings, Shape(StructType([StructField("body", BinaryType())]), settings))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("pair"), brokers=2) as cluster:
        yield cluster


async def prepare(cluster: Cluster, topic: str, messages: int = 40) -> None:
    for address in cluster.broker_addresses:
        broker_session = await BrokerLink.connect(address)
        await broker_session.create_topic(topic, 2)
        broker_session.close()
    async with Producer("loader", name_servers=cluster.addresses) as producer:
        for number in range(messages):
            await producer.send(Message(topic, b"%d" % number))


def options(cluster: Cluster, topic: str, **more: int) -> SourceOptions:
    return SourceOptions(
        name_servers=cluster.addresses, topic=topic, starting_offsets="earliest", **more
    )


@contextlib.contextmanager
def away(cluster: Cluster, *numbers: int) -> Iterator[None]:
    """Have brokers killed; they come back while the body runs."""
    brokers = [cluster.brokers[number] for number in numbers]
    for broker in brokers:
        broker.kill()

    def come_back() -> None:
        time.sleep(DOWN_SECONDS)
        for broker in brokers:
            broker.start()

    thread = threading.Thread(target=come_back)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def pulled(broker_session: BrokerSession, wanted: Range) -> int:
    return sum(
        batch.num_rows
        for batch in decode_batches(
            broker_session.pull(wanted), wanted, COLUMNS, tags=frozenset(), decompressed=True
        )
    )


def test_an_unknown_topic_fails_at_the_start(pair: Cluster) -> None:
    with (
        BrokerSession(options(pair, "Typo", outage_ms=FOREVER)) as broker_session,
        pytest.raises(RouteNotFound, match="Typo"),
    ):
        broker_session.queues()


async def test_a_query_may_start_while_brokers_do(pair: Cluster) -> None:
    await prepare(pair, "Early")
    reader = stream_reader(options(pair, "Early", outage_ms=FOREVER))
    with away(pair, 0, 1):
        start = await asyncio.to_thread(reader.initialOffset)
    assert len(checkpoint_offsets(start)) >= 2  # those of the broker that came first, or of both


@pytest.mark.long
@pytest.mark.parametrize("numbers", [(0, 1), (1,)])
async def test_every_call_of_a_query_waits_for_brokers(
    pair: Cluster, numbers: tuple[int, ...]
) -> None:
    topic = f"Waiting{len(numbers)}"
    await prepare(pair, topic)
    reader = stream_reader(options(pair, topic, outage_ms=FOREVER))
    start = reader.initialOffset()
    with away(pair, *numbers):
        end = await asyncio.to_thread(reader.latestOffset, start, ReadAllAvailable())
    assert sum(checkpoint_offsets(end).values()) == 40
    with away(pair, *numbers):
        tasks = await asyncio.to_thread(reader.partitions, start, end)
    ranges = [each for task in tasks for each in task.ranges]  # type: ignore[attr-defined]
    assert len(ranges) == 4
    with BrokerSession(reader.options) as broker_session:
        with away(pair, *numbers):
            rows = [await asyncio.to_thread(pulled, broker_session, wanted) for wanted in ranges]
        assert sum(rows) == 40
        with away(pair, *numbers):
            await asyncio.to_thread(broker_session.bounds, [each.queue for each in ranges])
    with away(pair, *numbers):
        assert await asyncio.to_thread(reader.reportLatestOffset) is not None


async def test_available_now_includes_a_broker_that_was_away(pair: Cluster) -> None:
    await prepare(pair, "Now")
    reader = stream_reader(options(pair, "Now", outage_ms=FOREVER))
    start = reader.initialOffset()
    again = stream_reader(reader.options)
    with away(pair, 1):
        await asyncio.to_thread(again.prepareForTriggerAvailableNow)
        end = await asyncio.to_thread(again.latestOffset, start, ReadAllAvailable())
    assert sum(checkpoint_offsets(end).values()) == 40


@pytest.mark.parametrize("is_loss", [True, False])
async def test_a_topic_that_does_not_come_back_is_a_loss(pair: Cluster, is_loss: bool) -> None:
    gone, kept = f"Gone{is_loss}", f"Kept{is_loss}"
    for topic in (gone, kept):
        await prepare(pair, topic)
    settings = options(
        pair, f"{gone},{kept}", outage_ms=300, fail_on_data_loss=is_loss, metadata_ttl_ms=0
    )
    reader = stream_reader(settings)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    async with AdminClient(name_servers=pair.addresses) as admin:
        await admin.topics.delete(gone, pair.broker_addresses)
    await asyncio.to_thread(_until_unknown, settings, gone)
    if is_loss:
        with pytest.raises(ClientError, match=rf"{gone}.*failOnDataLoss=false"):
            reader.latestOffset(end, ReadAllAvailable())
        with pytest.raises(ClientError, match=rf"{gone}.*failOnDataLoss=false"):
            reader.partitions(start, end)
        return
    for _ in range(2):
        assert reader.latestOffset(end, ReadAllAvailable()) == end
    tasks = reader.partitions(start, end)
    topics = {each.queue.topic for task in tasks for each in task.ranges}  # type: ignore[attr-defined]
    assert topics == {kept}


def _until_unknown(settings: SourceOptions, topic: str) -> None:
    """Return when no name server knows a topic any more."""
    brief = SourceOptions(name_servers=settings.name_servers, topic=topic, retries=0)
    with BrokerSession(brief) as broker_session, contextlib.suppress(RouteNotFound):
        while broker_session.queues():
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("delivery", "keyed"),
    [
        ("exactlyOnce", True),
        pytest.param("exactlyOnce", False, marks=pytest.mark.long),
        pytest.param("atLeastOnce", True, marks=pytest.mark.long),
        pytest.param("atLeastOnce", False, marks=pytest.mark.long),
    ],
)
async def test_a_sink_task_survives_a_broker_restart(
    pair: Cluster, tmp_path: Path, delivery: str, keyed: bool
) -> None:
    topic = f"Sunk{delivery}{keyed}"
    await prepare(pair, topic, messages=0)
    sink = parse_options(
        SinkOptions,
        {
            "nameServer": pair.addresses,
            "topic": topic,
            "delivery": delivery,
            "sinkId": topic,
            "sendTimeoutMs": str(FOREVER),
        },
    )
    sending = Sender(sink, partition=0, batch_id=1)
    with away(pair, 0, 1):  # before the first
        await sending.send(rows(0, 50, keyed=keyed))
    await sending.finish()
    with away(pair, 0, 1):  # and in the middle
        await sending.send(rows(50, 100, keyed=keyed))
        await sending.finish()
    await sending.close()
    found = await stored(pair, topic)
    assert {number for numbers in found.values() for number in numbers} == set(range(100))
    if delivery == "exactlyOnce":
        assert sum(map(len, found.values())) == 100
    if keyed and delivery == "exactlyOnce":
        assert list(found.values()) == [list(range(100))]


async def test_rows_held_by_a_broker_that_is_down_are_not_stored_elsewhere(
    pair: Cluster, tmp_path: Path
) -> None:
    await prepare(pair, "Held", messages=0)
    sink = SinkOptions(
        name_servers=pair.addresses,
        topic="Held",
        delivery="exactlyOnce",
        checkpoint=str(tmp_path),
        send_timeout_ms=FOREVER,
    )
    count = 2 * BLOCK
    brokers = await asyncio.to_thread(update_known_brokers_blocking, sink)
    assert brokers == {"broker-0", "broker-1"}
    first = Sender(sink, partition=0, batch_id=3, brokers=brokers)
    await first.send(rows(0, count, keyed=False))
    await first.finish()
    await first.close()
    assert len({queue.broker for queue in await stored(pair, "Held")}) == 2
    with away(pair, 1):  # another driver runs the batch again meanwhile
        brokers = await asyncio.to_thread(update_known_brokers_blocking, sink)
        second = Sender(sink, partition=0, batch_id=3, brokers=brokers)
        await second.send(rows(0, count, keyed=False))
        await second.finish()
        await second.close()
    found = await stored(pair, "Held")
    assert sorted(number for numbers in found.values() for number in numbers) == [*range(count)]


async def test_a_broker_that_does_not_come_back_stops_the_sink(
    pair: Cluster, tmp_path: Path
) -> None:
    await prepare(pair, "Stopped", messages=0)
    sink = SinkOptions(
        name_servers=pair.addresses,
        topic="Stopped",
        delivery="exactlyOnce",
        checkpoint=str(tmp_path),
        send_timeout_ms=300,
    )
    (tmp_path / FILE).write_text('["broker-0", "broker-9"]')
    brokers = await asyncio.to_thread(update_known_brokers_blocking, sink)
    assert brokers == {"broker-0", "broker-1", "broker-9"}
    sending = Sender(sink, partition=0, batch_id=1, brokers=brokers)
    with pytest.raises(ClientError, match=f"broker-9 is unavailable.*remove it from .*{FILE}"):
        await sending.send(rows(0, 1, keyed=True))
    await sending.close()
    assert await stored(pair, "Stopped") == {}


async def test_a_sink_without_its_topic_fails_at_the_start(tmp_path: Path) -> None:
    with Cluster(tmp_path, settings={"autoCreateTopicEnable": "false"}) as cluster:
        sink = SinkOptions(name_servers=cluster.addresses, topic="Missing", send_timeout_ms=FOREVER)
        sending = Sender(sink, partition=0, batch_id=0)
        with pytest.raises(RouteNotFound, match="Missing"):
            await sending.send(rows(0, 1, keyed=True))
        await sending.close()


def rows(start: int, end: int, *, keyed: bool) -> pa.RecordBatch:
    columns: dict[str, list[object]] = {"body": [b"%d" % n for n in range(start, end)]}
    if keyed:
        columns["shardingKey"] = ["k"] * (end - start)
    return pa.RecordBatch.from_pydict(columns)


async def stored(cluster: Cluster, topic: str) -> dict[QueueKey, list[int]]:
    found: dict[QueueKey, list[int]] = {}
    for index, address in enumerate(cluster.broker_addresses):
        broker_session = await BrokerLink.connect(address)
        for queue_id in range(2):
            end = await broker_session.max_offset(topic, queue_id)
            records = await broker_session.read(topic, queue_id, 0, end)
            if records:
                queue = QueueKey(topic, f"broker-{index}", queue_id)
                found[queue] = [int(record.body) for record in records]
        broker_session.close()
    return found
