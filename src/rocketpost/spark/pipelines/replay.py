"""Messages of a lake or of a time range into a topic again: in order, at a rate, each once."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketpost.spark.options import SourceOptions
from rocketpost.spark.pipelines.archive import archived
from rocketpost.spark.pipelines.copying import CopyConfig, copies, send


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay did, or would do."""

    messages: int
    queues: int
    first_ms: int | None
    last_ms: int | None


def from_lake(spark: SparkSession, lake_uri: str, *, topics: list[str]) -> DataFrame:
    """Return the archived messages of some topics.

    Raises:
        ConfigError: Nothing was archived there.
    """
    return archived(spark, lake_uri).filter(f.col("topic").isin(topics))


def from_broker(spark: SparkSession, source: SourceOptions) -> DataFrame:
    """Return the messages that brokers have."""
    reader = spark.read.format("rocketmq")
    for key, value in source.given().items():
        reader = reader.option(key, value)
    return reader.load()


def between(frame: DataFrame, start_ms: int | None, end_ms: int | None) -> DataFrame:
    """Return the messages stored from ``start_ms`` on, before ``end_ms``."""
    stored = f.unix_millis("storeTimestamp")
    if start_ms is not None:
        frame = frame.filter(stored >= start_ms)
    return frame.filter(stored < end_ms) if end_ms is not None else frame


def survey(frame: DataFrame) -> ReplayReport:
    """Return what a replay of some messages would do."""
    row = frame.agg(
        f.count("*"),
        f.count_distinct("topic", "brokerName", "queueId"),
        f.unix_millis(f.min("storeTimestamp")),
        f.unix_millis(f.max("storeTimestamp")),
    ).first()
    assert row is not None
    return ReplayReport(messages=row[0], queues=row[1], first_ms=row[2], last_ms=row[3])


def replay(frame: DataFrame, config: CopyConfig) -> ReplayReport:
    """Send messages again; what an earlier run of this name has sent is not sent twice.

    Raises:
        PySparkException: A task failed for good; run it again to continue.
    """
    report = survey(frame)
    if report.messages:
        send(copies(frame, config, topic=f.col("topic")), config)
    return report
