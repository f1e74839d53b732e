"""Stream jobs: the examples do what they say, and nothing is sent twice when a batch runs again."""

from __future__ import annotations

import contextlib
import json
import runpy
import shutil
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from rocketpost.errors import ConfigError
from rocketpost.spark.jobs import ONCE, decoded, in_order, stream, to_topic

from .conftest import Topics

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[3] / "examples"
Job = Callable[..., StreamingQuery]


def example(name: str) -> Job:
    job: Job = runpy.run_path(str(EXAMPLES / name))["job"]
    return job


def send(topics: Topics, topic: str, *values: dict[str, Any], keys: str | None = None) -> None:
    more = {} if keys is None else {"keys": keys}
    topics.send(topic, [json.dumps(value).encode() for value in values], **more)


@contextlib.contextmanager
def settings(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key) for key in values}
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


def at(minute: int, second: int = 0) -> str:
    return f"2026-11-16T12:{minute:02d}:{second:02d}Z"


def run(topics: Topics, job: Job, checkpoint: Path) -> None:
    job(topics.spark, topics.cluster.addresses, str(checkpoint), ONCE).awaitTermination()


def bodies(topics: Topics, topic: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in topics.bodies(topics.read(topic))]


@pytest.mark.long
def test_orders_are_counted_by_the_minute(topics: Topics, tmp_path: Path) -> None:
    topics.send("OrderCounts", [b'{"first": 1}'])  # the topic is there
    send(
        topics,
        "Orders",
        {"at": at(0), "id": "1", "customer": "ann", "amount": 2},
        {"at": at(0, 59), "id": "2", "customer": "ann", "amount": 3},
        {"at": at(0, 30), "id": "3", "customer": "bob", "amount": 5},
        {"at": at(3), "id": "4", "customer": "ann", "amount": 1},  # its minute is not over
    )
    run(topics, example("spark_windows.py"), tmp_path)
    counts = [row for row in bodies(topics, "OrderCounts") if "customer" in row]
    told = sorted((row["customer"], row["orders"], row["amount"]) for row in counts)
    assert told == [("ann", 2, 5.0), ("bob", 1, 5.0)]


def test_json_is_read_and_avro_is_written(topics: Topics, tmp_path: Path) -> None:
    topics.send("OrderTotals", [b"\2x\0\0"])  # the topic is there
    minutes = [0, 0, 9]  # the last one is not over
    send(topics, "Orders", *({"at": at(n), "customer": "tot", "amount": "1.25"} for n in minutes))
    run(topics, example("spark_formats.py"), tmp_path)
    schema = runpy.run_path(str(EXAMPLES / "spark_formats.py"))["TOTAL"]
    found = topics.read("OrderTotals", bodyFormat="avro", bodySchema=schema)
    rows = found.where("body.customer = 'tot'").select("body.*").collect()
    assert [(str(row.minute), row.total) for row in rows] == [
        ("2026-11-16 12:00:00", Decimal("2.50"))
    ]


@pytest.mark.long
def test_orders_are_joined_with_their_payments(topics: Topics, tmp_path: Path) -> None:
    topics.send("PaidOrders", [b'{"first": 1}'])
    send(topics, "Orders", *({"at": at(1), "id": f"p{each}", "amount": each} for each in range(3)))
    payments = [("p1", at(3)), ("p2", at(20)), ("nobody's", at(3))]
    send(topics, "Payments", *({"at": time, "order": order} for order, time in payments))
    run(topics, example("spark_join.py"), tmp_path)
    paid = [row for row in bodies(topics, "PaidOrders") if "id" in row]
    assert [(row["id"], row["amount"]) for row in paid] == [("p1", 1.0)]


def test_repeated_events_are_forwarded_once(topics: Topics, tmp_path: Path) -> None:
    topics.send("EventsOnce", [b"0"])
    for key in ("a", "b", "a"):
        send(topics, "Events", {"key": key}, keys=key)
    job = example("spark_deduplicate.py")
    run(topics, job, tmp_path)
    send(topics, "Events", {"key": "b"}, {"key": "b"}, keys="b")
    send(topics, "Events", {"key": "c"}, keys="c")
    run(topics, job, tmp_path)
    rows = topics.read("EventsOnce").filter("keys != ''").select("keys").collect()
    assert sorted(row["keys"] for row in rows) == ["a", "b", "c"]


@pytest.mark.long
def test_readings_of_a_device_are_forwarded_once_and_gaps_are_reported(
    topics: Topics, tmp_path: Path
) -> None:

    def readings(device: str, *numbers: int) -> None:
        values = [{"device": device, "number": number, "value": 1.0} for number in numbers]
        send(topics, "Readings", *values)

    topics.send("ReadingsOnce", [b'{"first": 1}'])
    topics.send("Readings", [b"no JSON"])
    readings("a", 1, 2, 2, 5)
    readings("b", 7)
    job = example("spark_stateful.py")
    with settings(topics.spark, runpy.run_path(str(EXAMPLES / "spark_stateful.py"))["SETTINGS"]):
        run(topics, job, tmp_path)
        readings("a", 5, 6, 9)  # 5 was there in the batch before
        run(topics, job, tmp_path)
    passed = [row for row in bodies(topics, "ReadingsOnce") if "device" in row]
    told = sorted((row["device"], row["number"], row["lost"]) for row in passed)
    assert told == [("a", 1, 0), ("a", 2, 0), ("a", 5, 2), ("a", 6, 0), ("a", 9, 2), ("b", 7, 0)]


def test_orders_become_a_table(topics: Topics, tmp_path: Path) -> None:
    job = example("spark_table.py")
    for name in ("t1", "t2"):
        send(topics, "Orders", {"at": at(9), "id": name, "customer": "table"})
        query = job(
            topics.spark,
            topics.cluster.addresses,
            str(tmp_path / "checkpoint"),
            ONCE,
            str(tmp_path / "table"),
        )
        query.awaitTermination()
    rows = topics.spark.read.parquet(str(tmp_path / "table")).filter("customer = 'table'")
    assert sorted((row.id, str(row.day)) for row in rows.collect()) == [
        ("t1", "2026-11-16"),
        ("t2", "2026-11-16"),
    ]


def test_a_batch_that_runs_again_in_another_order_stores_nothing_twice(
    topics: Topics, tmp_path: Path
) -> None:
    topics.send("Shuffled", [b"%d" % number for number in range(200)])
    topics.send("Sorted", [b"first"])

    def start(seed: int) -> None:
        frame = stream(topics.spark, topics.cluster.addresses, "Shuffled")
        # Another number of tasks and another order, as after a shuffle that went otherwise.
        rows = frame.repartition(1 + seed, f.rand(seed)).select("body", "properties")
        rows = rows.withColumn(
            "properties", f.map_filter("properties", lambda name, _: name == "x")
        )
        query = to_topic(
            rows,
            name_servers=topics.cluster.addresses,
            topic="Sorted",
            checkpoint=str(tmp_path / "checkpoint"),
            every=ONCE,
        )
        query.awaitTermination()

    start(1)
    # As if the driver had died before it could say that the batch is done.
    shutil.rmtree(tmp_path / "checkpoint/commits")
    start(2)
    assert topics.read("Sorted").count() == 201
    topics.send("Shuffled", [b"%d" % number for number in range(200, 250)])
    start(3)
    assert topics.read("Sorted").count() == 251


def test_the_order_of_a_batch_follows_from_its_rows_alone(spark: SparkSession) -> None:
    frame = spark.range(300).selectExpr(
        "CAST(id AS STRING) AS body",
        "CAST(id % 7 AS STRING) AS shardingKey",
        "map('a', CAST(id AS STRING), 'b', 'x') AS properties",
        "-id AS at",
    )
    names = ["body", "shardingKey", "properties"]
    seen = []
    for seed in (1, 2):
        shuffled = frame.repartition(1 + seed, f.rand(seed))
        rows = in_order(shuffled, names, order_by=("at",), tasks=3)
        parts = rows.withColumn("part", f.spark_partition_id()).collect()
        seen.append([(row.part, row.shardingKey, int(row.body)) for row in parts])
    assert seen[0] == seen[1]
    assert len({(part, key) for part, key, _ in seen[0]}) == 7  # a key is in one task
    for key in "0123456":
        numbers = [number for _, other, number in seen[0] if other == key]
        assert numbers == sorted(numbers, reverse=True)


def test_bodies_with_maps_are_sorted_too(spark: SparkSession) -> None:
    body = "array(struct(map(CAST(id % 5 AS STRING), map('z', id)) AS m, 'x' AS n)) AS `a.b`"
    frame = spark.range(100).selectExpr(body)
    seen = []
    for seed in (1, 2):
        rows = in_order(frame.repartition(1 + seed, f.rand(seed)), ["a.b"], tasks=2)
        seen.append([tuple(row) for row in rows.collect()])
    assert seen[0] == seen[1]
    assert len(seen[0]) == 100


def test_a_struct_that_is_null_is_not_one_of_nulls(spark: SparkSession) -> None:
    null = "CAST(NULL AS map<string,int>)"
    body = f"CASE WHEN id % 2 = 0 THEN struct({null} AS m) END AS body"
    seen = []
    for descending in (True, False):
        frame = spark.range(20).orderBy("id", ascending=descending).coalesce(1).selectExpr(body)
        seen.append(
            [row.body for row in in_order(frame.repartition(1), ["body"], tasks=1).collect()]
        )
    assert seen[0] == seen[1] == [None] * 10 + [(None,)] * 10


def test_bodies_are_decoded_by_their_schema(topics: Topics) -> None:
    topics.send("Json", [b'{"a": 1, "b": "x"}', b"nonsense"], tags="T")
    frame = decoded(topics.read("Json"), "a int, b string, _corrupt_record string")
    assert "body" not in frame.columns
    rows = {(row.a, row.b, row._corrupt_record, row.tags) for row in frame.collect()}
    assert rows == {(1, "x", None, "T"), (None, None, "nonsense", "T")}


def test_invalid_options_are_refused_before_anything_runs(topics: Topics, tmp_path: Path) -> None:
    topics.send("Refused", [b"x"])
    address = topics.cluster.addresses
    stream(topics.spark, address, "Refused", startingTimestamp=5)  # and not from the first one
    frame = stream(topics.spark, address, "Refused")
    with pytest.raises(ConfigError, match="cannot use the column bodyCrc"):
        to_topic(frame, name_servers=address, topic="Out", checkpoint=str(tmp_path))
    rows = frame.select("body")
    with pytest.raises(ConfigError, match="topic is required"):
        to_topic(rows, name_servers=address, checkpoint=str(tmp_path))
    with pytest.raises(ConfigError, match="checkpoint is required"):
        to_topic(rows, name_servers=address, topic="Out", checkpoint="")
    with pytest.raises(ConfigError, match="did you mean maxOffsetsPerTrigger"):
        stream(topics.spark, address, "Refused", maxOffsetPerTrigger=3)
