"""Checks of stored messages alone: queues, times, and the offsets of a group.

A frame of stored messages has: topic, broker, queueId, queueOffset, id, keys, bornMs, storedMs,
bytes, isSound.
"""

from __future__ import annotations

from typing import Final

import msgspec
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as f

from rocketpost.spark.pipelines.audit.findings import QUEUE, make_fault, make_note, place_text
from rocketpost.spark.pipelines.audit.report import (
    EXAMPLES_MAX,
    Finding,
    Hot,
    Latency,
    QueueFacts,
)
from rocketpost.spark.source.plan import Bounds, QueueKey

_HOT_MAX: Final = 10
_ACCURACY: Final = 10_000


def select_between(frame: DataFrame, start_ms: int | None, end_ms: int | None) -> DataFrame:
    """Return the messages from the first stored in a time range to the last, by offset.

    By offset, because a clock that was set back would otherwise look like a gap.
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
        .groupBy(*QUEUE)
        .agg(f.min("queueOffset").alias("low"), f.max("queueOffset").alias("high"))
    )
    joined = frame.join(f.broadcast(ranges), list(QUEUE))
    return joined.filter("queueOffset BETWEEN low AND high").drop("low", "high")


def summarize(frame: DataFrame) -> Row:
    """Return the number, the bytes, and the first and last store time of messages."""
    row = frame.agg(
        f.count("*").alias("messages"),
        f.sum("bytes").alias("bytes"),
        f.min("storedMs").alias("first_ms"),
        f.max("storedMs").alias("last_ms"),
    ).first()
    assert row is not None
    return row


def check_queues(frame: DataFrame) -> tuple[list[QueueFacts], list[Finding]]:
    """Look for gaps, duplicates and disorder in each queue, and for damaged bodies."""
    in_queue = Window.partitionBy(*QUEUE).orderBy("queueOffset", "storedMs")
    before = f.lag("queueOffset").over(in_queue)
    steps = frame.select(
        *QUEUE,
        "queueOffset",
        "bytes",
        "isSound",
        f.greatest(f.col("queueOffset") - before - 1, f.lit(0)).alias("hole"),
        (f.col("queueOffset") == before).alias("isRepeat"),
        (f.col("storedMs") < f.lag("storedMs").over(in_queue)).alias("isStoredEarlier"),
        (f.col("bornMs") < f.lag("bornMs").over(in_queue)).alias("isBornEarlier"),
    )
    rows = steps.groupBy(*QUEUE).agg(
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
    found = rows.orderBy(*QUEUE).collect()
    # Only findings are read a second time, for examples.
    odd = steps.filter(
        "hole > 0 OR isRepeat OR NOT isSound OR isStoredEarlier OR isBornEarlier"
    ).persist()
    try:
        hole = f.format_string("%d missing before %s", "hole", place_text())
        earlier = "than the message before it in its queue"
        findings = [
            make_fault("holes", _sum(found, "holes"), "a queue offset without a message",
                   odd.filter("hole > 0"), hole),
            make_fault("repeats", _sum(found, "repeats"), "a queue offset with two messages",
                   odd.filter("isRepeat"), place_text()),
            make_fault("damaged", _sum(found, "damaged"), "a body that fails its CRC",
                   odd.filter(~f.col("isSound")), place_text()),
            make_note("disorder", _sum(found, "disorder"), f"stored earlier {earlier}",
                  odd.filter("isStoredEarlier"), place_text()),
            make_note("overtaken", _sum(found, "overtaken"), f"born earlier {earlier}",
                  odd.filter("isBornEarlier"), place_text()),
        ]  # fmt: skip
    finally:
        odd.unpersist()
    return [_facts(row) for row in found], findings


def add_progress(
    queues: list[QueueFacts],
    have: dict[QueueKey, Bounds],
    committed: dict[QueueKey, int | None],
) -> tuple[list[QueueFacts], list[Finding]]:
    """Add the offsets of a group, and look for messages deleted before it consumed them."""
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
        Finding("lost", lost_count, True, "deleted before the group reached it",
                tuple(lost[:EXAMPLES_MAX])),
        Finding("waiting", waiting, False, "stored, but not yet reached by the group"),
    ]  # fmt: skip


def find_late(frame: DataFrame, late_ms: int) -> Finding:
    """Look for messages that were stored long after their born time."""
    rows = frame.filter(f.col("storedMs") - f.col("bornMs") > late_ms)
    text = f.format_string("%s: %d ms", place_text(), f.col("storedMs") - f.col("bornMs"))
    meaning = f"stored more than {late_ms} ms after it was born"
    return make_note("late", rows.count(), meaning, rows, text)


def measure_latency(name: str, frame: DataFrame, start: str, end: str) -> Latency | None:
    """Return the durations between two times; None if there are none."""
    ms = f.greatest(f.col(end) - f.col(start), f.lit(0))
    times = frame.filter(f.col(start).isNotNull() & f.col(end).isNotNull()).select(ms.alias("ms"))
    bucket = f.when(f.col("ms") < 1, 0).otherwise(f.floor(f.log2("ms")) + 1).cast("int")
    counts = {
        row.bucket: row["count"] for row in times.groupBy(bucket.alias("bucket")).count().collect()
    }
    if not counts:
        return None
    # Approximate, because exact ones would keep every duration.
    shares = f.array(*map(f.lit, (0.5, 0.95, 0.99)))
    row = times.agg(f.percentile_approx("ms", shares, _ACCURACY), f.max("ms")).first()
    assert row is not None
    buckets = tuple(counts.get(each, 0) for each in range(max(counts) + 1))
    median, p95, p99 = row[0]
    return Latency(name, sum(buckets), median, p95, p99, row[1], buckets)


def find_hot_keys(frame: DataFrame) -> tuple[Hot, ...]:
    """Return the most frequent keys, if any key occurs twice."""
    keys = frame.filter("keys IS NOT NULL").select(f.explode(f.split("keys", " ")).alias("key"))
    rows = keys.groupBy("key").count().filter("count > 1").orderBy(f.desc("count"), "key")
    return tuple(Hot(row.key, row["count"]) for row in rows.limit(_HOT_MAX).collect())


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
