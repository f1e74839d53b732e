"""Dead letters: why they died, and those that deserve it sent to their topics again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from rocketpost.model import properties as names
from rocketpost.model.names import dlq_topic
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.pipelines.copying import CopyConfig, copies, send

UNKNOWN: Final = "unknown"
_CAUSE: Final = "CONSUME_FAILURE"
_TEXT: Final = "CONSUME_FAILURE_TEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which dead letters; what is None does not matter.

    Attributes:
        cause: A part of the exception's class or text.
        topic: Where they came from.
        key: One of their keys.
        start_ms: They died then or later.
        end_ms: They died before.
    """

    cause: str | None = None
    topic: str | None = None
    key: str | None = None
    start_ms: int | None = None
    end_ms: int | None = None


def dead_letters(spark: SparkSession, name_servers: str, group: str) -> DataFrame:
    """Return the dead letters of a group, with ``origin``, ``cause`` and ``causeText``."""
    source = SourceOptions(name_servers=name_servers, topic=dlq_topic(group))
    reader = spark.read.format("rocketmq")
    for key, value in source.given().items():
        reader = reader.option(key, value)
    unknown = f.lit(UNKNOWN)
    return (
        reader.load()
        .withColumn(
            "origin", f.coalesce(_property(names.RETRY_TOPIC), _property("DLQ_ORIGIN_TOPIC"))
        )
        .withColumn("cause", f.coalesce(_property(_CAUSE), unknown))
        .withColumn("causeText", f.coalesce(_property(_TEXT), f.lit("")))
    )


def chosen(letters: DataFrame, choice: Choice) -> DataFrame:
    """Return some of the dead letters."""
    died = f.unix_millis("storeTimestamp")
    if choice.cause is not None:
        in_cause = f.col("cause").contains(choice.cause)
        letters = letters.filter(in_cause | f.col("causeText").contains(choice.cause))
    if choice.topic is not None:
        letters = letters.filter(f.col("origin") == choice.topic)
    if choice.key is not None:
        letters = letters.filter(f.array_contains(f.split("keys", " "), choice.key))
    if choice.start_ms is not None:
        letters = letters.filter(died >= choice.start_ms)
    if choice.end_ms is not None:
        letters = letters.filter(died < choice.end_ms)
    return letters


def causes(letters: DataFrame) -> list[Row]:
    """Return, for each cause and origin: how many, since when, until when, and an example."""
    return (
        letters.groupBy("cause", "origin")
        .agg(
            f.count("*").alias("letters"),
            f.min("storeTimestamp").alias("first"),
            f.max("storeTimestamp").alias("last"),
            f.max_by("causeText", "storeTimestamp").alias("example"),
        )
        .orderBy(f.desc("letters"), "cause", "origin")
        .collect()
    )


def redrive(letters: DataFrame, config: CopyConfig) -> int:
    """Send dead letters to where they came from, each once for this name; returns how many.

    Those whose origin is not known are left alone, unless the configuration names a topic.
    """
    known = letters if config.topic else letters.filter("origin IS NOT NULL")
    count = known.count()
    if count:
        send(copies(known, config, topic=f.col("origin")), config)
    return count


def _property(name: str) -> Column:
    return f.col("properties")[name]
