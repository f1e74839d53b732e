"""Stored messages against what others say of them: producers, their tables, and consumers.

Messages are compared by ``id``. If that is their keys and the user has a table of what was
produced, each key is an id: a message with two of them is there for both. Without a table nobody
says which of its keys is an id, so all of them together are one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from rocketpost.model.properties import KEY_SEPARATOR
from rocketpost.spark.pipelines.audit.findings import QUEUE, fault, note, place
from rocketpost.spark.pipelines.audit.report import Finding, QueueFacts


class Produced(NamedTuple):
    """What must be stored.

    Attributes:
        frame: One row with an ``id`` for each message.
        name: What that is, in words.
        by_each_key: Whether ids are keys, of which a message may have several.
    """

    frame: DataFrame
    name: str
    by_each_key: bool = False

    def ids(self, frame: DataFrame) -> DataFrame:
        """Return rows by their ids: none for those without, several for those with several."""
        named = frame.filter("id != ''")
        if not self.by_each_key:
            return named
        return named.withColumn("id", f.explode(f.split("id", KEY_SEPARATOR))).filter("id != ''")


def id_checks(
    frame: DataFrame, identified_by: str, produced: Produced | None = None
) -> list[Finding]:
    """Look for ids that several messages have, and for messages without one.

    Args:
        frame: Stored messages.
        identified_by: By what they are known, in words.
        produced: If each key is an id: which of them are, and how many messages of each there are.
    """
    if produced is not None and produced.by_each_key:
        times = produced.ids(produced.frame).groupBy("id").agg(f.count("*").alias("times"))
        groups = _several(produced.ids(frame)).join(times, "id")
    else:
        groups = _several(frame.filter("id IS NOT NULL")).withColumn("times", f.lit(1))
    groups = groups.filter("places > times").persist()
    try:
        extra = groups.agg(f.coalesce(f.sum(f.col("places") - f.col("times")), f.lit(0))).first()
        assert extra is not None
        twice = f.format_string("%s: %d times, at %s and %s", "id", "places", "one", "other")
        text = f"one more message of the same {identified_by}"
        doubled = fault("duplicated", extra[0], text, groups, twice)
    finally:
        groups.unpersist()
    nameless = frame.filter("id IS NULL")
    count = nameless.count()
    text = f"a message without {identified_by}, which cannot be reconciled"
    return [doubled, note("nameless", count, text, nameless, place())]


def _several(named: DataFrame) -> DataFrame:
    """Return the ids that messages at several places have: id, places, one, other."""
    spot = f.xxhash64(*QUEUE, "queueOffset")
    # Nearly all ids have one place, and numbers tell that for less than texts do.
    several = named.groupBy("id").agg(f.min(spot).alias("low"), f.max(spot).alias("high"))
    return (
        named.join(several.filter("low != high").select("id"), "id", "left_semi")
        .groupBy("id")
        .agg(
            f.count_distinct(*QUEUE, "queueOffset").alias("places"),
            f.min(place()).alias("one"),
            f.max(place()).alias("other"),
        )
    )


def reconciled(
    frame: DataFrame,
    produced: Produced,
    *,
    everywhere: DataFrame | None = None,
    not_due: Callable[[], DataFrame | None] = lambda: None,
) -> list[Finding]:
    """Compare what is stored with what was produced; what was produced without an id cannot be.

    Args:
        frame: Stored messages, maybe only those of some time.
        produced: What must be stored.
        everywhere: All stored messages, if ``frame`` has only some: what is there is not missing.
        not_due: Returns what brokers keep until it is due; asked only if something is missing.
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
        text = f"in {produced.name}, and kept by a broker until it is due"
        findings = [note("notDue", later.count(), text, later, f.col("id"))]
    text = f"in {produced.name}, but not stored"
    try:
        return [
            fault("missing", missing.count(), text, missing, f.col("id")),
            *findings,
            _unexpected(have, wanted, produced),
        ]
    finally:
        for step in reversed(steps):
            step.unpersist()


def _unexpected(have: DataFrame, wanted: DataFrame, produced: Produced) -> Finding:
    """Look for messages none of whose ids was produced."""
    if produced.by_each_key:
        known = produced.ids(have).join(wanted, "id", "left_semi")
        strange = have.join(known, [*QUEUE, "queueOffset"], "left_anti")
    else:
        strange = have.join(wanted, "id", "left_anti")
    where = f.format_string("%s at %s", "id", place())
    text = f"stored, but not in {produced.name}"
    return note("unexpected", strange.count(), text, strange, where)


def handling(frame: DataFrame, done: DataFrame, queues: list[QueueFacts] | None) -> list[Finding]:
    """Compare what is stored with what consumers said they handled.

    Args:
        frame: Stored messages.
        done: What was handled: id, by.
        queues: With the progress of a group: only what lies behind it must have been handled.
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
    # A message that is stored twice is handled twice: that is not the consumer's doing.
    once = have.groupBy("id").agg(f.count("*").alias("stored"))
    repeated = times.join(once, "id").filter("count > stored").persist()
    where = f.format_string("%s at %s", "id", place())
    again = f.format_string("%s: %d times by %s", "id", "count", "by")
    text = "passed by the group, but no trace says that it was handled"
    if queues is None:
        text = "stored, but no trace says that it was handled"
    try:
        return [
            fault("unhandled", skipped.count(), text, skipped, where),
            fault("handledAgain", repeated.count(), "handled well more often than stored",
                  repeated, again),
        ]  # fmt: skip
    finally:
        skipped.unpersist()
        repeated.unpersist()
