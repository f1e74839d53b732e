"""Compaction of a lake: joins small files into few large ones, without changing the content.

Only files below half of the target size are rewritten, and only if that makes fewer files. So a
lake that is compacted every day is not rewritten every day, and one without new files does not
change. Files are sorted by queue and offset, so that readers can skip some. Old files stay until
the next compaction (Delta: until they are vacuumed), for queries that still read them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketpost.errors import ClientError
from rocketpost.spark.lake.lake import Batch, DataFile, Lake, Snapshot, open_lake
from rocketpost.spark.pipelines.archive import discard_if_unused, read_files, write

FILE_BYTES: Final = 128 * 1024 * 1024
_ORDER: Final = ("topic", "date", "brokerName", "queueId", "queueOffset")


class Merge(NamedTuple):
    """Files of one partition, and the number of files that replace them."""

    files: list[DataFile]
    into: int


class Compaction(NamedTuple):
    """Report of a compaction."""

    before: int
    after: int
    """Number of files before and after."""
    batch: Batch


def plan_merges(files: list[DataFile], file_bytes: int) -> list[Merge]:
    """Return the merges: small files of a partition that make fewer files together.

    Small is below half of the target size, so that merged files are not merged again, even if they
    became smaller than their parts.
    """
    by_partition: dict[str, list[DataFile]] = defaultdict(list)
    for file in files:
        if file.bytes < file_bytes / 2:
            by_partition[_partition(file.path)].append(file)
    merges = []
    for _, some in sorted(by_partition.items()):
        count = max(1, sum(file.bytes for file in some) // file_bytes)
        if count < len(some):
            merges.append(Merge(some, count))
    return merges


def compact(
    spark: SparkSession, lake_uri: str, *, file_bytes: int = FILE_BYTES
) -> Compaction | None:
    """Merge the small files of a lake, until no more can be; None if there is nothing to merge.

    Args:
        spark: The session.
        lake_uri: The lake.
        file_bytes: The target size of files; those below half of it are merged.

    Raises:
        ClientError: The rows do not add up; nothing was changed then.
        ConfigError: The lake cannot be written to safely.
        StoreError: Another process wrote to the lake meanwhile; nothing was changed then.
    """
    lake = open_lake(lake_uri)
    lake.check_writable()
    with lake.write_lock():
        lake.sweep(lake.snapshot())
        done = None
        # Every pass leaves fewer files than it found, or nothing changes. One nearly always does
        # it: a second one is for files that shrink to less than half when written together.
        while (last := _compact_once(spark, lake, file_bytes)) is not None:
            done = last if done is None else last._replace(before=done.before)
        return done


def _compact_once(spark: SparkSession, lake: Lake, file_bytes: int) -> Compaction | None:
    before = lake.snapshot()
    merges = plan_merges(before.files, file_bytes)
    if not merges:
        return None
    folder = lake.make_folder_name(before.next_number)
    try:
        _write(spark, lake, merges, folder, file_bytes)
        merged = {file for merge in merges for file in merge.files}
        files = [file for file in before.files if file not in merged] + lake.list_files(folder)
        if len(files) >= len(before.files):  # Spark's settings may ask for smaller ones
            lake.discard(folder)
            return None
        batch = _make_batch(before, files)
        lake.commit(batch, base=before)
    except BaseException:
        discard_if_unused(lake, folder)
        raise
    return Compaction(len(before.files), len(files), batch)


def _write(
    spark: SparkSession, lake: Lake, merges: list[Merge], folder: str, file_bytes: int
) -> None:
    """Write the merged files, as many in each partition as its merge says."""
    # A task writes one file of each partition that it has rows of. So all partitions of one file
    # are one job, in which each has one task, and the others have a job each.
    single = [file for merge in merges if merge.into == 1 for file in merge.files]
    jobs = [(merge.files, merge.into) for merge in merges if merge.into > 1]
    for files, count in jobs:
        rows = _add_date(read_files(spark, lake, files))
        write(_sort_rows(rows.repartitionByRange(count, *_ORDER)), lake.uri_for(folder))
    if single:
        tasks = max(1, round(sum(file.bytes for file in single) / file_bytes))
        rows = _add_date(read_files(spark, lake, single))
        write(_sort_rows(rows.repartition(tasks, *_ORDER[:2])), lake.uri_for(folder))


def _add_date(rows: DataFrame) -> DataFrame:
    return rows.withColumn("date", f.to_date("storeTimestamp"))


def _sort_rows(rows: DataFrame) -> DataFrame:
    return rows.sortWithinPartitions(*_ORDER)


def _make_batch(before: Snapshot, files: list[DataFile]) -> Batch:
    """Return the batch that replaces all others.

    Raises:
        ClientError: Its files have other messages than theirs.
    """
    noted = [file.rows for file in files]
    rows = sum(rows for rows in noted if rows is not None)
    if rows != before.rows and None not in noted:
        raise ClientError(f"compaction would turn {before.rows} messages into {rows}")
    return Batch(
        number=before.next_number,
        ranges=[before.ranges[queue] for queue in sorted(before.ranges)],
        rows=before.rows,
        files=files,
        created_ms=int(time.time() * 1000),
        lost=[text for batch in before.batches for text in batch.lost],
        replaces=tuple(batch.number for batch in before.batches),
    )


def _partition(path: str) -> str:
    return "/".join(part for part in path.split("/")[:-1] if part.startswith(("topic=", "date=")))
