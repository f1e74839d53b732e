"""A batch counts when its manifest is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.errors import StoreError
from rocketpost.spark.lake import Batch, Lake
from rocketpost.spark.plan import QueueKey, Range

A, B = QueueKey("T", "a", 0), QueueKey("T", "b", 3)


def commit(lake: Lake, number: int, *ranges: Range, replaces: tuple[int, ...] = ()) -> Batch:
    path = Path(lake.batch_uri(number), "topic=T", "date=2026-11-16")
    path.mkdir(parents=True)
    (path / "part-0.parquet").write_bytes(b"x" * (number + 1))
    batch = Batch(
        number=number,
        ranges=list(ranges),
        rows=sum(piece.length for piece in ranges),
        files=lake.written(number),
        created_ms=5,
        lost=[],
        replaces=replaces,
    )
    lake.commit(batch)
    return batch


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def test_a_new_lake_is_empty(lake: Lake) -> None:
    assert lake.batches() == []
    assert lake.watermark() == {}
    assert lake.next_number() == 0
    assert lake.file_uris() == []
    assert lake.flaws() == []


def test_batches_are_read_back_as_written(lake: Lake) -> None:
    first = commit(lake, 0, Range(A, 5, 9))
    second = commit(lake, 1, Range(A, 9, 20), Range(B, 0, 4))
    again = Lake(f"file://{lake.uri}")
    assert again.batches() == [first, second]
    assert again.watermark() == {A: 20, B: 4}
    assert again.next_number() == 2
    assert len(again.file_uris()) == 2
    assert again.flaws() == []


def test_files_without_a_manifest_do_not_count(lake: Lake) -> None:
    commit(lake, 0, Range(A, 0, 1))
    folder = Path(lake.batch_uri(1))
    folder.mkdir(parents=True)
    (folder / "left.parquet").write_bytes(b"?")
    assert len(lake.file_uris()) == 1
    lake.discard(1)
    assert not folder.exists()
    lake.discard(1)


def test_a_second_writer_is_noticed(lake: Lake) -> None:
    batch = commit(lake, 0, Range(A, 0, 1))
    with pytest.raises(StoreError, match="second run"):
        lake.commit(batch)


def test_a_compacted_batch_stands_for_those_it_replaces(lake: Lake) -> None:
    commit(lake, 0, Range(A, 0, 3))
    commit(lake, 1, Range(A, 3, 5))
    commit(lake, 2, Range(A, 0, 5), replaces=(0, 1))
    commit(lake, 3, Range(A, 5, 8))
    assert [batch.number for batch in lake.batches()] == [2, 3]
    assert lake.flaws() == []


def test_holes_overlaps_and_missing_files_are_flaws(lake: Lake) -> None:
    commit(lake, 0, Range(A, 0, 3))
    commit(lake, 1, Range(A, 4, 9))
    commit(lake, 2, Range(A, 7, 10))
    Path(lake.file_uris()[0]).unlink()
    texts = [flaw.text for flaw in lake.flaws()]
    assert len(texts) == 3
    assert "is missing or has another size" in texts[0]
    assert texts[1:] == [
        "queue 0 of T on a: offsets 3 to 4 are missing",
        "queue 0 of T on a: offsets 7 to 9 are there twice",
    ]


def test_a_damaged_manifest_is_named(lake: Lake) -> None:
    commit(lake, 0, Range(A, 0, 3))
    path = Path(lake.uri, "manifest", "00000000.json")
    path.write_text("{}")
    with pytest.raises(StoreError, match=r"00000000\.json"):
        lake.batches()
