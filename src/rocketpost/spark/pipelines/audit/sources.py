"""Sources of an audit: stored messages, the user's table, and brokers."""

from __future__ import annotations

import dataclasses
import logging
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketpost.codec.record import CRC_MASK
from rocketpost.errors import ConfigError, Fault
from rocketpost.model.names import is_system_group
from rocketpost.model.sysflag import COMPRESSED
from rocketpost.spark.broker_session import BrokerSession
from rocketpost.spark.lake.lake import check_topics
from rocketpost.spark.log.end import find_layout
from rocketpost.spark.log.options import LogOptions
from rocketpost.spark.log.store_state import read_state
from rocketpost.spark.pipelines.archive import archived, open_archive
from rocketpost.spark.pipelines.audit import checks
from rocketpost.spark.pipelines.audit.config import AuditConfig
from rocketpost.spark.pipelines.audit.report import PlannedQueue
from rocketpost.spark.source.plan import Bounds, QueueKey
from rocketpost.spark.suggestions import list_similar

logger = logging.getLogger(__name__)

_UNKNOWN_BROKER: Final = "store"
_READ: Final = (
    "topic string, brokerName string, queueId int, queueOffset bigint, uniqKey string, "
    "keys string, sysFlag int, bodyCrc int, bornTimestamp timestamp, storeTimestamp timestamp, "
    "storeSize int, body binary"
)


def check_sources(config: AuditConfig) -> None:
    """Check the sources before Spark starts.

    Raises:
        ConfigError: A lake or a store lacks a topic, or no broker knows the group.
        StoreError: A lake or a store cannot be read.
        ClientError: Brokers do not answer.
    """
    if config.lake:
        open_archive(config.lake, config.topics)
    elif config.store:
        check_store(config)
    if config.group:
        read_bounds(config)


def read_stored(spark: SparkSession, config: AuditConfig) -> DataFrame:
    """Return the stored messages in the form for checks, without bodies.

    Raises:
        ConfigError: A lake or a store lacks a topic.
    """
    if config.lake:
        frame = archived(spark, config.lake, config.topics)
    elif config.store:
        check_store(config)
        reader = spark.read.format("rocketmq-log").schema(_READ).option("readDecoded", "false")
        frame = reader.option("topic", ",".join(config.topics)).load(config.store)
    else:
        live = spark.read.format("rocketmq").schema(_READ)
        for key, value in config.source_options().given_values().items():
            live = live.option(key, value)
        frame = live.load()
    is_sound = (f.crc32("body").bitwiseAND(f.lit(CRC_MASK)) == f.col("bodyCrc")) | (
        f.length("body") == 0
    )
    if config.lake:  # bodies are decompressed, but the CRC is of compressed ones
        is_sound = is_sound | (f.col("sysFlag").bitwiseAND(f.lit(COMPRESSED)) != 0)
    slim = frame.select(
        "topic",
        f.coalesce("brokerName", f.lit(_UNKNOWN_BROKER)).alias("broker"),
        "queueId",
        "queueOffset",
        f.nullif(f.col(config.identified_by), f.lit("")).alias("id"),
        f.nullif(f.col("keys"), f.lit("")).alias("keys"),
        f.unix_millis("bornTimestamp").alias("bornMs"),
        f.unix_millis("storeTimestamp").alias("storedMs"),
        f.col("storeSize").cast("bigint").alias("bytes"),
        is_sound.alias("isSound"),
    )
    is_live = not (config.lake or config.store)
    return slim if is_live else checks.select_between(slim, config.start_ms, config.end_ms)


def check_store(config: AuditConfig) -> None:
    """Check that the stores have all topics, unless there is only a log without other files.

    Raises:
        ConfigError: A topic is in no store.
    """
    states = [read_state(find_layout(path)) for path in list_stores(config)]
    known = {topic for state in states for topic in state.topics}
    if known:
        check_topics(config.topics, known, where=config.source)


def list_stores(config: AuditConfig) -> list[str]:
    """Return the store directories to audit."""
    return LogOptions(path=config.store).paths if config.store else []


def read_produced(spark: SparkSession, config: AuditConfig) -> DataFrame:
    """Return the ids of the user's table, in the column ``id``.

    Raises:
        ConfigError: It is not clear which column has the ids.
    """
    name = config.produced.lower()
    if not is_file(name):
        frame = spark.table(config.produced)
    elif name.endswith(".csv"):
        frame = spark.read.option("header", "true").csv(config.produced)
    elif name.endswith((".json", ".jsonl")):
        frame = spark.read.json(config.produced)
    else:
        frame = spark.read.parquet(config.produced)
    wanted = config.produced_column or config.identified_by
    if wanted not in frame.columns:
        if config.produced_column or len(frame.columns) != 1:
            raise ConfigError(
                f"{config.produced} has no column {wanted}; its columns are "
                f"{', '.join(frame.columns)}"
            )
        wanted = frame.columns[0]
    return frame.select(f.col(wanted).cast("string").alias("id"))


def is_file(produced: str) -> bool:
    """Return whether produced messages are in files, not in a table of Spark."""
    return "/" in produced or produced.lower().endswith((".csv", ".json", ".jsonl", ".parquet"))


def read_bounds(config: AuditConfig) -> tuple[dict[QueueKey, Bounds], dict[QueueKey, int | None]]:
    """Return the bounds of queues at brokers, and the offsets of the group.

    Raises:
        ConfigError: No broker knows the group.
        ClientError: Brokers do not answer.
    """
    with BrokerSession(config.source_options()) as broker_session:
        queues = broker_session.queues()
        have = broker_session.bounds(queues)
        committed = broker_session.group_offsets(queues) if config.group else {}
        # Brokers answer 0 for a new queue to every group, even to one that does not exist.
        if config.group and not any(committed.values()):
            _check_group(broker_session, config, queues)
    return have, committed


def _check_group(
    broker_session: BrokerSession, config: AuditConfig, queues: list[QueueKey]
) -> None:
    """Check that brokers know the group; all messages would seem to wait for an unknown one.

    Raises:
        ConfigError: No broker knows the group.
    """
    try:
        consuming = broker_session.consuming_groups(config.topics)
        if config.group in consuming or config.group in broker_session.known_groups(queues):
            return
    except Fault as fault:  # for example a broker that restricts this to administrators
        logger.debug("a broker does not list its groups: fault=%s", fault)
        return
    users = [group for group in consuming if not is_system_group(group)]
    hint = (
        f"the groups that consume {', '.join(config.topics)} are "
        f"{list_similar(config.group, users)}"
    )
    if not users:
        hint = f"no group consumes {', '.join(config.topics)} yet; leave out the group"
    raise ConfigError(f"no broker knows the group {config.group}; {hint}")


def plan_audit(config: AuditConfig) -> list[PlannedQueue] | None:
    """Return the range of each queue; None for a store, whose ranges are unknown before reading.

    Raises:
        ConfigError: A lake lacks a topic, or no broker knows the group.
        ClientError: Brokers do not answer.
    """
    if config.store:
        return None
    is_asked = config.group or not config.lake
    have, committed = read_bounds(config) if is_asked else ({}, {})
    if config.lake:
        ranges = open_archive(config.lake, config.topics)[1].ranges.values()
        have = {
            piece.queue: Bounds(piece.start, piece.end)
            for piece in sorted(ranges)
            if piece.queue.topic in config.topics
        }
    return [
        PlannedQueue(
            topic=queue.topic,
            broker=queue.broker,
            queue_id=queue.queue_id,
            first=bound.first if bound.end > bound.first else None,
            last=bound.end - 1 if bound.end > bound.first else None,
            committed=committed.get(queue),
        )
        for queue, bound in have.items()
    ]


def read_all_times(spark: SparkSession, config: AuditConfig) -> DataFrame | None:
    """Return messages of all times; None if all times are audited.

    Messages sent within the times of an audit may be stored a moment after them.
    """
    if config.start_ms is None and config.end_ms is None:
        return None
    return read_stored(spark, dataclasses.replace(config, start_ms=None, end_ms=None))
