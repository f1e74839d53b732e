"""Frames and streams to topics: every row once, whoever runs twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from .conftest import Topics

pytestmark = pytest.mark.slow


def rows(topics: Topics, count: int, *, partitions: int = 2) -> DataFrame:
    return topics.spark.range(0, count, 1, partitions).selectExpr("CAST(id AS string) AS body")


def write(topics: Topics, frame: DataFrame, **options: str) -> None:
    writer = frame.write.format("rocketmq").mode("append")
    writer.options(nameServer=topics.cluster.addresses, **options).save()


def numbers(topics: Topics, topic: str) -> list[int]:
    return sorted(int(bytes(row.body)) for row in topics.read(topic).select("body").collect())


def _failing_once(body: str) -> str:
    """Fail in the middle of the first attempt of a task."""
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0 and body == "12500":
        raise RuntimeError("this attempt fails after some of its rows were sent")
    return body


def test_every_column_acts(topics: Topics) -> None:
    frame = topics.spark.range(0, 6, 1, 1).selectExpr(
        "encode(CAST(id AS string), 'UTF-8') AS body",
        "'Routed' AS topic",
        "'T' AS tags",
        "concat('k', id) AS keys",
        "map('n', CAST(id AS string)) AS properties",
        "concat('s', id % 2) AS shardingKey",
        "CAST(id AS int) AS flag",
    )
    write(topics, frame)
    found = topics.read("Routed").orderBy("flag").collect()
    assert [row.keys for row in found] == [f"k{n}" for n in range(6)]
    assert {row.tags for row in found} == {"T"}
    assert [row.properties["n"] for row in found] == [str(n) for n in range(6)]
    by_key: dict[str, list[tuple[int, int, int]]] = {}
    for row in found:
        key = row.properties["__SHARDINGKEY"]
        by_key.setdefault(key, []).append((row.queueId, row.queueOffset, row.flag))
    for places in by_key.values():
        assert len({queue for queue, _, _ in places}) == 1
        assert [flag for _, _, flag in sorted(places)] == sorted(flag for _, _, flag in places)


def test_a_queue_can_be_named(topics: Topics) -> None:
    topics.send("Named", [b"0"])
    frame = rows(topics, 5).selectExpr("body", "'broker-0' AS brokerName", "2 AS queueId")
    write(topics, frame, topic="Named")
    assert topics.read("Named").filter("queueId = 2").count() >= 5


@pytest.mark.parametrize(
    ("delivery", "is_once"),
    [
        ("atLeastOnce", False),
        ("exactlyOnce", True),
        pytest.param("effectivelyOnce", True, marks=pytest.mark.long),
    ],
)
def test_a_task_that_runs_twice(topics: Topics, delivery: str, is_once: bool) -> None:
    topic = f"Twice-{delivery}"
    failing = f.udf(_failing_once, "string", useArrow=False)
    frame = rows(topics, 13_000, partitions=1).select(failing("body").alias("body"))
    write(topics, frame, topic=topic, delivery=delivery, sinkId=f"job-{delivery}")
    found = numbers(topics, topic)
    assert sorted(set(found)) == list(range(13_000))
    # Without numbers the rows before the failure exist twice: the test can tell.
    assert (len(found) == 13_000) is is_once


@pytest.mark.parametrize(
    "delivery", ["exactlyOnce", pytest.param("effectivelyOnce", marks=pytest.mark.long)]
)
def test_a_batch_that_runs_twice_after_the_driver_died(
    topics: Topics, tmp_path: Path, delivery: str
) -> None:
    origin, target = f"From-{delivery}", f"To-{delivery}"
    topics.send(origin, [b"%d" % number for number in range(300)])

    def run() -> None:
        source = topics.stream(origin, startingOffsets="earliest", maxOffsetsPerTrigger=100)
        query = (
            source.selectExpr("body")
            .writeStream.format("rocketmq")
            .option("nameServer", topics.cluster.addresses)
            .option("topic", target)
            .option("delivery", delivery)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    commits = tmp_path / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink(missing_ok=True)  # as if the driver died before it noted that batch
    topics.send(origin, [b"%d" % number for number in range(300, 350)])
    run()
    assert numbers(topics, target) == list(range(350))


def test_rows_with_their_own_numbers_are_stored_once_however_divided(
    topics: Topics,
) -> None:
    frame = topics.spark.range(0, 500).selectExpr(
        "CAST(id AS string) AS body", "concat('job/', id % 2) AS producerId", "id AS sequence"
    )
    for partitions in (1, 3):
        some = frame.repartition(partitions)
        write(topics, some, topic="Numbered", delivery="exactlyOnce")
    assert numbers(topics, "Numbered") == list(range(500))


def test_a_job_that_runs_again_finds_its_rows_in_any_topic_and_queue(topics: Topics) -> None:
    frame = rows(topics, 600).selectExpr("body", "concat('Any-', int(body) % 2) AS topic")
    for partitions in (2, 2):
        some = frame.repartitionByRange(partitions, "body").sortWithinPartitions("body")
        write(topics, some, delivery="effectivelyOnce", sinkId="any job")
    topics.send("Any-0", [b"0"])  # of another producer, and not looked at
    assert numbers(topics, "Any-0") == [0, *range(0, 600, 2)]
    assert numbers(topics, "Any-1") == list(range(1, 600, 2))
    write(topics, frame.limit(3), delivery="effectivelyOnce", sinkId="any job", epoch="1")
    assert topics.read("Any-0").count() + topics.read("Any-1").count() == 604


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("body", {}, "a topic is required"),
        ("body AS bodi", {"topic": "T"}, "cannot use the column bodi"),
        ("CAST(body AS int) AS body", {"topic": "T"}, "must be binary or string"),
        ("body", {"topic": "T", "delivery": "exactlyOnce"}, "needs sinkId"),
        ("body, 1 AS queueId", {"topic": "T"}, "must be given together: they name a queue"),
        ("body", {"topic": "T", "delivery": "maybe"}, "one of atLeastOnce, exactlyOnce"),
        ("body", {"topic": "T", "delivery": "effectivelyOnce"}, "effectivelyOnce needs sinkId"),
        (
            "body, 1 AS delayLevel",
            {"topic": "T", "delivery": "effectivelyOnce", "sinkId": "s"},
            "leave out delayLevel",
        ),
        ("body", {"topic": "T", "accessKey": "me"}, "a secret key is missing"),
        ("CAST(null AS string) AS body", {"topic": "T"}, "its body is null"),
        ("body", {"topic": "T", "maxMessageBytes": "1"}, "at most 1"),
    ],
)
def test_invalid_columns_and_options_are_refused(
    topics: Topics, columns: str, options: dict[str, str], said: str
) -> None:
    frame = rows(topics, 12).selectExpr(*columns.split(", "))
    with pytest.raises(PySparkException, match=said):
        write(topics, frame, **options)


def test_rows_that_are_too_large_can_be_skipped(topics: Topics) -> None:
    write(topics, rows(topics, 12), topic="Small", maxMessageBytes="1", onTooLarge="skip")
    assert numbers(topics, "Small") == list(range(10))


def test_a_topic_cannot_be_overwritten(topics: Topics) -> None:
    writer = rows(topics, 1).write.format("rocketmq").mode("overwrite")
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        writer.options(nameServer=topics.cluster.addresses, topic="T").save()
