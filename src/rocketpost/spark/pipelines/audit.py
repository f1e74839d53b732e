"""Produced against stored against consumed: what is missing, doubled, late or out of order.

What is stored is a topic at its brokers, a lake, or a store directory. What was produced is a table
of the user's, or what producers wrote to a trace topic. What was consumed is where a group stands,
and what consumers wrote to a trace topic. Messages are known by their unique id, or by their keys.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketpost.codec.record import CRC_MASK
from rocketpost.errors import ConfigError
from rocketpost.model.sysflag import COMPRESSED
from rocketpost.spark.link import Link
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.pipelines import audit_checks as checks
from rocketpost.spark.pipelines.archive import archived
from rocketpost.spark.pipelines.audit_report import AuditReport, Finding, Latency, QueueFacts
from rocketpost.spark.pipelines.audit_traces import handled, sent, traces
from rocketpost.spark.pipelines.timeline import timeline
from rocketpost.spark.plan import Bounds, QueueKey

UNIQUE_KEY: Final = "uniqKey"
KEYS: Final = "keys"
_UNKNOWN_BROKER: Final = "store"
_READ: Final = (
    "topic string, brokerName string, queueId int, queueOffset bigint, uniqKey string, "
    "keys string, sysFlag int, bodyCrc int, bornTimestamp timestamp, storeTimestamp timestamp, "
    "storeSize int, body binary"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """What is audited, and against what.

    Attributes:
        topics: Whose messages.
        name_servers: Where their brokers are known; needed for groups and traces as well.
        lake: Audit what was archived here instead of what brokers have.
        store: Audit this store directory instead.
        identified_by: ``uniqKey`` or ``keys``: by what a message is known elsewhere.
        produced: A CSV, JSON or Parquet file, or a table, of what must be stored.
        produced_column: Its column with the ids.
        group: Whose progress counts as consumed.
        trace_topic: Where producers and consumers wrote what they did.
        start_ms: Stored then or later.
        end_ms: Stored before.
        late_ms: Over how many milliseconds a message is late.
    """

    topics: tuple[str, ...]
    name_servers: str = ""
    lake: str = ""
    store: str = ""
    identified_by: str = UNIQUE_KEY
    produced: str = ""
    produced_column: str = ""
    group: str = ""
    trace_topic: str = ""
    start_ms: int | None = None
    end_ms: int | None = None
    late_ms: int | None = None

    def __post_init__(self) -> None:
        if not self.topics:
            raise ConfigError("a topic is required: whose messages to audit")
        if self.lake and self.store:
            raise ConfigError("a lake and a store directory are two audits")
        if self.identified_by not in (UNIQUE_KEY, KEYS):
            raise ConfigError(f"messages are known by uniqKey or keys, not {self.identified_by!r}")
        if self.produced_column and not self.produced:
            raise ConfigError("the column with the ids needs the table that has it")
        is_asked = self.group or self.trace_topic or not (self.lake or self.store)
        if is_asked and not self.name_servers:
            raise ConfigError("name servers are required, such as 127.0.0.1:9876")

    @property
    def source(self) -> str:
        """What is audited, in words."""
        if self.lake:
            return f"lake {self.lake}"
        return f"store {self.store}" if self.store else f"brokers of {self.name_servers}"

    def source_options(self) -> SourceOptions:
        """Return how brokers are asked."""
        return SourceOptions(
            name_servers=self.name_servers,
            topic=",".join(self.topics),
            group=self.group,
            read_decoded=False,  # the CRC is that of the bytes as they were sent
            starting_timestamp=self.start_ms,
            ending_timestamp=self.end_ms,
        )


def audit(spark: SparkSession, config: AuditConfig) -> AuditReport:
    """Compare what was produced, what is stored and what was consumed.

    Raises:
        ConfigError: The table of produced messages has no column with ids.
        ClientError: Brokers cannot be asked.
        PySparkException: Something cannot be read.
    """
    # First, so that a wrong name costs no reading.
    expected = produced(spark, config) if config.produced else None
    frame = stored(spark, config).persist()
    try:
        return _audited(spark, frame, expected, config)
    finally:
        frame.unpersist()


def stored(spark: SparkSession, config: AuditConfig) -> DataFrame:
    """Return the stored messages as the checks want them; no bodies."""
    if config.lake:
        frame = archived(spark, config.lake).filter(f.col("topic").isin(*config.topics))
    elif config.store:
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


def produced(spark: SparkSession, config: AuditConfig) -> DataFrame:
    """Return the ids of the user's table, in the column ``id``.

    Raises:
        ConfigError: It is not clear which column has them.
    """
    name = config.produced.lower()
    if name.endswith(".csv"):
        frame = spark.read.option("header", "true").csv(config.produced)
    elif name.endswith((".json", ".jsonl")):
        frame = spark.read.json(config.produced)
    elif "/" in name or name.endswith(".parquet"):
        frame = spark.read.parquet(config.produced)
    else:
        frame = spark.table(config.produced)
    wanted = config.produced_column or config.identified_by
    if wanted not in frame.columns:
        if config.produced_column or len(frame.columns) != 1:
            raise ConfigError(
                f"{config.produced} has no column {wanted}; there are {', '.join(frame.columns)}"
            )
        wanted = frame.columns[0]
    return frame.select(f.col(wanted).cast("string").alias("id"))


def bounds(config: AuditConfig) -> tuple[dict[QueueKey, Bounds], dict[QueueKey, int | None]]:
    """Return what brokers have of the topics, and where the group stands."""
    with Link(config.source_options()) as link:
        queues = link.queues()
        return link.bounds(queues), link.group_offsets(queues) if config.group else {}


def _audited(
    spark: SparkSession, frame: DataFrame, expected: DataFrame | None, config: AuditConfig
) -> AuditReport:
    overview = checks.overview(frame)
    queues, findings = checks.queue_checks(frame)
    findings += checks.id_checks(frame, config.identified_by)
    latencies = [checks.latency("born to stored", frame, "bornMs", "storedMs")]
    if config.late_ms is not None:
        findings.append(checks.late(frame, config.late_ms))
    if config.group:
        have, committed = bounds(config)
        queues, behind = checks.progress(queues, have, committed)
        findings += behind
    if expected is not None:
        name, where = "the table of produced ones", _everywhere(spark, config)
        findings += checks.reconciled(frame, expected, name, everywhere=where)
    if config.trace_topic:
        more, timed = _traced(spark, frame, config, queues)
        findings += more
        latencies += timed
    return AuditReport(
        topics=config.topics,
        source=config.source,
        identified_by=config.identified_by,
        messages=overview.messages,
        stored_bytes=overview.bytes or 0,
        first_ms=overview.first_ms,
        last_ms=overview.last_ms,
        findings=tuple(findings),
        queues=tuple(queues),
        latencies=tuple(each for each in latencies if each is not None),
        hot_keys=checks.hot_keys(frame),
        timeline=timeline(frame, "storedMs", overview.first_ms, overview.last_ms),
    )


def _everywhere(spark: SparkSession, config: AuditConfig) -> DataFrame | None:
    """Return what is stored at any time; None if that is what is audited.

    What was sent within the times of an audit may be stored a moment after them.
    """
    if config.start_ms is None and config.end_ms is None:
        return None
    return stored(spark, dataclasses.replace(config, start_ms=None, end_ms=None))


def _traced(
    spark: SparkSession, frame: DataFrame, config: AuditConfig, queues: list[QueueFacts]
) -> tuple[list[Finding], list[Latency | None]]:
    """Compare with what producers and consumers wrote about their work."""
    records = traces(spark, config.name_servers, config.trace_topic).persist()
    try:
        by = f.col(config.identified_by).alias("id")
        is_within = f.lit(True)
        if config.start_ms is not None:
            is_within = is_within & (f.col("timeMs") >= config.start_ms)
        if config.end_ms is not None:
            is_within = is_within & (f.col("timeMs") < config.end_ms)
        pubs = sent(records, config.topics).filter(is_within).select(by, "timeMs", "costMs")
        done = handled(records, config.group).select(by, "doneMs", "costMs", "by")
        findings = []
        if not config.produced:
            where = _everywhere(spark, config)
            findings = checks.reconciled(frame, pubs, "the send traces", everywhere=where)
        findings += checks.handling(frame, done, queues if config.group else None)
        ends = frame.join(done, "id")
        return findings, [
            checks.latency("send", pubs.withColumn("zero", f.lit(0)), "zero", "costMs"),
            checks.latency("stored to handled", ends, "storedMs", "doneMs"),
            checks.latency("handling", done.withColumn("zero", f.lit(0)), "zero", "costMs"),
        ]
    finally:
        records.unpersist()
