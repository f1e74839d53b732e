"""What an audit reads: stored messages, the user's table, brokers, and what they keep for later."""

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
from rocketpost.spark.pipelines.archive import archived, opened
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


def check(config: AuditConfig) -> None:
    """Refuse what can be seen to make no sense before Spark starts.

    Raises:
        ConfigError: A lake or a store has nothing of a topic, or no broker knows the group.
        StoreError: A lake or a store cannot be read.
        ClientError: Brokers cannot be asked.
    """
    if config.lake:
        opened(config.lake, config.topics)
    elif config.store:
        check_store(config)
    if config.group:
        bounds(config)


def stored(spark: SparkSession, config: AuditConfig) -> DataFrame:
    """Return the stored messages as the checks want them; no bodies.

    Raises:
        ConfigError: A lake or a store has nothing of a topic.
    """
    if config.lake:
        frame = archived(spark, config.lake, config.topics)
    elif config.store:
        check_store(config)
        reader = spark.read.format("rocketmq-log").schema(_READ).option("readDecoded", "false")
        frame = reader.option("topic", ",".join(config.topics)).load(config.store)
    else:
        live = spark.read.format("rocketmq").schema(_READ)
        for key, value in config.source_options().given().items():
            live = live.option(key, value)
        frame = live.load()
    is_sound = (f.crc32("body").bitwiseAND(f.lit(CRC_MASK)) == f.col("bodyCrc")) | (
        f.length("body") == 0
    )
    if config.lake:  # its bodies are unpacked, and their CRC is not
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
    return slim if is_live else checks.between(slim, config.start_ms, config.end_ms)


def check_store(config: AuditConfig) -> None:
    """Refuse topics that no store has; a log without any other file cannot say.

    Raises:
        ConfigError: One is in none of them.
    """
    states = [read_state(find_layout(path)) for path in stores(config)]
    known = {topic for state in states for topic in state.topics}
    if known:
        check_topics(config.topics, known, where=config.source)


def stores(config: AuditConfig) -> list[str]:
    """Return the store directories to audit."""
    return LogOptions(path=config.store).paths if config.store else []


def produced(spark: SparkSession, config: AuditConfig) -> DataFrame:
    """Return the ids of the user's table, in the column ``id``.

    Raises:
        ConfigError: It is not clear which column has them.
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
                f"{config.produced} has no column {wanted}; there are {', '.join(frame.columns)}"
            )
        wanted = frame.columns[0]
    return frame.select(f.col(wanted).cast("string").alias("id"))


def is_file(produced: str) -> bool:
    """Return whether what was produced is in files, not in a table that Spark knows."""
    return "/" in produced or produced.lower().endswith((".csv", ".json", ".jsonl", ".parquet"))


def bounds(config: AuditConfig) -> tuple[dict[QueueKey, Bounds], dict[QueueKey, int | None]]:
    """Return what brokers have of the topics, and where the group stands.

    Raises:
        ConfigError: No broker knows the group.
        ClientError: Brokers cannot be asked.
    """
    with BrokerSession(config.source_options()) as broker_session:
        queues = broker_session.queues()
        have = broker_session.bounds(queues)
        committed = broker_session.group_offsets(queues) if config.group else {}
        # Brokers say 0 of a young queue to every group, also to one that does not exist.
        if config.group and not any(committed.values()):
            _check_group(broker_session, config, queues)
    return have, committed


def _check_group(
    broker_session: BrokerSession, config: AuditConfig, queues: list[QueueKey]
) -> None:
    """Refuse a group that nobody knows: every message would seem to wait for it.

    Raises:
        ConfigError: It is one.
    """
    try:
        consuming = broker_session.consuming_groups(config.topics)
        if config.group in consuming or config.group in broker_session.known_groups(queues):
            return
    except Fault as fault:  # such as one that tells it to administrators only
        logger.debug("a broker does not tell its groups: fault=%s", fault)
        return
    users = [group for group in consuming if not is_system_group(group)]
    hint = f"those that consume {', '.join(config.topics)} are {list_similar(config.group, users)}"
    if not users:
        hint = f"no group consumes {', '.join(config.topics)} yet; leave it out"
    raise ConfigError(f"no broker knows the group {config.group}; {hint}")


def planned(config: AuditConfig) -> list[PlannedQueue] | None:
    """Return what would be read of each queue; None of a store, which only reading it would tell.

    Raises:
        ConfigError: A lake has nothing of a topic, or no broker knows the group.
        ClientError: Brokers cannot be asked.
    """
    if config.store:
        return None
    is_asked = config.group or not config.lake
    have, committed = bounds(config) if is_asked else ({}, {})
    if config.lake:
        ranges = opened(config.lake, config.topics)[1].ranges.values()
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


def everywhere(spark: SparkSession, config: AuditConfig) -> DataFrame | None:
    """Return what is stored at any time; None if that is what is audited.

    What was sent within the times of an audit may be stored a moment after them.
    """
    if config.start_ms is None and config.end_ms is None:
        return None
    return stored(spark, dataclasses.replace(config, start_ms=None, end_ms=None))
