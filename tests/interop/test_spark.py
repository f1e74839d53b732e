"""Spark with Apache's broker, whatever the target is: reading, writing, and every row once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from interop import faulty
from interop.servers import SMALL_STORE, Cluster
from interop.topics import KEYS, fill, judged, make_topic, read
from rocketpost.spark.session import make_session

pytestmark = [pytest.mark.interop, pytest.mark.long]

FAULTS = ("task-0", "worker-1", "before-1", "end-2", "after-2", "task-3", "worker-3", "after-4")
OPTIONS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
}


@pytest.fixture(scope="module")
def apache(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("apache")
    with Cluster(directory, "apache", settings=SMALL_STORE) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    more = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    session = make_session("interop", master="local[2,4]", options=OPTIONS | more)
    session.sparkContext.setLogLevel("OFF")
    cloudpickle.register_pickle_by_value(faulty)
    session.dataSource.register(faulty.FaultySource)
    yield session
    session.stop()


def test_a_topic_of_apaches_broker_is_a_table_and_a_stream(
    apache: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    fill(apache, "Table", 500)
    options = {"nameServer": apache.namesrv, "topic": "Table"}
    table = spark.read.format("rocketmq").options(**options).load()
    rows = table.selectExpr("int(string(body)) AS n", "tags", "properties").collect()
    assert sorted(row.n for row in rows) == list(range(500))
    assert {row.tags for row in rows} == {"T"}
    assert all(row.properties["__SHARDINGKEY"] == f"k{row.n % KEYS}" for row in rows)
    stream = spark.readStream.format("rocketmq").options(**options)
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 150)
    query = (
        stream.load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert len(query.recentProgress) > 3
    archived = spark.read.parquet(str(tmp_path / "out"))
    assert archived.drop("properties").exceptAll(table.drop("properties")).isEmpty()
    assert archived.count() == 500


def copy(spark: SparkSession, apache: Cluster, folder: Path, target: str, delivery: str) -> int:
    """Copy a topic through all planned faults; returns how often the query had to be started."""
    failure: PySparkException | None = None
    for starts in range(1, 20):
        source = (
            spark.readStream.format("rocketmq")
            .option("nameServer", apache.namesrv)
            .option("topic", f"From-{delivery}")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 600)
            .load()
        )
        query = (
            source.selectExpr("body", "properties['__SHARDINGKEY'] AS shardingKey")
            .writeStream.format(faulty.FORMAT)
            .option("nameServer", apache.namesrv)
            .option("topic", target)
            .option("delivery", delivery)
            .option("faults", str(folder / "faults"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
            return starts
        except PySparkException as error:
            failure = error  # a planned one, or Spark's own on a machine with too much to do
    raise AssertionError("the query never ends well") from failure


@pytest.mark.parametrize(
    ("delivery", "is_once"), [("atLeastOnce", False), ("effectivelyOnce", True)]
)
def test_every_row_is_stored_once_through_planned_faults(
    apache: Cluster, spark: SparkSession, tmp_path: Path, delivery: str, is_once: bool
) -> None:
    count = 3600
    fill(apache, f"From-{delivery}", count)
    make_topic(apache, delivery)
    (tmp_path / "faults").mkdir()
    for name in FAULTS:
        (tmp_path / "faults" / name).touch()
    starts = copy(spark, apache, tmp_path, delivery, delivery)
    assert starts >= 1 + sum(name.startswith(("before", "after")) for name in FAULTS)
    assert not list((tmp_path / "faults").iterdir())  # every fault has happened
    origin = read(apache, f"From-{delivery}")
    missing, repeated, disordered = judged(read(apache, delivery), origin)
    print(f"{delivery}: {missing=} {repeated=} {disordered=} {starts=}")
    assert missing == 0
    if is_once:
        assert (repeated, disordered) == (0, 0)
    else:
        assert repeated > 500  # the test can tell


def test_exactly_once_is_refused_with_a_word_about_what_works(
    apache: Cluster, spark: SparkSession
) -> None:
    make_topic(apache, "Refused")
    frame = spark.range(10).selectExpr("CAST(id AS string) AS body")
    writer = frame.write.format("rocketmq").mode("append").option("topic", "Refused")
    writer = writer.option("nameServer", apache.namesrv).option("sinkId", "refused")
    with pytest.raises(PySparkException, match="use delivery=effectivelyOnce"):
        writer.option("delivery", "exactlyOnce").save()
    for _ in range(2):
        writer.option("delivery", "effectivelyOnce").save()
    found = [number for numbers in read(apache, "Refused").values() for number in numbers]
    assert sorted(found) == list(range(10))
