"""The checks of an audit, each over frames that are as small as it allows.

A frame of stored messages has: topic, broker, queueId, queueOffset, id, keys, bornMs, storedMs,
bytes, isSound. Other frames have an ``id``.
"""

from __future__ import annotations

from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as f

from rocketpost.spark.pipelines.audit_report import (
    EXAMPLES_MAX,
    Finding,
    Hot,
    Latency,
    QueueFacts,
)
from rocketpost.spark.plan import Bounds, QueueKey

_QUEUE: Final = ("topic", "broker", "queueId")
_HOT_MAX: Final = 10
_ACCURACY: Final = 10_000


def between(frame: DataFrame, start_ms: int | None, end_ms: int | None) -> DataFrame:
    """Return the messages from the first stored in a time range to the last, by offset.

    By offset, since a clock that was set back would else look like a hole.
    """
    if start_ms is None and end_ms is None:
        return frame
    is_inside = f.lit(True)
    if start_ms is not None:
        is_inside = is_inside & (f.col("storedMs") >= start_ms)
    if end_ms is not None:
        is_inside = is_inside & (f.col("storedMs") < end_ms)
    ranges = (
        frame.filter(is_inside)
        .groupBy(*_QUEUE)
        .agg(f.min("queueOffset").alias("low"), f.max("queueOffset").alias("high"))
    )
    joined = frame.join(f.broadcast(ranges), list(_QUEUE))
    return joined.filter("queueOffset BETWEEN low AND high").drop("low", "high")


def overview(frame: DataFrame) -> Row:
    """Return how many messages there are, of how many bytes, from when to when."""
    row = frame.agg(
        f.count("*").alias("messages"),
        f.sum("bytes").alias("bytes"),
        f.min("storedMs").alias("first_ms"),
        f.max("storedMs").alias("last_ms"),
    ).first()
    assert row is not None
    return row


def queue_checks(frame: DataFrame) -> tuple[list[QueueFacts], list[Finding]]:
    """Look for holes, repeats and disorder in each queue, and for damaged bodies."""
    in_queue = Window.partitionBy(*_QUEUE).orderBy("queueOffset", "storedMs")
    before = f.lag("queueOffset").over(in_queue)
    steps = frame.select(
        *_QUEUE,
        "queueOffset",
        "bytes",
        "isSound",
        f.greatest(f.col("queueOffset") - before - 1, f.lit(0)).alias("hole"),
        (f.col("queueOffset") == before).alias("isRepeat"),
        (f.col("storedMs") < f.lag("storedMs").over(in_queue)).alias("isStoredEarlier"),
        (f.col("bornMs") < f.lag("bornMs").over(in_queue)).alias("isBornEarlier"),
    )
    rows = steps.groupBy(*_QUEUE).agg(
        f.count("*").alias("messages"),
        f.sum("bytes").alias("bytes"),
        f.min("queueOffset").alias("first"),
        f.max("queueOffset").alias("last"),
        f.sum("hole").alias("holes"),
        f.count_if("isRepeat").alias("repeats"),
        f.count_if("isStoredEarlier").alias("disorder"),
        f.count_if("isBornEarlier").alias("overtaken"),
        f.count_if(~f.col("isSound")).alias("damaged"),
    )
    found = rows.orderBy(*_QUEUE).collect()
    # Only what is odd is looked at a second time, for examples.
    odd = steps.filter(
        "hole > 0 OR isRepeat OR NOT isSound OR isStoredEarlier OR isBornEarlier"
    ).persist()
    try:
        hole = f.format_string("%d missing before %s", "hole", place())
        earlier = "than the message before it in its queue"
        findings = [
            _fault("holes", _sum(found, "holes"), "a queue offset without a message",
                   odd.filter("hole > 0"), hole),
            _fault("repeats", _sum(found, "repeats"), "a queue offset with two messages",
                   odd.filter("isRepeat"), place()),
            _fault("damaged", _sum(found, "damaged"), "a body that fails its CRC",
                   odd.filter(~f.col("isSound")), place()),
            _note("disorder", _sum(found, "disorder"), f"stored earlier {earlier}",
                  odd.filter("isStoredEarlier"), place()),
            _note("overtaken", _sum(found, "overtaken"), f"born earlier {earlier}",
                  odd.filter("isBornEarlier"), place()),
        ]  # fmt: skip
    finally:
        odd.unpersist()
    return [_facts(row) for row in found], findings


def id_checks(frame: DataFrame, identified_by: str) -> list[Finding]:
    """Look for ids that several messages have, and for messages without one."""
    named = frame.filter("id IS NOT NULL")
    spot = f.xxhash64(*_QUEUE, "queueOffset")
    # Nearly all ids have one place, and numbers tell that for less than texts do.
    several = named.groupBy("id").agg(f.min(spot).alias("low"), f.max(spot).alias("high"))
    groups = (
        named.join(several.filter("low != high").select("id"), "id", "left_semi")
        .groupBy("id")
        .agg(
            f.count_distinct(*_QUEUE, "queueOffset").alias("places"),
            f.min(place()).alias("one"),
            f.max(place()).alias("other"),
        )
        .filter("places > 1")
        .persist()
    )
    try:
        extra = groups.agg(f.coalesce(f.sum(f.col("places") - 1), f.lit(0))).first()
        assert extra is not None
        twice = f.format_string("%s: %d times, at %s and %s", "id", "places", "one", "other")
        text = f"one more message of the same {identified_by}"
        doubled = _fault("duplicated", extra[0], text, groups, twice)
    finally:
        groups.unpersist()
    nameless = frame.filter("id IS NULL")
    count = nameless.count()
    text = f"a message without {identified_by}, which cannot be reconciled"
    return [doubled, _note("nameless", count, text, nameless, place())]


def reconciled(
    frame: DataFrame, produced: DataFrame, of: str, *, everywhere: DataFrame | None = None
) -> list[Finding]:
    """Compare what is stored with what was produced; what was produced without an id cannot be.

    Args:
        frame: Stored messages, maybe only those of some time.
        produced: What must be stored: id.
        of: What that is, in words.
        everywhere: All stored messages, if ``frame`` has only some: what is there is not missing.
    """
    wanted = produced.select("id").filter("id != ''").distinct()
    have = frame.select("id", *_QUEUE, "queueOffset").filter("id IS NOT NULL")
    unseen = missing = wanted.join(have, "id", "left_anti").persist()
    if everywhere is not None and not unseen.isEmpty():
        missing = unseen.join(everywhere.select("id"), "id", "left_anti").persist()
    strange = have.join(wanted, "id", "left_anti")
    where = f.format_string("%s at %s", "id", place())
    try:
        return [
            _fault("missing", missing.count(), f"in {of}, but not stored", missing, f.col("id")),
            _note("unexpected", strange.count(), f"stored, but not in {of}", strange, where),
        ]  # fmt: skip
    finally:
        missing.unpersist()
        unseen.unpersist()


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
        passed = have.join(f.broadcast(ends), list(_QUEUE)).filter("queueOffset < committed")
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
            _fault("unhandled", skipped.count(), text, skipped, where),
            _fault("handledAgain", repeated.count(), "handled well more often than stored",
                   repeated, again),
        ]  # fmt: skip
    finally:
        skipped.unpersist()
        repeated.unpersist()


def progress(
    queues: list[QueueFacts],
    have: dict[QueueKey, Bounds],
    committed: dict[QueueKey, int | None],
) -> tuple[list[QueueFacts], list[Finding]]:
    """Add where a group stands, and look for what was deleted before it got there."""
    told, waiting, lost = [], 0, []
    lost_count = 0
    for key, bound in have.items():
        at = committed.get(key)
        waiting += bound.end - max(bound.first, at or 0)
        if at is not None and at < bound.first:
            lost_count += bound.first - at
            lost.append(f"{key}: offsets {at} to {bound.first - 1}")
    for queue in queues:
        key = QueueKey(queue.topic, queue.broker, queue.queue_id)
        at = committed.get(key)
        lag = have[key].end - max(at or 0, have[key].first) if key in have else None
        told.append(msgspec.structs.replace(queue, committed=at, lag=lag))
    return told, [
        Finding("lost", lost_count, True, "deleted before the group got to it",
                tuple(lost[:EXAMPLES_MAX])),
        Finding("waiting", waiting, False, "stored, and the group has yet to get to it"),
    ]  # fmt: skip


def late(frame: DataFrame, late_ms: int) -> Finding:
    """Look for messages that were stored long after they were born."""
    rows = frame.filter(f.col("storedMs") - f.col("bornMs") > late_ms)
    text = f.format_string("%s: %d ms", place(), f.col("storedMs") - f.col("bornMs"))
    meaning = f"stored more than {late_ms} ms after it was born"
    return _note("late", rows.count(), meaning, rows, text)


def latency(name: str, frame: DataFrame, start: str, end: str) -> Latency | None:
    """Return how long it took from one time to another; None if that never happened."""
    ms = f.greatest(f.col(end) - f.col(start), f.lit(0))
    times = frame.filter(f.col(start).isNotNull() & f.col(end).isNotNull()).select(ms.alias("ms"))
    bucket = f.when(f.col("ms") < 1, 0).otherwise(f.floor(f.log2("ms")) + 1).cast("int")
    counts = {
        row.bucket: row["count"] for row in times.groupBy(bucket.alias("bucket")).count().collect()
    }
    if not counts:
        return None
    # Not exact ones: these would keep every duration that there is.
    shares = f.array(*map(f.lit, (0.5, 0.95, 0.99)))
    row = times.agg(f.percentile_approx("ms", shares, _ACCURACY), f.max("ms")).first()
    assert row is not None
    buckets = tuple(counts.get(each, 0) for each in range(max(counts) + 1))
    median, p95, p99 = row[0]
    return Latency(name, sum(buckets), median, p95, p99, row[1], buckets)


def hot_keys(frame: DataFrame) -> tuple[Hot, ...]:
    """Return the keys that most messages have, if any key has two."""
    keys = frame.filter("keys IS NOT NULL").select(f.explode(f.split("keys", " ")).alias("key"))
    rows = keys.groupBy("key").count().filter("count > 1").orderBy(f.desc("count"), "key")
    return tuple(Hot(row.key, row["count"]) for row in rows.limit(_HOT_MAX).collect())


def place() -> Column:
    """Return where a message is, in words."""
    return f.concat_ws("/", *_QUEUE, "queueOffset")


def _facts(row: Row) -> QueueFacts:
    return QueueFacts(
        topic=row.topic,
        broker=row.broker,
        queue_id=row.queueId,
        messages=row.messages,
        stored_bytes=row.bytes,
        first=row["first"],
        last=row["last"],
        holes=row.holes or 0,
        repeats=row.repeats,
        disorder=row.disorder,
    )


def _sum(rows: list[Row], name: str) -> int:
    return sum(row[name] or 0 for row in rows)


def _fault(name: str, count: int, meaning: str, rows: DataFrame, text: Column) -> Finding:
    return Finding(name, count, True, meaning, _some(rows, text) if count else ())


def _note(name: str, count: int, meaning: str, rows: DataFrame, text: Column) -> Finding:
    return Finding(name, count, False, meaning, _some(rows, text) if count else ())


def _some(rows: DataFrame, text: Column) -> tuple[str, ...]:
    return tuple(row[0] for row in rows.select(text).limit(EXAMPLES_MAX).collect())
