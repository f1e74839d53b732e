"""Topics into a lake: exactly once, resumable, with a manifest of what every batch covers.

A run reads from where the manifests end up to where the queues end now, writes one batch of Parquet
files and commits its manifest. Killed at any instant, it leaves at most files that do not count,
and the next run replaces them. So the lake itself is the checkpoint.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketpost.errors import ClientError, ConfigError
from rocketpost.model.names import group_problem
from rocketpost.spark import plan
from rocketpost.spark.lake import Batch, Flaw, Lake
from rocketpost.spark.link import Link
from rocketpost.spark.options import SourceOptions, replaced
from rocketpost.spark.plan import Bounds, Offsets, QueueKey, Range

logger = logging.getLogger(__name__)

_COMPACTED_MIN: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveConfig:
    """What is archived, and where to.

    Attributes:
        source: Name servers and topics.
        lake: A directory, or a URI that Arrow and Spark can open.
        offsets_max: How many messages one batch has at most.
        allow_loss: Whether to go on if messages were deleted before they were archived.
        hold: A group by which brokers keep what is not archived yet; none if empty.
    """

    source: SourceOptions
    lake: str
    offsets_max: int | None = None
    allow_loss: bool = False
    hold: str = ""

    def __post_init__(self) -> None:
        if not self.lake:
            raise ConfigError("the lake is required: where archived messages go")
        if self.hold and (problem := group_problem(self.hold)):
            raise ConfigError(f"the group {self.hold!r} cannot hold: {problem}")


@dataclass(slots=True)
class ArchiveReport:
    """What a run did."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    queues: dict[QueueKey, Range] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    def add(self, batch: Batch) -> None:
        """Count a batch in."""
        self.batches += 1
        self.rows += batch.rows
        self.bytes += sum(file.bytes for file in batch.files)
        self.lost += batch.lost
        self._extend(batch.ranges)

    def join(self, other: ArchiveReport) -> None:
        """Count in what a later run did."""
        self.batches += other.batches
        self.rows += other.rows
        self.bytes += other.bytes
        self.lost += other.lost
        self._extend(other.queues.values())

    def _extend(self, pieces: Iterable[Range]) -> None:
        for piece in pieces:
            known = self.queues.get(piece.queue, piece)
            self.queues[piece.queue] = Range(piece.queue, known.start, piece.end)


def planned(config: ArchiveConfig) -> tuple[list[Range], list[str]]:
    """Return what the next batch would archive, and what of it is gone already.

    Raises:
        ClientError: Messages are gone and that is not allowed.
    """
    lake = Lake(config.lake)
    with Link(config.source) as link:
        bounds = link.bounds(link.queues())
    start = _starts(lake.watermark(), bounds)
    ends = {queue: bound.end for queue, bound in bounds.items()}
    end = plan.admitted(start, ends, config.offsets_max)
    pieces, losses = plan.ranges(start, end, bounds)
    lost = [loss.text for loss in losses]
    if lost and not config.allow_loss:
        raise ClientError(
            f"messages were deleted before they were archived: {lost[0]}"
            + (f" (and {len(lost) - 1} queues more)" if len(lost) > 1 else "")
            + "; --allow-loss archives the rest and notes it in the manifest"
        )
    return pieces, lost


def archive_once(spark: SparkSession, config: ArchiveConfig) -> Batch | None:
    """Archive one batch; None if there is nothing new."""
    pieces, lost = planned(config)
    if not pieces:
        return None
    lake = Lake(config.lake)
    number = lake.next_number()
    lake.discard(number)
    frame = _frame(spark, config.source, pieces)
    _write(frame.withColumn("date", f.to_date("storeTimestamp")), lake, number)
    files = lake.written(number)
    rows = spark.read.parquet(lake.batch_uri(number)).count() if files else 0
    covered = sum(piece.length for piece in pieces)
    is_filtered = config.source.expression != "*"
    if rows != covered and not is_filtered:
        raise ClientError(
            f"{rows} messages were read where {covered} offsets were wanted; nothing was archived"
        )
    batch = Batch(
        number=number,
        ranges=_with_losses(pieces, lake.watermark()),
        rows=rows,
        files=files,
        created_ms=int(time.time() * 1000),
        lost=lost,
    )
    lake.commit(batch)
    logger.info("archived: batch=%s rows=%s", number, rows)
    return batch


def archive(
    spark: SparkSession,
    config: ArchiveConfig,
    report: ArchiveReport | None = None,
    *,
    on_batch: Callable[[int, int], None] = lambda done, rest: None,
    is_over: Callable[[], bool] = lambda: False,
) -> ArchiveReport:
    """Archive what is there now, in as many batches as that takes; what comes meanwhile waits.

    Args:
        spark: The session.
        config: What is archived.
        report: Where every batch is counted in, for those who want to know even if a later one
            fails.
        on_batch: Told before the first batch and after every one how many messages are archived,
            and how many are still to be.
        is_over: Asked before every batch whether to leave it at that.
    """
    report = ArchiveReport() if report is None else report
    hold(config)
    target = _ends(config)
    while rest := _rest(target, Lake(config.lake).watermark()):
        on_batch(report.rows, rest)
        batch = None if is_over() else archive_once(spark, config)
        if batch is None:
            break
        hold(config)
        report.add(batch)
    on_batch(report.rows, 0)
    return report


def hold(config: ArchiveConfig) -> None:
    """Have brokers keep what the lake does not have yet, if that is wished."""
    if not config.hold:
        return
    with Link(replaced(config.source, group=config.hold)) as link:
        queues = link.queues()
        link.hold(config.hold, queues)
        link.commit(_starts(Lake(config.lake).watermark(), link.bounds(queues)))


def verify(spark: SparkSession, lake_uri: str) -> list[Flaw]:
    """Return what is wrong with a lake: by its manifests, and by counting every offset."""
    lake = Lake(lake_uri)
    flaws = lake.flaws()
    if flaws or not lake.file_uris():
        return flaws
    covered: dict[QueueKey, int] = {}
    for batch in lake.batches():
        for piece in batch.ranges:
            covered[piece.queue] = covered.get(piece.queue, 0) + piece.length
    counted = (
        archived(spark, lake_uri)
        .groupBy("topic", "brokerName", "queueId")
        .agg(f.count("*").alias("rows"), f.count_distinct("queueOffset").alias("offsets"))
        .collect()
    )
    for row in counted:
        queue = QueueKey(row.topic, row.brokerName, row.queueId)
        if row.rows != row.offsets:
            flaws.append(Flaw(f"{queue}: {row.rows - row.offsets} messages are there twice"))
        if row.offsets > covered.get(queue, 0):
            flaws.append(Flaw(f"{queue}: more offsets than its manifests cover"))
    total = sum(batch.rows for batch in lake.batches())
    found = sum(row.rows for row in counted)
    if total != found:
        flaws.append(Flaw(f"the manifests count {total} messages, the files have {found}"))
    return flaws


def compact(spark: SparkSession, lake_uri: str) -> Batch | None:
    """Write all batches anew as one of few large files; None if there are not two.

    Raises:
        ClientError: The rows do not add up; nothing was changed then.
    """
    lake = Lake(lake_uri)
    old = lake.batches()
    if len(old) < _COMPACTED_MIN:
        return None
    number = lake.next_number()
    lake.discard(number)
    frame = archived(spark, lake_uri).withColumn("date", f.to_date("storeTimestamp"))
    ordered = frame.repartition("topic", "date").sortWithinPartitions(
        "topic", "date", "brokerName", "queueId", "queueOffset"
    )
    _write(ordered, lake, number)
    rows = spark.read.parquet(lake.batch_uri(number)).count()
    if rows != sum(batch.rows for batch in old):
        raise ClientError(f"compaction would turn {sum(b.rows for b in old)} messages into {rows}")
    report = ArchiveReport()
    for batch in old:
        report.add(batch)
    new = Batch(
        number=number,
        ranges=[report.queues[queue] for queue in sorted(report.queues)],
        rows=rows,
        files=lake.written(number),
        created_ms=int(time.time() * 1000),
        lost=report.lost,
        replaces=tuple(batch.number for batch in old),
    )
    lake.commit(new)
    for batch in old:
        lake.discard(batch.number)
    return new


def archived(spark: SparkSession, lake_uri: str) -> DataFrame:
    """Return every message that was archived.

    Raises:
        ConfigError: Nothing was archived there.
    """
    lake = Lake(lake_uri)
    files = lake.file_uris()
    if not files:
        raise ConfigError(f"there is nothing archived in {lake_uri}")
    return spark.read.option("basePath", lake.data_uri).parquet(*files).drop("batch", "date")


def _frame(spark: SparkSession, source: SourceOptions, pieces: list[Range]) -> DataFrame:
    """Return the messages of some ranges."""
    queues = plan.nested({piece.queue: 0 for piece in pieces})
    assign = {
        topic: {broker: sorted(map(int, ids)) for broker, ids in brokers.items()}
        for topic, brokers in queues.items()
    }
    exact = replaced(source, topic="", topic_pattern="", assign=json.dumps(assign))
    reader = spark.read.format("rocketmq")
    for key, value in exact.given().items():
        reader = reader.option(key, value)
    start = plan.nested({piece.queue: piece.start for piece in pieces})
    end = plan.nested({piece.queue: piece.end for piece in pieces})
    return (
        reader.option("startingOffsets", json.dumps(start))
        .option("endingOffsets", json.dumps(end))
        .load()
    )


def _write(frame: DataFrame, lake: Lake, number: int) -> None:
    writer = frame.write.partitionBy("topic", "date").option("compression", "zstd")
    writer.mode("overwrite").parquet(lake.batch_uri(number))


def _starts(watermark: Offsets, bounds: dict[QueueKey, Bounds]) -> Offsets:
    return {queue: watermark.get(queue, bound.first) for queue, bound in bounds.items()}


def _with_losses(pieces: list[Range], watermark: Offsets) -> list[Range]:
    """Let ranges begin where the lake ends: what lies between was lost, and is noted so."""
    return [
        Range(piece.queue, watermark.get(piece.queue, piece.start), piece.end) for piece in pieces
    ]


def _ends(config: ArchiveConfig) -> Offsets:
    with Link(config.source) as link:
        return {queue: bound.end for queue, bound in link.bounds(link.queues()).items()}


def _rest(target: Offsets, reached: Offsets) -> int:
    return sum(max(0, end - reached.get(queue, 0)) for queue, end in target.items())
