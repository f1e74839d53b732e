"""Audit: compares produced, stored and consumed messages.

Finds missing, duplicated, late and unordered messages. Stored messages are those of a topic at its
brokers, of a lake, or of a store directory. Produced messages are in a table of the user, or in the
traces of producers. Consumed messages follow from the offsets of a group and the traces of
consumers. Messages are identified by their unique ids or by their keys.

While clients are active, sources are read in an order that avoids false findings: produced messages
before stored ones, and the offsets of a group before its traces. So a message that is stored a
moment later is not reported as missing.
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
from rocketpost.spark.pipelines.audit.delays import read_not_due
from rocketpost.spark.pipelines.audit.reconciliation import Produced
from rocketpost.spark.pipelines.audit.report import AuditReport, Finding, Latency, QueueFacts
from rocketpost.spark.pipelines.audit.sources import (
    read_all_times,
    read_bounds,
    read_produced,
    read_stored,
)
from rocketpost.spark.pipelines.audit.traces import read_traces, select_handled, select_sent
from rocketpost.spark.pipelines.timeline import timeline
from rocketpost.spark.source.plan import Bounds, QueueKey

__all__ = ["KEYS", "UNIQUE_KEY", "AuditConfig", "audit", "bounds"]


class _Claims(NamedTuple):
    """Claims of producers and consumers, read before the stored messages."""

    table: Produced | None
    records: DataFrame | None
    """The records of the trace topic."""
    have: dict[QueueKey, Bounds]
    committed: dict[QueueKey, int | None]
    at_ms: int
    """The time of reading."""


def audit(spark: SparkSession, config: AuditConfig) -> AuditReport:
    """Compare produced, stored and consumed messages.

    Raises:
        ConfigError: The table of produced messages has no column with ids, a lake or store has no
            such topic, or no broker knows the group.
        ClientError: Brokers do not answer.
        PySparkException: A source cannot be read.
    """
    read_stored(spark, config)  # refuses a wrong name before anything is read
    with _read_claims(spark, config) as told:
        frame = read_stored(spark, config).persist()
        try:
            return _audit_stored(spark, frame, told, config)
        finally:
            frame.unpersist()


@contextlib.contextmanager
def _read_claims(spark: SparkSession, config: AuditConfig) -> Iterator[_Claims]:
    table = records = None
    if config.produced:
        is_each = config.identified_by == KEYS
        table = Produced(read_produced(spark, config), "the table of produced ones", is_each)
    at_ms = int(time.time() * 1000)
    have, committed = read_bounds(config) if config.group else ({}, {})
    if config.trace_topic:
        records = read_traces(spark, config.name_servers, config.trace_topic).persist()
        records.count()  # now, and not when it is first used
    try:
        yield _Claims(table, records, have, committed, at_ms)
    finally:
        if records is not None:
            records.unpersist()


def _audit_stored(
    spark: SparkSession, frame: DataFrame, told: _Claims, config: AuditConfig
) -> AuditReport:
    overview = checks.summarize(frame)
    queues, findings = checks.check_queues(frame)
    findings += reconciliation.check_ids(frame, config.identified_by, told.table)
    latencies = [checks.measure_latency("born to stored", frame, "bornMs", "storedMs")]
    if config.late_ms is not None:
        findings.append(checks.find_late(frame, config.late_ms))
    if config.group:
        queues, behind = checks.add_progress(queues, told.have, told.committed)
        findings += behind
    if told.table is not None:
        findings += _compare_with_table(spark, frame, told.table, told, config)
    if told.records is not None:
        more, timed = _compare_with_traces(spark, frame, told, config, queues)
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
        hot_keys=checks.find_hot_keys(frame),
        timeline=timeline(frame, "storedMs", overview.first_ms, overview.last_ms),
    )


def _compare_with_table(
    spark: SparkSession, frame: DataFrame, made: Produced, told: _Claims, config: AuditConfig
) -> list[Finding]:
    return reconciliation.compare_produced(
        frame,
        made,
        everywhere=read_all_times(spark, config),
        not_due=partial(read_not_due, spark, config, told.at_ms),
    )


def _compare_with_traces(
    spark: SparkSession,
    frame: DataFrame,
    told: _Claims,
    config: AuditConfig,
    queues: list[QueueFacts],
) -> tuple[list[Finding], list[Latency | None]]:
    """Compare stored messages with the traces of producers and consumers."""
    assert told.records is not None
    by = f.col(config.identified_by).alias("id")
    pubs = select_sent(told.records, config.topics).filter(_is_within(config))
    pubs = pubs.select(by, "timeMs", "costMs")
    done = select_handled(told.records, config.group).select(by, "doneMs", "costMs", "by")
    findings = []
    if told.table is None:
        findings = _compare_with_table(
            spark, frame, Produced(pubs, "the send traces"), told, config
        )
    findings += reconciliation.compare_handled(frame, done, queues if config.group else None)
    ends = frame.join(done, "id")
    return findings, [
        checks.measure_latency("send", pubs.withColumn("zero", f.lit(0)), "zero", "costMs"),
        checks.measure_latency("stored to handled", ends, "storedMs", "doneMs"),
        checks.measure_latency("handling", done.withColumn("zero", f.lit(0)), "zero", "costMs"),
    ]


def _is_within(config: AuditConfig) -> Column:
    """Return whether a message was sent within the times of an audit."""
    is_within = f.lit(True)
    if config.start_ms is not None:
        is_within = is_within & (f.col("timeMs") >= config.start_ms)
    if config.end_ms is not None:
        is_within = is_within & (f.col("timeMs") < config.end_ms)
    return is_within
