"""Produced against stored against consumed: what is missing, doubled, late or out of order.

What is stored is a topic at its brokers, a lake, or a store directory. What was produced is a table
of the user's, or what producers wrote to a trace topic. What was consumed is where a group stands,
and what consumers wrote to a trace topic. Messages are known by their unique id, or by their keys.

While clients are at work each is read in the order in which it came to be the last: what was
produced before what is stored, and where a group stood before what it says of it. So nothing is
missing that was only stored a moment later.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketpost.spark.pipelines.audit import checks, reconciliation
from rocketpost.spark.pipelines.audit.config import KEYS, UNIQUE_KEY, AuditConfig
from rocketpost.spark.pipelines.audit.delays import delayed
from rocketpost.spark.pipelines.audit.reconciliation import Produced
from rocketpost.spark.pipelines.audit.report import AuditReport, Finding, Latency, QueueFacts
from rocketpost.spark.pipelines.audit.sources import bounds, everywhere, produced, stored
from rocketpost.spark.pipelines.audit.traces import handled, sent, traces
from rocketpost.spark.pipelines.timeline import timeline
from rocketpost.spark.source.plan import Bounds, QueueKey

__all__ = ["KEYS", "UNIQUE_KEY", "AuditConfig", "audit", "bounds"]


class _Told(NamedTuple):
    """What others say of the messages, read before these."""

    table: Produced | None
    records: DataFrame | None
    """The records of the trace topic."""
    have: dict[QueueKey, Bounds]
    committed: dict[QueueKey, int | None]
    at_ms: int
    """When it was read."""


def audit(spark: SparkSession, config: AuditConfig) -> AuditReport:
    """Compare what was produced, what is stored and what was consumed.

    Raises:
        ConfigError: The table of produced messages has no column with ids, a lake or store has no
            such topic, or no broker knows the group.
        ClientError: Brokers cannot be asked.
        PySparkException: Something cannot be read.
    """
    stored(spark, config)  # which refuses a wrong name before anything is read
    with _told(spark, config) as told:
        frame = stored(spark, config).persist()
        try:
            return _audited(spark, frame, told, config)
        finally:
            frame.unpersist()


@contextlib.contextmanager
def _told(spark: SparkSession, config: AuditConfig) -> Iterator[_Told]:
    table = records = None
    if config.produced:
        is_each = config.identified_by == KEYS
        table = Produced(produced(spark, config), "the table of produced ones", is_each)
    at_ms = int(time.time() * 1000)
    have, committed = bounds(config) if config.group else ({}, {})
    if config.trace_topic:
        records = traces(spark, config.name_servers, config.trace_topic).persist()
        records.count()  # now, and not when somebody needs it
    try:
        yield _Told(table, records, have, committed, at_ms)
    finally:
        if records is not None:
            records.unpersist()


def _audited(
    spark: SparkSession, frame: DataFrame, told: _Told, config: AuditConfig
) -> AuditReport:
    overview = checks.overview(frame)
    queues, findings = checks.queue_checks(frame)
    findings += reconciliation.id_checks(frame, config.identified_by, told.table)
    latencies = [checks.latency("born to stored", frame, "bornMs", "storedMs")]
    if config.late_ms is not None:
        findings.append(checks.late(frame, config.late_ms))
    if config.group:
        queues, behind = checks.progress(queues, told.have, told.committed)
        findings += behind
    if told.table is not None:
        findings += _reconciled(spark, frame, told.table, told, config)
    if told.records is not None:
        more, timed = _traced(spark, frame, told, config, queues)
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


def _reconciled(
    spark: SparkSession, frame: DataFrame, made: Produced, told: _Told, config: AuditConfig
) -> list[Finding]:
    return reconciliation.reconciled(
        frame,
        made,
        everywhere=everywhere(spark, config),
        not_due=partial(delayed, spark, config, told.at_ms),
    )


def _traced(
    spark: SparkSession,
    frame: DataFrame,
    told: _Told,
    config: AuditConfig,
    queues: list[QueueFacts],
) -> tuple[list[Finding], list[Latency | None]]:
    """Compare with what producers and consumers wrote about their work."""
    assert told.records is not None
    by = f.col(config.identified_by).alias("id")
    pubs = sent(told.records, config.topics).filter(_is_within(config))
    pubs = pubs.select(by, "timeMs", "costMs")
    done = handled(told.records, config.group).select(by, "doneMs", "costMs", "by")
    findings = []
    if told.table is None:
        findings = _reconciled(spark, frame, Produced(pubs, "the send traces"), told, config)
    findings += reconciliation.handling(frame, done, queues if config.group else None)
    ends = frame.join(done, "id")
    return findings, [
        checks.latency("send", pubs.withColumn("zero", f.lit(0)), "zero", "costMs"),
        checks.latency("stored to handled", ends, "storedMs", "doneMs"),
        checks.latency("handling", done.withColumn("zero", f.lit(0)), "zero", "costMs"),
    ]


def _is_within(config: AuditConfig) -> Column:
    """Return whether something was sent in the times of an audit."""
    is_within = f.lit(True)
    if config.start_ms is not None:
        is_within = is_within & (f.col("timeMs") >= config.start_ms)
    if config.end_ms is not None:
        is_within = is_within & (f.col("timeMs") < config.end_ms)
    return is_within
