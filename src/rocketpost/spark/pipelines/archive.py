"""Topics into a lake: exactly once, resumable, with a manifest of what every batch covers.

A run reads from where the manifests end up to where the queues end now, writes one batch of Parquet
files and commits its manifest. Killed at any instant, it leaves at most files that do not count,
which the next run deletes. So the lake itself is the checkpoint. Runs that write to the same lake
take turns, batch by batch.
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
"""About how many messages a batch has at most, so that a kill costs no more work than that."""
_TASK_RECORDS_MIN: Final = 20_000
_TASK_RECORDS_MAX: Final = 50_000
"""Progress is shown by task: smaller ones show it more often, larger ones make fewer files."""
_TIME_TYPE: Final = "spark.sql.parquet.outputTimestampType"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveConfig:
    """Settings of an archive: what is archived, and where to.

    Attributes:
        source: Name servers and topics.
        lake: A directory, or a URI that Arrow and Spark can open.
        format: ``parquet`` or ``delta``; that of the lake if empty, ``parquet`` if it is new.
        offsets_max: How many messages one batch has at most, give or take one a queue.
        allow_loss: Whether to go on if messages were deleted before they were archived.
        hold: A group by which brokers keep what is not archived yet; none if empty.
    """

    source: SourceOptions
    lake: str
    format: str = ""
    offsets_max: int | None = BATCH_OFFSETS
    allow_loss: bool = False
    hold: str = ""

    def __post_init__(self) -> None:
        if not self.lake:
            raise ConfigError("the lake is required: where archived messages go")
        if self.format and self.format not in FORMATS:
            raise ConfigError(f"the format {self.format!r} is none of {', '.join(FORMATS)}")
        if self.source.properties_format != "map":
            raise ConfigError("propertiesFormat must be map for an archive")
        if self.source.body_format != "bytes" or not self.source.read_decoded:
            raise ConfigError("bodyFormat must be bytes and readDecoded true for an archive")
        refuse_bounds(self.source, "an archive begins where its lake ends")
        if self.hold and (problem := group_problem(self.hold)):
            raise ConfigError(f"the group {self.hold!r} cannot hold: {problem}")

    def open(self) -> Lake:
        """Open the lake.

        Raises:
            ConfigError: It has another format than wished, or cannot be written to safely.
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


class _Plan(NamedTuple):
    """Plan of a batch."""

    pieces: list[Range]
    """What is there to be read."""
    covered: list[Range]
    """The same from where the lake ends: what lies between is gone."""
    lost: list[str]


def planned(config: ArchiveConfig) -> tuple[list[Range], list[str]]:
    """Return what a run would archive, in however many batches, and what of it is gone already.

    Raises:
        ClientError: Messages are gone and that is not allowed.
    """
    todo = _planned(dataclasses.replace(config, offsets_max=None), config.open().snapshot())
    return todo.pieces, todo.lost


def archive_once(
    spark: SparkSession, config: ArchiveConfig, *, is_over: Callable[[], bool] = lambda: False
) -> Batch | None:
    """Archive one batch, after other runs that write to the lake; None if there is nothing new.

    Raises:
        ClientError: Messages are gone, or were read that nobody wanted; nothing is archived then.
        BatchExists: Another run archived them at the same time; nothing is archived twice.
    """
    lake = config.open()
    with lake.write_lock(is_over=is_over):
        return _archive_once(spark, config, lake)


def _archive_once(spark: SparkSession, config: ArchiveConfig, lake: Lake) -> Batch | None:
    before = lake.snapshot()
    todo = _planned(config, before)
    if not todo.covered:
        return None
    folder = lake.make_folder_name(before.next_number)
    try:
        if todo.pieces:
            write(_frame(spark, config.source, todo.pieces), lake.uri_for(folder))
        files = lake.list_files(folder)
        batch = Batch(
            number=before.next_number,
            ranges=todo.covered,
            rows=_checked(files, todo.pieces, config.source),
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
    bounds = _bounds(config)
    while rest := _rest(_starts(config.open().snapshot().watermark, bounds), bounds):
        on_batch(report.rows, rest)
        if is_over():
            break
        try:
            batch = archive_once(spark, config, is_over=is_over)
        except BatchExists as error:
            # Another run made progress, so this one has less to do.
            logger.warning("another run archives too, continuing after it: %s", error)
            continue
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
    with BrokerSession(replace_options(config.source, group=config.hold)) as broker_session:
        queues = broker_session.queues()
        broker_session.create_holding_group(config.hold, queues)
        broker_session.commit(
            _starts(config.open().snapshot().watermark, broker_session.bounds(queues))
        )


def archived(spark: SparkSession, lake_uri: str, topics: Sequence[str] = ()) -> DataFrame:
    """Return every message that was archived, or those of some topics.

    Raises:
        ConfigError: Nothing was archived there, or nothing of one of the topics.
    """
    lake, held = opened(lake_uri, topics)
    frame = messages(spark, lake, held.files)
    return frame.filter(f.col("topic").isin(*topics)) if topics else frame


def opened(lake_uri: str, topics: Sequence[str] = ()) -> tuple[Lake, Snapshot]:
    """Return a lake, and what it holds.

    Raises:
        ConfigError: Nothing was archived there, or nothing of one of the topics.
        StoreError: A manifest cannot be read.
    """
    lake = open_lake(lake_uri)
    held = lake.snapshot()
    if not held.files:
        raise ConfigError(f"there is nothing archived in {lake_uri}")
    check_topics(topics, held.topics, where=f"lake {lake_uri}")
    return lake, held


def messages(
    spark: SparkSession,
    lake: Lake,
    files: list[DataFile],
    *,
    reading: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the messages of some files of a lake, of which there must be one at least.

    Args:
        spark: The session.
        lake: The lake.
        files: Some of its files.
        reading: Options for the reader of Parquet.
    """
    # A topic such as 2026 must stay a text, so types are not left to Spark's guess.
    schema = columns.ddl(COLUMNS) + ", batch string, date date"
    by_base: dict[str, list[str]] = {}
    for file in files:
        # Ours lie in a folder of their batch, those that Delta tools rewrote in none.
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


def _planned(config: ArchiveConfig, before: Snapshot) -> _Plan:
    bounds = _bounds(config)
    start = _starts(before.watermark, bounds)
    ends = {queue: bound.end for queue, bound in bounds.items()}
    # What is gone takes no room in a batch: else one that is smaller than a hole would be empty.
    there = {queue: max(at, bounds[queue].first) for queue, at in start.items()}
    end = plan.limit_ends(there, ends, config.offsets_max)
    for queue, bound in bounds.items():
        if bound.end < start[queue]:
            raise ClientError(
                f"{queue} ends at offset {bound.end}, but {start[queue]} are archived: the topic "
                "was deleted and made anew, or the broker lost messages. Archive it to a new lake"
            )
    pieces, losses = plan.plan_ranges(start, end, bounds)
    lost = [loss.text for loss in losses]
    if lost and not config.allow_loss:
        raise ClientError(
            f"messages were deleted before they were archived: {lost[0]}"
            + (f" (and {len(lost) - 1} queues more)" if len(lost) > 1 else "")
            + "; --allow-loss archives the rest and notes it in the manifest"
        )
    covered = [
        Range(queue, start[queue], at) for queue, at in sorted(end.items()) if at > start[queue]
    ]
    return _Plan(pieces, covered, lost)


def _frame(spark: SparkSession, source: SourceOptions, pieces: list[Range]) -> DataFrame:
    """Return the messages of some ranges, in as few tasks as are worth their while."""
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
    # Columns that are never null would be required ones in files.
    reader = spark.read.format("rocketmq").schema(columns.ddl(COLUMNS))
    for key, value in exact.given().items():
        reader = reader.option(key, value)
    return reader.load()


def write(frame: DataFrame, uri: str) -> None:
    """Add messages to a folder of a lake, with times that other readers understand as well."""
    conf = frame.sparkSession.conf
    before = conf.get(_TIME_TYPE) or "INT96"
    conf.set(_TIME_TYPE, "TIMESTAMP_MICROS")
    try:
        dated = frame.withColumn("date", f.to_date("storeTimestamp"))
        writer = dated.write.partitionBy("topic", "date").option("compression", "zstd")
        writer.mode("append").parquet(uri)
    finally:
        conf.set(_TIME_TYPE, before)


def _checked(files: list[DataFile], pieces: list[Range], source: SourceOptions) -> int:
    """Return how many messages files have, which must be as many as there are offsets."""
    rows = sum(file.rows or 0 for file in files)
    covered = sum(piece.length for piece in pieces)
    if rows != covered and not source.is_filtered:
        raise ClientError(
            f"{rows} messages were read where {covered} offsets were wanted; nothing was archived"
        )
    return rows


def discard_if_unused(lake: Lake, folder: str) -> None:
    """Delete the files of a batch that failed, unless its commit went through all the same."""
    try:
        if not any(file.path.startswith(f"{folder}/") for file in lake.snapshot().files):
            lake.discard(folder)
    except (OSError, StoreError) as error:  # they do not count, and a later sweep finds them
        logger.warning("files of a failed batch are left: folder=%s reason=%s", folder, error)


def _starts(watermark: Offsets, bounds: dict[QueueKey, Bounds]) -> Offsets:
    return {queue: watermark.get(queue, bound.first) for queue, bound in bounds.items()}


def _bounds(config: ArchiveConfig) -> dict[QueueKey, Bounds]:
    with BrokerSession(config.source) as broker_session:
        return broker_session.bounds(broker_session.queues())


def _rest(reached: Offsets, bounds: dict[QueueKey, Bounds]) -> int:
    return sum(max(0, bound.end - reached[queue]) for queue, bound in bounds.items())
