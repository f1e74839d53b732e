"""A store directory as a table: what is read, what is skipped, and stores of Apache's broker."""

from __future__ import annotations

import importlib.util
import sys
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from rocketpost.errors import CorruptRecord
from rocketpost.spark import columns, log_files
from rocketpost.spark.log_options import LogOptions
from rocketpost.spark.log_reader import LogReader, LogSplit
from rocketpost.spark.options import parsed

from .records import record
from .stores import write_log, write_queues

SEGMENT = 4096
GOLDEN = Path(__file__).parents[2] / "golden" / "__init__.py"


def reader(root: Path, **options: str) -> LogReader:
    return LogReader(parsed(LogOptions, {"path": str(root), **options}), columns.ALL)


def rows(root: Path, **options: str) -> list[dict[str, Any]]:
    found = reader(root, **options)
    return [
        row
        for part in found.partitions()
        for batch in found.read(part)
        for row in batch.to_pylist()
    ]


def segments(root: Path, **options: str) -> set[int]:
    parts = reader(root, **options).partitions()
    return {part.split.segment.start for part in parts if isinstance(part, LogSplit)}


def bodies(root: Path, **options: str) -> list[bytes]:
    return [row["body"] for row in rows(root, **options)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return two topics, one after the other, over many segments; the third is deleted."""
    some = [
        record(
            topic=topic,
            queue_offset=at,
            store_ms=1000 * block + at,
            body=b"%b%03d" % (topic.encode(), at) + b"." * 200,
            properties_bytes=b"TAGS\x01%b\x02" % (b"odd" if at % 2 else b"even"),
        )
        for block, topic in enumerate(("A", "Gone", "B"))
        for at in range(40)
    ]
    stored = write_log(tmp_path, some, segment_bytes=SEGMENT)
    write_queues(tmp_path, [each for each in stored if each.topic != "Gone"])
    return tmp_path


def test_a_consumers_view_lacks_deleted_topics(store: Path) -> None:
    assert {body[:1] for body in bodies(store)} == {b"A", b"B"}
    assert len(bodies(store, view="log")) == 120


def test_segments_without_a_topic_are_skipped(store: Path) -> None:
    found = bodies(store, topic="A")
    assert [body[:4] for body in found] == [b"A%03d" % at for at in range(40)]
    assert len(segments(store, topic="A")) <= len(segments(store)) / 2


def test_segments_of_other_times_are_skipped(store: Path) -> None:
    times = {"startingTimestamp": "2005", "endingTimestamp": "2010"}
    assert [body[:4] for body in bodies(store, **times)] == [b"B%03d" % at for at in range(5, 10)]
    assert len(segments(store, **times)) <= 2


def test_where_nothing_is_to_be_read_nothing_is(store: Path) -> None:
    found = reader(store, endingTimestamp="-1")
    assert list(found.partitions()) == []
    assert list(found.read(InputPartition(None))) == []  # which Spark makes then


def test_tags_are_compared(store: Path) -> None:
    assert len(bodies(store, topic="B", tags="odd")) == 20
    assert len(bodies(store, topic="B", tags="odd || even")) == 40


def test_bodies_can_be_checked(store: Path) -> None:
    path = store / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    assert len(bodies(store)) == 80
    with pytest.raises(CorruptRecord, match="position 0 fails its CRC"):
        bodies(store, checkCrc="true")


def test_memory_is_bounded_however_long_the_log_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "CHUNK_BYTES", 32 * 1024)
    peaks = []
    for count in (200, 200, 1000):  # the first time, more than records is loaded
        root = tmp_path / str(len(peaks))
        some = [record(body=bytes(900), queue_offset=at) for at in range(count)]
        write_log(root, some, segment_bytes=256 * 1024)
        found = reader(root, view="log")
        tracemalloc.start()
        batches = (batch for part in found.partitions() for batch in found.read(part))
        assert sum(batch.num_rows for batch in batches) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert 32 * 1024 < peaks[2] < peaks[1] + 64 * 1024


@pytest.mark.parametrize("name", ["store-clean", "store-killed"])
def test_a_store_of_apaches_broker_has_what_its_clients_got(tmp_path: Path, name: str) -> None:
    spec = importlib.util.spec_from_file_location("golden", GOLDEN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["golden"] = module
    spec.loader.exec_module(module)
    pulled = module.restore_store(name, tmp_path)["messages"]
    found = {(row["queueId"], row["queueOffset"]): row for row in rows(tmp_path, topic="Orders")}
    assert len(found) == len(pulled)
    for message in pulled:
        row = found[message["queueId"], message["queueOffset"]]
        assert row["commitLogOffset"] == message["commitLogOffset"]
        assert row["storeSize"] == message["storeSize"]
        assert row["uniqKey"] == message["msgId"]
        assert (row["tags"], row["keys"]) == (message.get("tags"), message.get("keys"))
        assert len(row["body"]) == message["bodySize"]
        assert zlib.crc32(row["body"]) == message["bodyCrc"]
