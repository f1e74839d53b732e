"""Archive of topics in a lake: exactly once, resumable, with a manifest of every batch.

A run reads from the end of the manifests to the present end of the queues, writes one batch of
Parquet files and commits its manifest. If it is killed at any moment, it leaves only files that are
not valid, which the next run deletes. So the lake itself is the checkpoint. Runs that write to the
same lake take turns, batch by batch.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketpost.errors import ClientError, ConfigError, StoreError
from rocketpost.model.names import group_problem
from rocketpost.spark.broker_session import BrokerSession
from rocketpost.spark.lake.lake import (
    COLUMNS,
    DATA,
    FORMATS,
    Batch,
    BatchExists,
    DataFile,
    Lake,
    Snapshot,
    check_topics,
    open_lake,
)
from rocketpost.spark.options import SourceOptions, fix_offsets, refuse_bounds, replace_options
from rocketpost.spark.records import columns
from rocketpost.spark.source import plan
from rocketpost.spark.source.plan import Bounds, Offsets, QueueKey, Range

logger = logging.getLogger(__name__)

BATCH_OFFSETS: Final = 1_000_000
"""Approximate limit of messages in a batch, which bounds the work lost in a kill."""
_TASK_RECORDS_MIN: Final = 20_000
_TASK_RECORDS_MAX: Final = 50_000
"""Messages per task: smaller tasks show progress more often, larger ones make fewer files."""
_TIME_TYPE: Final = "spark.sql.parquet.outputTimestampType"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveConfig:
    """Settings of an archive.

    Attributes:
        source: Name servers and topics.
        lake: A directory, or a URI that Arrow and Spark can open.
        format: ``parquet`` or ``delta``; that of the lake if empty, ``parquet`` if it is new.
        offsets_max: The limit of messages in a batch, plus at most one per queue.
        allow_loss: Whether to continue if messages were deleted before they were archived.
        hold: A group with a retention hold on messages that are not archived; none if empty.
    """

    source: SourceOptions
    lake: str
    format: str = ""
    offsets_max: int | None = BATCH_OFFSETS
    allow_loss: bool = False
    hold: str = ""

    def __post_init__(self) -> None:
        if not self.lake:
            raise ConfigError("a lake is required, to which messages are archived")
        if self.format and self.format not in FORMATS:
            raise ConfigError(f"the format {self.format!r} must be one of {', '.join(FORMATS)}")
        if self.source.properties_format != "map":
            raise ConfigError("propertiesFormat must be map for an archive")
        if self.source.body_format != "bytes" or not self.source.read_decoded:
            raise ConfigError("bodyFormat must be bytes and readDecoded true for an archive")
        refuse_bounds(self.source, "an archive always begins where its lake ends")
        if self.hold and (problem := group_problem(self.hold)):
            raise ConfigError(f"the group {self.hold!r} cannot be used to hold messages: {problem}")

    def open(self) -> Lake:
        """Open the lake.

        Raises:
            ConfigError: The lake has another format, or cannot be written safely.
        """
        lake = open_lake(self.lake, self.format)
        lake.check_writable()
        return lake


@dataclass(slots=True)
class ArchiveReport:
    """Report of a run."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    queues: dict[QueueKey, Range] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    def add(self, batch: Batch) -> None:
        """Add a batch."""
        self.batches += 1
        self.rows += batch.rows
        self.bytes += sum(file.bytes for file in batch.files)
        self.lost += batch.lost
        self._extend(batch.ranges)

    def join(self, other: ArchiveReport) -> None:
        """Add the report of a later run."""
        self.batches += other.batches
        self.rows += other.rows
        self.bytes += other.bytes
        self.lost += other.lost
        self._extend(other.queues.values())

    def _extend(self, pieces: Iterable[Range]) -> None:
        for piece in pieces:
            known = self.queues.get(piece.queue, piece)
            self.queues[piece.queue] = Range(piece.queue, known.start, piece.end)


class _Plan(NamedTuple):
    """Plan of a batch."""

    pieces: list[Range]
    """The ranges to read."""
    covered: list[Range]
    """The same from the end of the lake on; messages in between are lost."""
    lost: list[str]


def plan_archive(config: ArchiveConfig) -> tuple[list[Range], list[str]]:
    """Return the ranges that a run would archive, and descriptions of lost messages.

    Raises:
        ClientError: Messages are lost, and that is not allowed.
    """
    todo = _plan_batch(dataclasses.replace(config, offsets_max=None), config.open().snapshot())
    return todo.pieces, todo.lost


def archive_once(
    spark: SparkSession, config: ArchiveConfig, *, is_over: Callable[[], bool] = lambda: False
) -> Batch | None:
    """Archive one batch, after other runs that write to the lake; None if there is nothing new.

    Raises:
        ClientError: Messages are lost, or unexpected messages were read; nothing is archived then.
        BatchExists: Another run archived them at the same time; nothing is archived twice.
    """
    lake = config.open()
    with lake.write_lock(is_over=is_over):
        return _archive_once(spark, config, lake)


def _archive_once(spark: SparkSession, config: ArchiveConfig, lake: Lake) -> Batch | None:
    before = lake.snapshot()
    todo = _plan_batch(config, before)
    if not todo.covered:
        return None
    folder = lake.make_folder_name(before.next_number)
    try:
        if todo.pieces:
            write(_read_ranges(spark, config.source, todo.pieces), lake.uri_for(folder))
        files = lake.list_files(folder)
        batch = Batch(
            number=before.next_number,
            ranges=todo.covered,
            rows=_count_checked(files, todo.pieces, config.source),
            files=files,
            created_ms=int(time.time() * 1000),
            lost=todo.lost,
        )
        lake.commit(batch)
    except BaseException:
        discard_if_unused(lake, folder)
        raise
    logger.info("archived: batch=%s rows=%s", batch.number, batch.rows)
    return batch


def archive(
    spark: SparkSession,
    config: ArchiveConfig,
    report: ArchiveReport | None = None,
    *,
    on_batch: Callable[[int, int], None] = lambda done, rest: None,
    is_over: Callable[[], bool] = lambda: False,
) -> ArchiveReport:
    """Archive all present messages in one or more batches; later messages wait.

    Args:
        spark: The session.
        config: The settings of the archive.
        report: The report to which every batch is added, even if a later one fails.
        on_batch: Called before the first batch and after every one with the number of archived
            messages and the number of remaining ones.
        is_over: Called before every batch; true ends the run.
    """
    report = ArchiveReport() if report is None else report
    set_hold(config)
    bounds = _list_bounds(config)
    while rest := _count_rest(_list_starts(config.open().snapshot().watermark, bounds), bounds):
        on_batch(report.rows, rest)
        if is_over():
            break
        try:
            batch = archive_once(spark, config, is_over=is_over)
        except BatchExists as error:
            # Another run made progress, so this one has less to do.
            logger.warning("another run is archiving too, continuing after it: %s", error)
            continue
        if batch is None:
            break
        set_hold(config)
        report.add(batch)
    on_batch(report.rows, 0)
    return report


def set_hold(config: ArchiveConfig) -> None:
    """Set the retention hold on messages that are not archived, if configured."""
    if not config.hold:
        return
    with BrokerSession(replace_options(config.source, group=config.hold)) as broker_session:
        queues = broker_session.queues()
        broker_session.create_holding_group(config.hold, queues)
        broker_session.commit(
            _list_starts(config.open().snapshot().watermark, broker_session.bounds(queues))
        )


def archived(spark: SparkSession, lake_uri: str, topics: Sequence[str] = ()) -> DataFrame:
    """Return all archived messages, or those of some topics.

    Raises:
        ConfigError: Nothing was archived there, or nothing of one of the topics.
    """
    lake, held = open_archive(lake_uri, topics)
    frame = read_files(spark, lake, held.files)
    return frame.filter(f.col("topic").isin(*topics)) if topics else frame


def open_archive(lake_uri: str, topics: Sequence[str] = ()) -> tuple[Lake, Snapshot]:
    """Return a lake and its content.

    Raises:
        ConfigError: Nothing was archived there, or nothing of one of the topics.
        StoreError: A manifest cannot be read.
    """
    lake = open_lake(lake_uri)
    held = lake.snapshot()
    if not held.files:
        raise ConfigError(f"nothing is archived in {lake_uri}")
    check_topics(topics, held.topics, where=f"lake {lake_uri}")
    return lake, held


def read_files(
    spark: SparkSession,
    lake: Lake,
    files: list[DataFile],
    *,
    reading: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the messages of files of a lake; there must be at least one file.

    Args:
        spark: The session.
        lake: The lake.
        files: Some of its files.
        reading: Options for the reader of Parquet.
    """
    # A topic such as 2026 must stay text, so Spark must not infer types.
    schema = columns.ddl(COLUMNS) + ", batch string, date date"
    by_base: dict[str, list[str]] = {}
    for file in files:
        # Our files are in a folder of their batch; files that Delta tools rewrote are not.
        base = DATA if file.path.startswith(f"{DATA}/") else ""
        by_base.setdefault(base, []).append(lake.uri_for(file.path))
    frames = [
        spark.read.schema(schema)
        .options(**(reading or {}))
        .option("basePath", lake.uri_for(base))
        .parquet(*uris)
        for base, uris in sorted(by_base.items())
    ]
    names = [column.name for column in COLUMNS]
    return functools.reduce(DataFrame.unionByName, [frame.select(*names) for frame in frames])


def _plan_batch(config: ArchiveConfig, before: Snapshot) -> _Plan:
    bounds = _list_bounds(config)
    start = _list_starts(before.watermark, bounds)
    ends = {queue: bound.end for queue, bound in bounds.items()}
    # Lost messages do not count: otherwise a batch smaller than a gap would be empty.
    there = {queue: max(at, bounds[queue].first) for queue, at in start.items()}
    end = plan.limit_ends(there, ends, config.offsets_max)
    for queue, bound in bounds.items():
        if bound.end < start[queue]:
            raise ClientError(
                f"{queue} ends at offset {bound.end}, but {start[queue]} are archived: "
                "the topic was deleted and created again, or the broker lost messages. "
                "Archive it to a new lake"
            )
    pieces, losses = plan.plan_ranges(start, end, bounds)
    lost = [loss.text for loss in losses]
    if lost and not config.allow_loss:
        raise ClientError(
            f"messages were deleted before they were archived: {lost[0]}"
            f"{plan.describe_more_queues(len(lost) - 1)}; --allow-loss archives the rest and "
            "records the loss in the manifest"
        )
    covered = [
        Range(queue, start[queue], at) for queue, at in sorted(end.items()) if at > start[queue]
    ]
    return _Plan(pieces, covered, lost)


def _read_ranges(spark: SparkSession, source: SourceOptions, pieces: list[Range]) -> DataFrame:
    """Return the messages of ranges, in as few tasks as are useful."""
    total = sum(piece.length for piece in pieces)
    tasks = -(-total // _TASK_RECORDS_MIN)
    exact = replace_options(
        fix_offsets(
            source,
            {piece.queue: piece.start for piece in pieces},
            {piece.queue: piece.end for piece in pieces},
        ),
        partition_records_max=source.partition_records_max or _TASK_RECORDS_MAX,
        partitions_max=min(tasks, source.partitions_max) if source.partitions_max else tasks,
    )
    # NOT NULL columns would become required columns in files.
    reader = spark.read.format("rocketmq").schema(columns.ddl(COLUMNS))
    for key, value in exact.given_values().items():
        reader = reader.option(key, value)
    return reader.load()


def write(frame: DataFrame, uri: str) -> None:
    """Write messages to a folder of a lake, with times that other readers understand."""
    conf = frame.sparkSession.conf
    before = conf.get(_TIME_TYPE) or "INT96"
    conf.set(_TIME_TYPE, "TIMESTAMP_MICROS")
    try:
        dated = frame.withColumn("date", f.to_date("storeTimestamp"))
        writer = dated.write.partitionBy("topic", "date").option("compression", "zstd")
        writer.mode("append").parquet(uri)
    finally:
        conf.set(_TIME_TYPE, before)


def _count_checked(files: list[DataFile], pieces: list[Range], source: SourceOptions) -> int:
    """Return the number of messages in files, and check it against the number of offsets."""
    rows = sum(file.rows or 0 for file in files)
    covered = sum(piece.length for piece in pieces)
    if rows != covered and not source.is_filtered:
        raise ClientError(f"{rows} messages were read for {covered} offsets; nothing was archived")
    return rows


def discard_if_unused(lake: Lake, folder: str) -> None:
    """Delete the files of a failed batch, unless its commit succeeded nevertheless."""
    try:
        if not any(file.path.startswith(f"{folder}/") for file in lake.snapshot().files):
            lake.discard(folder)
    except (OSError, StoreError) as error:  # they are not valid, and a later sweep deletes them
        logger.warning("files of a failed batch remain: folder=%s reason=%s", folder, error)


def _list_starts(watermark: Offsets, bounds: dict[QueueKey, Bounds]) -> Offsets:
    return {queue: watermark.get(queue, bound.first) for queue, bound in bounds.items()}


def _list_bounds(config: ArchiveConfig) -> dict[QueueKey, Bounds]:
    with BrokerSession(config.source) as broker_session:
        return broker_session.bounds(broker_session.queues())


def _count_rest(reached: Offsets, bounds: dict[QueueKey, Bounds]) -> int:
    return sum(max(0, bound.end - reached[queue]) for queue, bound in bounds.items())
