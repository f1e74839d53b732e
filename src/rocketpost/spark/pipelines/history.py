"""Archived and live messages as one table: no message twice, none left out.

What the lake has is read from it, and the rest of each queue from its broker.
"""

from __future__ import annotations

import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketpost.spark import columns, plan
from rocketpost.spark.lake import Lake
from rocketpost.spark.link import Link
from rocketpost.spark.options import SourceOptions, replaced
from rocketpost.spark.pipelines.archive import archived


def history(
    spark: SparkSession, source: SourceOptions, lake_uri: str, *, as_of_ms: int | None = None
) -> DataFrame:
    """Return all messages of the topics, archived or not.

    Args:
        spark: The session.
        source: Name servers and topics.
        lake_uri: Where they were archived.
        as_of_ms: Leave out what was stored at this time or later.

    Raises:
        ConfigError: Nothing was archived there.
        ClientError: Messages that are not archived were deleted already.
    """
    with Link(source) as link:
        bounds = link.bounds(link.queues())
    watermark = Lake(lake_uri).watermark()
    start = {queue: watermark.get(queue, bound.first) for queue, bound in bounds.items()}
    end = {queue: max(bound.end, start[queue]) for queue, bound in bounds.items()}
    exact = replaced(
        source,
        starting_offsets=json.dumps(plan.nested(start)),
        ending_offsets=json.dumps(plan.nested(end)),
    )
    reader = spark.read.format("rocketmq")
    for key, value in exact.given().items():
        reader = reader.option(key, value)
    names = [column.name for column in columns.full(source.properties_format)]
    topics = sorted({queue.topic for queue in bounds})
    cold = archived(spark, lake_uri).filter(f.col("topic").isin(topics))
    frame = cold.select(*names).unionByName(reader.load().select(*names))
    if as_of_ms is None:
        return frame
    return frame.filter(f.unix_millis("storeTimestamp") < as_of_ms)
