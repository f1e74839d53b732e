"""The measures that make reading by Python cheap act in the processes that Spark runs."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.functions import udf
from pyspark.sql.types import LongType, StructField, StructType

from rocketpost.spark import RocketMQSource
from rocketpost.spark.workers.shutdown import DAEMON, worker_daemon
from rocketpost.spark.workers.sockets import ENABLED

from .conftest import Topics

pytestmark = pytest.mark.slow


def watched() -> type[DataSource]:
    """Return a source that reads a topic and shows what its worker keeps meanwhile.

    Made by a function, its classes travel to workers, which cannot import this module.
    """

    class WatchedReader(DataSourceReader):
        def __init__(self, reader: DataSourceReader) -> None:
            self.reader = reader

        def partitions(self) -> Sequence[InputPartition]:
            return self.reader.partitions()

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            batches = [*self.reader.read(partition)]
            batches += self.reader.read(partition)  # what the first time has loaded is kept now
            kept, in_sight = gc.get_freeze_count(), len(gc.get_objects())
            # A thousand more would be kept if it were done again.
            later: list[list[object]] = [[] for _ in range(1000)]
            batches += self.reader.read(partition)
            again = gc.get_freeze_count()
            assert batches
            assert later
            yield pa.RecordBatch.from_pydict(
                {"kept": [kept], "inSight": [in_sight], "again": [again]}
            )

    class WatchedSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "watched"

        def schema(self) -> str:
            return "kept bigint, inSight bigint, again bigint"

        def reader(self, schema: StructType) -> DataSourceReader:
            columns = StructType([StructField("queueOffset", LongType())])
            return WatchedReader(RocketMQSource(self.options).reader(columns))

    return WatchedSource


def test_a_worker_keeps_what_it_has_loaded_once(spark: SparkSession, topics: Topics) -> None:
    topics.send("WatchedHeap", [b"%d" % number for number in range(20)])
    spark.dataSource.register(watched())
    options = {"nameServer": topics.cluster.addresses, "topic": "WatchedHeap"}
    counts = spark.read.format("watched").options(**options).load().collect()
    assert counts
    for row in counts:
        assert row.kept > 10_000
        assert row.inSight < 5000
        assert row.again <= row.kept


def test_arrow_reads_without_repeated_checks(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    assert jvm.org.apache.arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED is False
    assert jvm.org.apache.arrow.vector.NullCheckingForGet.NULL_CHECKING_ENABLED is False


def who_works() -> type[DataSource]:
    """Return a source that shows which processes planned and read it."""

    class Planned(InputPartition):
        def __init__(self) -> None:
            self.is_quiet = hasattr(sys.modules["__main__"].worker, "__wrapped__")  # type: ignore[attr-defined]

    class WhoReader(DataSourceReader):
        def partitions(self) -> Sequence[InputPartition]:
            return [Planned()]

        def read(self, partition: InputPartition) -> Iterator[tuple[bool, str | None]]:
            assert isinstance(partition, Planned)
            yield partition.is_quiet, worker_daemon()

    class WhoSource(RocketMQSource):
        @classmethod
        def name(cls) -> str:
            return "who-works"

        def schema(self) -> str:
            return "isQuiet boolean, daemon string"

        def reader(self, schema: StructType) -> DataSourceReader:
            return WhoReader()

    return WhoSource


def test_workers_of_all_kinds_wait_for_a_task(spark: SparkSession) -> None:
    spark.dataSource.register(who_works())
    assert [tuple(row) for row in spark.read.format("who-works").load().collect()] == [
        (True, DAEMON)
    ]
    # A function that knows nothing of us.
    started_as = udf(lambda _: sys.modules["__main__"].__spec__.name, "string")  # type: ignore[union-attr]
    assert spark.range(1).select(started_as("id")).head() == (DAEMON,)
    assert spark.sparkContext.getConf().get(ENABLED) == "true"


ENOUGH = """
import pyarrow
from pyspark.sql.datasource import DataSource, DataSourceReader
from rocketpost.spark.session import make_session
from rocketpost.spark.workers.preparation import prepare_worker

class Reader(DataSourceReader):
    def read(self, partition):
        batch = pyarrow.RecordBatch.from_pydict({"text": ["x" * 100_000] * 40})
        for _ in range(100):
            yield batch

class Source(DataSource):
    # Workers that plan come from Spark's own daemon and end without a traceback only if they are
    # prepared, as our sources do. On a busy machine Spark drops one while the test runs.
    name = classmethod(lambda cls: "much")

    def schema(self):
        prepare_worker()
        return "text string"

    def reader(self, schema):
        prepare_worker()
        return Reader()

spark = make_session("enough", master="local[2]", options={"spark.driver.memory": "512m"})
spark.dataSource.register(Source)
for _ in range(3):
    print(len(spark.read.format("much").load().limit(1).collect()))
spark.stop()
"""


@pytest.mark.long
def test_a_worker_with_enough_rows_ends_quietly() -> None:
    command = [sys.executable, "-c", ENOUGH]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["1"] * 3
    assert "Traceback" not in said.stderr, said.stderr


LET_GO = """
import sys, threading
from pyspark.sql.functions import udf
from rocketpost.spark.session import make_session

name_server, topic, idle_seconds = sys.argv[1:]
spark = make_session("quiet", master="local[2]", options={"spark.driver.memory": "512m"})
frame = spark.read.format("rocketmq").load(nameServer=name_server, topic=topic)
twice = udf(lambda value: 2 * value, "long")
print(sum(row[0] for row in frame.select(twice("queueOffset")).collect()))
threading.Event().wait(float(idle_seconds))
spark.stop()
"""
IDLE_SECONDS = 75
"""Spark looks every now and then for workers that have waited for a minute."""


@pytest.mark.long
def test_released_workers_end_quietly(topics: Topics) -> None:
    topics.send("Quiet", [b"%d" % number for number in range(20)])
    command = [sys.executable, "-c", LET_GO, topics.cluster.addresses, "Quiet", str(IDLE_SECONDS)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(said.stdout) > 0
    assert "Traceback" not in said.stderr, said.stderr
