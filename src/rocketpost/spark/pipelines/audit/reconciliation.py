"""Comparison of stored messages with tables of produced messages, and with traces.

Messages are compared by ``id``. If the ids are keys and the user has a table of produced messages,
each key is an id: a message with two keys counts for both. Without a table it is unknown which key
is an id, so all keys together are one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from rocketpost.model.properties import KEY_SEPARATOR
from rocketpost.spark.pipelines.audit.findings import QUEUE, make_fault, make_note, place_text
from rocketpost.spark.pipelines.audit.report import Finding, QueueFacts


class Produced(NamedTuple):
    """The messages that must be stored.

    Attributes:
        frame: One row with an ``id`` for each message.
        name: The name of the source.
        by_each_key: Whether ids are keys, of which a message may have several.
    """

    frame: DataFrame
    name: str
    by_each_key: bool = False

    def ids(self, frame: DataFrame) -> DataFrame:
        """Return a row for each id of each row; none for rows without ids."""
        named = frame.filter("id != ''")
        if not self.by_each_key:
            return named
        return named.withColumn("id", f.explode(f.split("id", KEY_SEPARATOR))).filter("id != ''")


def check_ids(
    frame: DataFrame, identified_by: str, produced: Produced | None = None
) -> list[Finding]:
    """Look for ids that several messages have, and for messages without one.

    Args:
        frame: Stored messages.
        identified_by: The name of the ids.
        produced: If each key is an id: the ids, and the number of messages of each.
    """
    if produced is not None and produced.by_each_key:
        times = produced.ids(produced.frame).groupBy("id").agg(f.count("*").alias("times"))
        groups = _find_shared_ids(produced.ids(frame)).join(times, "id")
    else:
        groups = _find_shared_ids(frame.filter("id IS NOT NULL")).withColumn("times", f.lit(1))
    groups = groups.filter("places > times").persist()
    try:
        extra = groups.agg(f.coalesce(f.sum(f.col("places") - f.col("times")), f.lit(0))).first()
        assert extra is not None
        twice = f.format_string("%s: %d times, at %s and %s", "id", "places", "one", "other")
        text = f"another message with the same {identified_by}"
        doubled = make_fault("duplicated", extra[0], text, groups, twice)
    finally:
        groups.unpersist()
    nameless = frame.filter("id IS NULL")
    count = nameless.count()
    text = f"a message without {identified_by}, which cannot be reconciled"
    return [doubled, make_note("nameless", count, text, nameless, place_text())]


def _find_shared_ids(named: DataFrame) -> DataFrame:
    """Return the ids that messages at several places have: id, places, one, other."""
    spot = f.xxhash64(*QUEUE, "queueOffset")
    # Nearly all ids have one message, and numbers are cheaper to compare than texts.
    several = named.groupBy("id").agg(f.min(spot).alias("low"), f.max(spot).alias("high"))
    return (
        named.join(several.filter("low != high").select("id"), "id", "left_semi")
        .groupBy("id")
        .agg(
            f.count_distinct(*QUEUE, "queueOffset").alias("places"),
            f.min(place_text()).alias("one"),
            f.max(place_text()).alias("other"),
        )
    )


def compare_produced(
    frame: DataFrame,
    produced: Produced,
    *,
    everywhere: DataFrame | None = None,
    not_due: Callable[[], DataFrame | None] = lambda: None,
) -> list[Finding]:
    """Compare stored with produced messages; produced messages without an id are skipped.

    Args:
        frame: Stored messages, maybe only those of some time.
        produced: The messages that must be stored.
        everywhere: All stored messages, if ``frame`` has only some: they are not missing.
        not_due: Returns messages that are not due; called only if something is missing.
    """
    wanted = produced.ids(produced.frame.select("id")).select("id").distinct()
    have = frame.select("id", *QUEUE, "queueOffset").filter("id IS NOT NULL")
    missing = wanted.join(produced.ids(have), "id", "left_anti").persist()
    steps = [missing]
    if everywhere is not None and not missing.isEmpty():
        missing = missing.join(produced.ids(everywhere).select("id"), "id", "left_anti").persist()
        steps.append(missing)
    kept = not_due() if not missing.isEmpty() else None
    findings = []
    if kept is not None:
        waiting = produced.ids(kept).select("id").distinct()
        later = missing.join(waiting, "id", "left_semi").persist()
        missing = missing.join(waiting, "id", "left_anti").persist()
        steps += [later, missing]
        text = f"in {produced.name}, and held by a broker until it is due"
        findings = [make_note("notDue", later.count(), text, later, f.col("id"))]
    text = f"in {produced.name}, but not stored"
    try:
        return [
            make_fault("missing", missing.count(), text, missing, f.col("id")),
            *findings,
            _find_unexpected(have, wanted, produced),
        ]
    finally:
        for step in reversed(steps):
            step.unpersist()


def _find_unexpected(have: DataFrame, wanted: DataFrame, produced: Produced) -> Finding:
    """Look for messages of which no id was produced."""
    if produced.by_each_key:
        known = produced.ids(have).join(wanted, "id", "left_semi")
        strange = have.join(known, [*QUEUE, "queueOffset"], "left_anti")
    else:
        strange = have.join(wanted, "id", "left_anti")
    where = f.format_string("%s at %s", "id", place_text())
    text = f"stored, but not in {produced.name}"
    return make_note("unexpected", strange.count(), text, strange, where)


def compare_handled(
    frame: DataFrame, done: DataFrame, queues: list[QueueFacts] | None
) -> list[Finding]:
    """Compare stored messages with those that consumers report as handled.

    Args:
        frame: Stored messages.
        done: Handled messages: id, by.
        queues: The progress of a group: only earlier messages must have been handled.
    """
    have = frame.filter("id IS NOT NULL")
    behind = have
    if queues is not None:
        ends = frame.sparkSession.createDataFrame(
            [(each.topic, each.broker, each.queue_id, each.committed or 0) for each in queues],
            "topic string, broker string, queueId int, committed bigint",
        )
        passed = have.join(f.broadcast(ends), list(QUEUE)).filter("queueOffset < committed")
        behind = passed.drop("committed")
    skipped = behind.join(done, "id", "left_anti").persist()
    times = done.groupBy("id", "by").count().filter("count > 1")
    # A message that is stored twice is handled twice: that is not a fault of the consumer.
    once = have.groupBy("id").agg(f.count("*").alias("stored"))
    repeated = times.join(once, "id").filter("count > stored").persist()
    where = f.format_string("%s at %s", "id", place_text())
    again = f.format_string("%s: %d times by %s", "id", "count", "by")
    text = "passed by the group, but no trace says that it was handled"
    if queues is None:
        text = "stored, but no trace says that it was handled"
    try:
        return [
            make_fault("unhandled", skipped.count(), text, skipped, where),
            make_fault("handledAgain", repeated.count(),
                       "handled successfully more often than stored", repeated, again),
        ]  # fmt: skip
    finally:
        skipped.unpersist()
        repeated.unpersist()
