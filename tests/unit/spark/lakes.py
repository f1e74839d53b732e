"""Lakes with files that nobody wrote by Spark, for tests."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rocketpost.spark.lake.lake import Batch, DataFile, Lake, Snapshot
from rocketpost.spark.records import columns
from rocketpost.spark.source.plan import QueueKey, Range

A, B = QueueKey("T", "a", 0), QueueKey("T", "b", 3)
STORED = datetime(2026, 11, 16, tzinfo=UTC)


def write(lake: Lake, number: int, *ranges: Range) -> list[DataFile]:
    """Write the messages of some ranges, as Spark would."""
    folder = lake.make_folder_name(number)
    for topic in sorted({piece.queue.topic for piece in ranges}):
        rows = [
            {
                "brokerName": piece.queue.broker,
                "queueId": piece.queue.queue_id,
                "queueOffset": offset,
                "storeTimestamp": STORED,
                "body": b"%d" % offset,
                "properties": {"a": "b"},
            }
            for piece in ranges
            if piece.queue.topic == topic
            for offset in range(piece.start, piece.end)
        ]
        path = Path(lake.uri, folder, f"topic={topic.replace('%', '%25')}", "date=2026-11-16")
        path.mkdir(parents=True)
        schema = pa.schema([(each.name, each.arrow) for each in columns.ALL[1:]])
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path / "part-0.parquet")
        (path / "._SUCCESS.crc").write_bytes(b"")
    return lake.list_files(folder)


def batch(
    number: int, files: list[DataFile], *ranges: Range, replaces: tuple[int, ...] = ()
) -> Batch:
    rows = sum(file.rows or 0 for file in files)
    return Batch(number, list(ranges), rows, files, created_ms=5, lost=[], replaces=replaces)


def commit(lake: Lake, number: int, *ranges: Range) -> Batch:
    """Archive some ranges."""
    made = batch(number, write(lake, number, *ranges), *ranges)
    lake.commit(made)
    return made


def compact(lake: Lake, *ranges: Range) -> Snapshot:
    """Compact everything; returns what was there before."""
    before = lake.snapshot()
    number = before.next_number
    files = write(lake, number, *ranges)
    replaced = tuple(each.number for each in before.batches)
    lake.commit(batch(number, files, *ranges, replaces=replaced), base=before)
    return before
