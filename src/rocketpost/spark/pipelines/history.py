"""Archived and live messages as one table, each message once.

Archived messages are read from the lake, and the rest of each queue from its broker. The lake is
read once, so a concurrent run of the archive changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketpost.errors import ClientError, ConfigError
from rocketpost.spark.broker_session import BrokerSession
from rocketpost.spark.lake.lake import Snapshot, open_lake
from rocketpost.spark.options import SourceOptions, fix_offsets, refuse_bounds
from rocketpost.spark.pipelines.archive import read_files
from rocketpost.spark.records import columns
from rocketpost.spark.source import plan
from rocketpost.spark.source.plan import Bounds, DataLoss, Offsets, QueueKey

logger = logging.getLogger(__name__)


def history(
    spark: SparkSession, source: SourceOptions, lake_uri: str, *, as_of_ms: int | None = None
) -> DataFrame:
    """Return all messages of the topics, archived or not.

    Args:
        spark: The session.
        source: Name servers and topics; ``failOnDataLoss`` determines the reaction to gaps.
        lake_uri: The lake.
        as_of_ms: Leave out messages stored at this time or later.

    Raises:
        ConfigError: The lake is empty, or an option cannot be used here.
        ClientError: Messages were deleted before they were archived, or a broker is down.
    """
    _check(source)
    lake = open_lake(lake_uri)
    held = lake.snapshot()  # before the bounds: messages archived later count as live
    if not held.files:
        raise ConfigError(f"nothing is archived in {lake_uri}")
    mine = {queue: at for queue, at in held.watermark.items() if source.selects(queue)}
    with BrokerSession(source) as broker_session:
        bounds = broker_session.bounds(broker_session.queues(known=mine))
    cold = _select_archived(read_files(spark, lake, held.files), source, held)
    start = _find_live_starts(held, bounds)
    pieces, losses = plan.plan_ranges(start, {q: bound.end for q, bound in bounds.items()}, bounds)
    _log_losses(
        _drop_later_losses(cold, [*losses, *_find_missing_queues(mine, bounds)], as_of_ms), source
    )
    names = [column.name for column in columns.all_columns(source.properties_format)]
    frame = cold.select(*names)
    if pieces:
        exact = fix_offsets(
            source,
            {piece.queue: piece.start for piece in pieces},
            {piece.queue: piece.end for piece in pieces},
        )
        live = spark.read.format("rocketmq").options(**exact.given_values()).load()
        frame = frame.unionByName(live.select(*names))
    if as_of_ms is None:
        return frame
    return frame.filter(f.unix_millis("storeTimestamp") < as_of_ms)


def _find_live_starts(held: Snapshot, bounds: dict[QueueKey, Bounds]) -> Offsets:
    """Return the start of the live part of each queue.

    All messages of a topic that is not in the lake are live. If its first messages are deleted,
    they count as lost: maybe another lake was meant.
    """
    ends, topics = held.watermark, held.topics
    return {
        queue: ends.get(queue, bound.first if queue.topic in topics else 0)
        for queue, bound in bounds.items()
    }


def _check(source: SourceOptions) -> None:
    refuse_bounds(source, "a history contains whole topics; filter it, or give it a time range")
    source.check_batch()
    if source.body_format != "bytes" or not source.read_decoded:
        raise ConfigError("bodyFormat and readDecoded cannot be used here: a lake has plain bodies")
    if source.properties_format == "string":
        raise ConfigError("propertiesFormat=string cannot be used here: a lake has maps")
    if source.expression_type != "TAG":
        raise ConfigError("subExpressionType=SQL92 cannot be used here: lakes do not support it")


def _select_archived(cold: DataFrame, source: SourceOptions, held: Snapshot) -> DataFrame:
    """Return the archived messages that the options select."""
    topics = source.topics
    if source.topic_pattern:
        topics = sorted({queue.topic for queue in held.ranges if source.matches(queue.topic)})
    if source.assign:
        named = f.concat_ws("/", "topic", "brokerName", "queueId")
        cold = cold.filter(named.isin(["/".join(map(str, queue)) for queue in source.assigned]))
    else:
        cold = cold.filter(f.col("topic").isin(topics))
    if not source.is_filtered:
        return cold
    return cold.filter(f.col("tags").isin([tag.strip() for tag in source.expression.split("||")]))


def _find_missing_queues(archived: Offsets, there: Collection[QueueKey]) -> list[DataLoss]:
    """Return archived queues that no broker shows; their newer messages are unknown."""
    return [
        DataLoss(
            queue,
            f"{queue} is archived up to offset {at}; it no longer exists, so later "
            "messages are unknown",
        )
        for queue, at in sorted(archived.items())
        if queue not in there
    ]


def _drop_later_losses(
    cold: DataFrame, losses: list[DataLoss], as_of_ms: int | None
) -> list[DataLoss]:
    """Return the losses of messages stored before the requested time."""
    if as_of_ms is None or not losses:
        return losses
    last = {
        QueueKey(row.topic, row.brokerName, row.queueId): row.last_ms
        for row in cold.groupBy("topic", "brokerName", "queueId")
        .agg(f.unix_millis(f.max("storeTimestamp")).alias("last_ms"))
        .collect()
    }
    return [loss for loss in losses if last.get(loss.queue, 0) < as_of_ms]


def _log_losses(losses: list[DataLoss], source: SourceOptions) -> None:
    if losses and source.fail_on_data_loss:
        more = plan.describe_more_queues(len(losses) - 1)
        raise ClientError(
            f"messages are neither archived nor live: {losses[0].text}{more}. Set "
            "failOnDataLoss=false to continue without them"
        )
    for loss in losses:
        logger.warning("messages are neither archived nor live: %s", loss.text)
