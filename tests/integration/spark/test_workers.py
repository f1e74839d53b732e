"""What makes reading by Python cheap is in force in the processes that Spark runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from rocketpost.spark import RocketMQSource

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


def test_arrow_reads_without_looking_twice(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    assert jvm.org.apache.arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED is False
    assert jvm.org.apache.arrow.vector.NullCheckingForGet.NULL_CHECKING_ENABLED is False
