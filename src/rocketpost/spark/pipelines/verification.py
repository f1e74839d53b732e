"""Verification of a lake: its manifests, all bytes of its files, and all offsets in them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f

from rocketpost.spark.lake.lake import DataFile, Flaw, Lake, open_lake
from rocketpost.spark.pipelines.archive import read_files
from rocketpost.spark.source.plan import QueueKey, Range

logger = logging.getLogger(__name__)

_CHECK_PAGES: Final = "parquet.page.verify-checksum.enabled"


def verify(
    spark: SparkSession, lake_uri: str, *, is_over: Callable[[], bool] = lambda: False
) -> list[Flaw]:
    """Return the flaws of a lake, found in manifests, by reading all files and by counting offsets.

    Args:
        spark: The session.
        lake_uri: The lake.
        is_over: Returns whether Spark fails because it was stopped.
    """
    lake = open_lake(lake_uri)
    flaws = lake.find_flaws()
    snapshot = lake.snapshot()
    if flaws or not snapshot.files:
        return flaws
    try:
        counted = _count_queues(spark, lake, snapshot.files)
    except (PySparkException, Py4JJavaError):
        unreadable = [] if is_over() else _find_unreadable(spark, lake, snapshot.files)
        if is_over() or not unreadable:
            raise
        return unreadable
    ranges = snapshot.ranges
    for row in counted:
        queue = QueueKey(row.topic, row.brokerName, row.queueId)
        covered = ranges.get(queue, Range(queue, 0, 0))
        if row.rows != row.offsets:
            flaws.append(Flaw(f"{queue}: {row.rows - row.offsets} messages exist twice"))
        if row.first < covered.start or row.last >= covered.end:
            flaws.append(Flaw(f"{queue}: it has more offsets than its manifests cover"))
    found = sum(row.rows for row in counted)
    if found != snapshot.rows:
        flaws.append(Flaw(f"the manifests count {snapshot.rows} messages, the files have {found}"))
    return flaws


def _count_queues(spark: SparkSession, lake: Lake, files: list[DataFile]) -> list[Row]:
    """Return the counts of queues in files, reading every byte of them."""
    rows = read_files(spark, lake, files, reading={_CHECK_PAGES: "true"})
    read = [f.map_entries(name) if name == "properties" else f.col(name) for name in rows.columns]
    return (
        rows.withColumn("hash", f.xxhash64(*read))
        .groupBy("topic", "brokerName", "queueId")
        .agg(
            f.count("*").alias("rows"),
            f.count_distinct("queueOffset").alias("offsets"),
            f.min("queueOffset").alias("first"),
            f.max("queueOffset").alias("last"),
            f.bit_xor("hash"),  # so that Spark does not skip unused columns
        )
        .collect()
    )


def _find_unreadable(spark: SparkSession, lake: Lake, files: list[DataFile]) -> list[Flaw]:
    """Return the files that cannot be read, with a job for each file."""
    flaws = []
    for file in files:
        try:
            _count_queues(spark, lake, [file])
        except (PySparkException, Py4JJavaError) as error:
            logger.debug("a file cannot be read: path=%s reason=%s", file.path, error)
            flaws.append(Flaw(f"{file.path} cannot be read: it is damaged"))
    return flaws
