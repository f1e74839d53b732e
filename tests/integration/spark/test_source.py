"""Topics as tables and streams, by a real Spark against real servers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from rocketpost.admin.main import mqadmin
from rocketpost.client import PullConsumer

from .conftest import Topics

pytestmark = pytest.mark.slow


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%05d" % number for number in range(start, start + count)]


def texts(bodies: list[bytes]) -> list[str]:
    return [body.decode() for body in bodies]


def test_a_batch_has_the_rows_that_a_consumer_gets(topics: Topics) -> None:
    topics.send("Rows", numbered(500), tags="A", keys="k1 k2", properties={"a": "b"})

    async def consumed() -> list[tuple[object, ...]]:
        rows = []
        async with PullConsumer("plain", name_servers=topics.cluster.addresses) as consumer:
            for queue in await consumer.queues("Rows"):
                offset = await consumer.min_offset(queue)
                end = await consumer.max_offset(queue)
                while offset < end:
                    pulled = await consumer.pull(queue, offset)
                    offset = pulled.next_offset
                    rows += [
                        (
                            message.topic,
                            queue.broker_name,
                            queue.queue_id,
                            message.queue_offset,
                            message.offset_id,
                            message.message_id,
                            " ".join(message.keys),
                            message.tags,
                            message.born_ms,
                            message.store_ms,
                            message.body,
                            message.properties["a"],
                        )
                        for message in pulled.messages
                    ]
        return sorted(rows)

    found = sorted(
        (
            row.topic,
            row.brokerName,
            row.queueId,
            row.queueOffset,
            row.msgId,
            row.uniqKey,
            row.keys,
            row.tags,
            row.born,
            row.stored,
            bytes(row.body),
            row.properties["a"],
        )
        for row in topics.read("Rows")
        .selectExpr(
            "*", "unix_millis(bornTimestamp) AS born", "unix_millis(storeTimestamp) AS stored"
        )
        .collect()
    )
    assert len(found) == 500
    assert found == asyncio.run(consumed())


def test_a_user_schema_is_a_projection(topics: Topics) -> None:
    topics.send("Projected", numbered(10))
    reader = topics.spark.read.format("rocketmq").schema("queueOffset bigint, topic string")
    frame = reader.options(nameServer=topics.cluster.addresses, topic="Projected").load()
    assert frame.columns == ["queueOffset", "topic"]
    assert {row.topic for row in frame.collect()} == {"Projected"}
    assert topics.read("Projected").count() == 10


def test_spark_knows_which_columns_are_never_null(topics: Topics, tmp_path: Path) -> None:
    topics.send("Filled", numbered(10))
    for frame in (topics.read("Filled"), topics.stream("Filled", startingOffsets="earliest")):
        nullable = [field.name for field in frame.schema if field.nullable]
        assert nullable == ["brokerName", "uniqKey", "keys", "tags"]
    assert sum(topics.drain(frame, tmp_path)) == 10
    rows = topics.read("Filled").collect()
    again = topics.spark.createDataFrame(rows, topics.read("Filled").schema)
    assert sorted(again.collect(), key=str) == sorted(rows, key=str)
    assert {(row.keys, row.tags) for row in rows} == {(None, None)}


def test_a_user_schema_may_declare_columns_not_null(topics: Topics, tmp_path: Path) -> None:
    topics.send("Promised", numbered(10))
    words = "queueOffset bigint NOT NULL, keys string, body binary"
    options = {"nameServer": topics.cluster.addresses, "topic": "Promised"}
    frame = topics.spark.read.format("rocketmq").schema(words).options(**options).load()
    assert [field.nullable for field in frame.schema] == [False, True, True]
    assert topics.bodies(frame) == texts(numbered(10))
    stream = topics.spark.readStream.format("rocketmq").schema(words).options(**options)
    assert sum(topics.drain(stream.option("startingOffsets", "earliest").load(), tmp_path)) == 10
    reader = topics.spark.read.format("rocketmq").schema("keys string NOT NULL").options(**options)
    with pytest.raises(PySparkException, match="keys may be null; remove NOT NULL"):
        reader.load().collect()


@pytest.mark.long
def test_a_stream_continues_when_columns_become_not_null(topics: Topics, tmp_path: Path) -> None:
    def counted(words: str) -> int:
        """Return how many messages of the only topic the state has counted so far."""
        stream = topics.spark.readStream.format("rocketmq").schema(words).options(**options)
        counts: list[int] = []
        query = (
            stream.load()
            .groupBy("topic")
            .count()
            .writeStream.outputMode("update")
            .option("checkpointLocation", str(tmp_path))
            .foreachBatch(lambda rows, _: counts.extend(row["count"] for row in rows.collect()))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return counts[-1]

    options = {
        "nameServer": topics.cluster.addresses,
        "topic": "Learned",
        "startingOffsets": "earliest",
    }
    said = []
    for words in ("topic string", "topic string NOT NULL", "topic string"):
        topics.send("Learned", numbered(10))
        said.append(counted(words))
    assert said == [10, 20, 30]


def test_tags_are_filtered_by_the_broker_and_exactly(topics: Topics) -> None:
    topics.send("Tagged", numbered(20), tags="Aa")  # has the hash of BB
    topics.send("Tagged", numbered(20, 20), tags="BB")
    found = topics.bodies(topics.read("Tagged", subExpression="BB"))
    assert found == texts(numbered(20, 20))


@pytest.mark.parametrize(
    "sought",
    [
        {"subExpression": "rare"},
        {"subExpression": "TAGS = 'rare'", "subExpressionType": "SQL92"},
    ],
)
def test_sparse_matches_of_a_filter_are_read_once(topics: Topics, sought: dict[str, str]) -> None:
    topic = f"Sparse{len(sought)}"
    for begin in range(0, 2000, 100):
        topics.send(topic, numbered(95, begin), tags="common")
        topics.send(topic, numbered(5, begin + 95), tags="rare")
    found = topics.bodies(topics.read(topic, pullBatchSize=8, **sought))
    rare = [body for begin in range(0, 2000, 100) for body in numbered(5, begin + 95)]
    assert found == texts(rare)


def test_a_range_between_offsets_is_read_again_exactly(topics: Topics) -> None:
    topics.send("Ranged", numbered(400))
    start = {"Ranged": {"broker-0": {str(queue): 10 + queue for queue in range(4)}}}
    end = {"Ranged": {"broker-0": {str(queue): 40 for queue in range(4)}}}
    frame = topics.read(
        "Ranged", startingOffsets=json.dumps(start), endingOffsets=json.dumps(end), minPartitions=9
    )
    rows = [(row.queueId, row.queueOffset) for row in frame.collect()]
    assert sorted(rows) == [(q, o) for q in range(4) for o in range(10 + q, 40)]
    assert frame.rdd.getNumPartitions() >= 9


def test_a_stream_continues_where_it_stopped(topics: Topics, tmp_path: Path) -> None:
    topics.send("Streamed", numbered(300))
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 100}
    batches = topics.drain(topics.stream("Streamed", **options), tmp_path)
    assert sum(batches) == 300
    assert len([count for count in batches if count]) == 3
    topics.send("Streamed", numbered(50, 300))
    assert sum(topics.drain(topics.stream("Streamed", **options), tmp_path)) == 50
    written = topics.spark.read.parquet(str(tmp_path / "out"))
    assert topics.bodies(written) == texts(numbered(350))


def test_the_lag_of_a_stream_is_seen_by_tools(topics: Topics, tmp_path: Path) -> None:
    def lag() -> tuple[int, int]:
        """Return how far the group is and how much waits for it, by the tool."""
        words = ["consumerProgress", "-g", "watched", "-t", "Watched", "--json"]
        result = CliRunner().invoke(mqadmin, words, env={"NAMESRV_ADDR": topics.cluster.addresses})
        assert result.exit_code == 0, (result.stdout, result.stderr)
        rows = json.loads(result.stdout)["queues"]
        return sum(row["consumerOffset"] for row in rows), sum(row["diff"] for row in rows)

    topics.send("Watched", numbered(120))
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 50, "group": "watched"}
    source = topics.stream("Watched", commitOffsetsToBroker=True, **options)
    topics.drain(source, tmp_path)
    assert lag() == (120, 0)  # of the last batch too
    topics.send("Watched", numbered(7))
    assert lag() == (120, 7)
    # Another query goes on where the group stands.
    group = topics.read("Watched", startingOffsets="group", group="watched")
    assert group.count() == 7


def test_a_batch_waits_for_enough_messages(topics: Topics, tmp_path: Path) -> None:
    topics.send("Few", numbered(10))
    counts: list[int] = []
    source = topics.stream("Few", startingOffsets="earliest", minOffsetsPerTrigger=30)
    writer = source.writeStream.foreachBatch(lambda frame, _: counts.append(frame.count()))
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        topics.send("Few", numbered(20))
        query.processAllAvailable()
        assert sum(counts) == 10
        topics.send("Few", numbered(10))
        query.processAllAvailable()
        assert [count for count in counts if count] == [10, 30]
    finally:
        query.stop()


@pytest.mark.long
def test_batch_0_is_not_lost_when_it_fails_and_latest_moves_on(
    topics: Topics, tmp_path: Path
) -> None:
    topics.send("First", numbered(5))

    def run(checkpoint: Path, *, fail: bool) -> set[tuple[int, int]]:
        seen: set[tuple[int, int]] = set()

        def take(frame: DataFrame, batch_id: int) -> None:
            if fail:
                raise RuntimeError("the first batch fails")
            seen.update((row.queueId, row.queueOffset) for row in frame.collect())

        writer = topics.stream("First", startingOffsets="latest").writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            query.processAllAvailable()
        except PySparkException:
            assert fail
        finally:
            query.stop()
        return seen

    for attempt in range(9):
        checkpoint = tmp_path / str(attempt)
        with topics.traffic("First"):
            run(checkpoint, fail=True)
        planned = checkpoint / "offsets/0"
        if not planned.exists():
            continue  # nothing came between its beginning and its end
        offset = json.loads(planned.read_text().splitlines()[-1])
        base = offset.get("base", {}).get("First")
        if base and base != offset["queues"]["First"]:
            break
    else:
        pytest.fail("no first batch had messages")
    topics.send("First", numbered(3))
    ends = topics.read("First").groupBy("queueId").max("queueOffset").collect()
    expected = {
        (queue, at) for queue, last in ends for at in range(base["broker-0"][str(queue)], last + 1)
    }
    assert run(checkpoint, fail=False) == expected


def test_lost_messages_stop_a_query_unless_it_may_continue(topics: Topics) -> None:
    topics.send("Lost", numbered(8))
    past = json.dumps({"Lost": {"broker-0": {"0": 90, "1": 0, "2": 0, "3": 0}}})
    end = json.dumps({"Lost": {"broker-0": {"0": 99, "1": -1, "2": -1, "3": -1}}})
    with pytest.raises(PySparkException, match="failOnDataLoss=false"):
        topics.read("Lost", startingOffsets=past, endingOffsets=end).count()
    frame = topics.read("Lost", startingOffsets=past, endingOffsets=end, failOnDataLoss=False)
    assert frame.filter("queueId <> 0").count() == frame.count()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topics": "T"}, "did you mean topic"),
        ({"startingOffsets": "latest"}, "reads nothing in a batch"),
        ({"subExpressionType": "XPATH"}, "one of TAG, SQL92"),
        ({"subExpressionType": "SQL92", "subExpression": "a >< 1"}, "at character 4"),
        ({"nameServer": "localhost"}, "'localhost' is not host:port"),
        ({"nameServer": "127.0.0.1:1"}, "no name server answers: cannot connect to 127.0.0.1:1"),
        ({"commitOffsetsToBroker": "true", "group": "g"}, "is for streams"),
        ({"bodyFormat": "json", "bodySchema": "a wat"}, "at character 3: wat is not a type"),
        (
            {"startingOffsetsByTimestamp": '{"Rows": {"broker-9": {"0": 5}}}'},
            "names queues that do not exist: queue 0 of Rows on broker-9; "
            "existing are queues 0-3 of Rows on broker-0",
        ),
    ],
)
def test_invalid_options_are_named_immediately(
    topics: Topics, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException, match=said) as raised:
        topics.read("Rows", **options).count()
    # On the driver, and without the way through our modules.
    assert "PYTHON_DATA_SOURCE_ERROR" in str(raised.value)
    assert len(str(raised.value).splitlines()) < 8


def test_an_unknown_topic_is_named(topics: Topics) -> None:
    with pytest.raises(PySparkException, match="Nowhere"):
        topics.read("Nowhere").count()
