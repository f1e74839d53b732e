"""Small files of a lake into few large ones; what is archived stays the same.

Only files below the wished size are written anew, so that a lake that is compacted every day is not
rewritten every day. They are sorted by queue and offset, so that readers can skip files. The files
from before stay until the next compaction (Delta: until they are vacuumed), for those who still
read them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Final, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from rocketpost.errors import ClientError
from rocketpost.spark.lake import Batch, DataFile, Snapshot, open_lake
from rocketpost.spark.pipelines.archive import discard_if_unused, messages, write

FILE_BYTES: Final = 128 * 1024 * 1024
_ORDER: Final = ("topic", "date", "brokerName", "queueId", "queueOffset")


class Compaction(NamedTuple):
    """What a compaction did."""

    before: int
    after: int
    """How many files there were, and are."""
    batch: Batch


def small_files(files: list[DataFile], file_bytes: int) -> list[DataFile]:
    """Return the files that are worth merging: small ones that are not alone in their partition."""
    by_partition: dict[str, list[DataFile]] = defaultdict(list)
    for file in files:
        if file.bytes < file_bytes:
            by_partition[_partition(file.path)].append(file)
    return [file for some in by_partition.values() if len(some) > 1 for file in some]


def compact(
    spark: SparkSession, lake_uri: str, *, file_bytes: int = FILE_BYTES
) -> Compaction | None:
    """Merge the small files of a lake; None if there is nothing to merge.

    Args:
        spark: The session.
        lake_uri: The lake.
        file_bytes: How large a file should be; those below are merged.

    Raises:
        ClientError: The rows do not add up; nothing was changed then.
        StoreError: Somebody else wrote to the lake meanwhile; nothing was changed then.
    """
    lake = open_lake(lake_uri)
    before = lake.snapshot()
    lake.sweep(before)
    small = small_files(before.files, file_bytes)
    if not small:
        return None
    folder = lake.fresh_folder(before.next_number)
    count = max(1, round(sum(file.bytes for file in small) / file_bytes))
    frame = messages(spark, lake, small).withColumn("date", f.to_date("storeTimestamp"))
    try:
        ordered = frame.repartitionByRange(count, *_ORDER).sortWithinPartitions(*_ORDER)
        write(ordered, lake.uri_of(folder))
        merged = set(small)
        files = [file for file in before.files if file not in merged] + lake.written(folder)
        batch = _merged(before, files)
        lake.commit(batch, base=before)
    except BaseException:
        discard_if_unused(lake, folder)
        raise
    return Compaction(len(before.files), len(files), batch)


def _merged(before: Snapshot, files: list[DataFile]) -> Batch:
    """Return the batch that stands for all others.

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
