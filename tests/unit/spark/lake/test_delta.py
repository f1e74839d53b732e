"""Manifests in the log of a Delta table, read by Delta's own reader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from rocketpost.errors import StoreError
from rocketpost.spark.lake import delta as delta_lake
from rocketpost.spark.lake.delta import APPLICATION, DeltaLake
from rocketpost.spark.lake.lake import BatchExists
from rocketpost.spark.records import columns
from rocketpost.spark.source.plan import QueueKey, Range

from ..lakes import STORED, A, B, batch, commit, compact, write

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> DeltaLake:
    return DeltaLake(str(tmp_path / "lake"))


def offsets(lake: DeltaLake) -> list[tuple[str, int]]:
    table = DeltaTable(lake.uri).to_pyarrow_table(columns=["topic", "queueOffset"])
    return sorted((row["topic"], row["queueOffset"]) for row in table.to_pylist())


def test_a_delta_reader_sees_every_message_with_topic_and_date(lake: DeltaLake) -> None:
    retried = QueueKey("%RETRY%g", "a", 0)
    commit(lake, 0, Range(A, 0, 3), Range(retried, 0, 1))
    commit(lake, 1, Range(A, 3, 5))
    table = DeltaTable(lake.uri)
    assert table.metadata().partition_columns == ["topic", "date"]
    assert table.transaction_version(APPLICATION) == 1
    assert offsets(lake) == [("%RETRY%g", 0), *[("T", offset) for offset in range(5)]]
    some = table.to_pyarrow_table(
        filters=[("topic", "=", "T"), ("date", "=", STORED.date()), ("queueOffset", ">=", 3)]
    )
    assert some.column("body").to_pylist() == [b"3", b"4"]
    assert some.column("storeTimestamp").to_pylist() == [STORED, STORED]


def test_the_table_requires_no_column_as_before(lake: DeltaLake) -> None:
    commit(lake, 0, Range(A, 0, 1))
    fields = DeltaTable(lake.uri).schema().fields
    assert [field.name for field in fields] == [*[each.name for each in columns.ALL], "date"]
    assert all(field.nullable for field in fields)


def test_a_commit_is_made_durable_and_not_the_one_before(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable: set[str] = set()
    monkeypatch.setattr(lake, "_sync", durable.update)
    for number in range(3):
        commit(lake, number, Range(A, number, number + 1))
        log = {f"_delta_log/{path.name}" for path in Path(lake.uri, "_delta_log").glob("*.json")}
        assert log <= durable


def test_files_can_be_skipped_by_offset_and_time(lake: DeltaLake) -> None:
    commit(lake, 0, Range(A, 2, 6))
    (path,) = Path(lake.uri, "_delta_log").glob("*1.json")
    adds = [json.loads(line) for line in path.read_text().splitlines() if '"add"' in line]
    stats = json.loads(adds[0]["add"]["stats"])
    assert stats["numRecords"] == 4
    assert (stats["minValues"]["queueOffset"], stats["maxValues"]["queueOffset"]) == (2, 5)
    assert stats["maxValues"]["storeTimestamp"] == "2026-11-16T00:00:00.000Z"


def test_two_runs_that_saw_the_same_table_cannot_both_commit(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(lake, 0, Range(A, 0, 1))
    stale = DeltaTable(lake.uri)
    commit(lake, 1, Range(A, 1, 2))
    monkeypatch.setattr(lake, "_table", lambda: stale)
    with pytest.raises(BatchExists, match="another run"):
        lake.commit(batch(1, write(lake, 1, Range(A, 1, 2)), Range(A, 1, 2)))
    monkeypatch.undo()
    assert offsets(lake) == [("T", 0), ("T", 1)]


def test_delta_tools_change_files_but_no_offsets(lake: DeltaLake) -> None:
    for number in range(4):
        commit(lake, number, Range(A, number * 2, number * 2 + 2), Range(B, number, number + 1))
    before = lake.snapshot()
    table = DeltaTable(lake.uri)
    assert table.optimize.compact()["numFilesRemoved"] == 4
    table.create_checkpoint()
    table.cleanup_metadata()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    held = lake.snapshot()
    assert held.batches == before.batches
    assert held.watermark == {A: 8, B: 4}
    assert len(held.files) == 1
    assert lake.find_flaws() == []
    commit(lake, 4, Range(A, 8, 9))
    assert lake.find_flaws() == []
    assert [offset for _, offset in offsets(lake)].count(8) == 1


def test_earlier_versions_can_be_read_after_a_compaction(lake: DeltaLake) -> None:
    commit(lake, 0, Range(A, 0, 3))
    commit(lake, 1, Range(A, 3, 5))
    compact(lake, Range(A, 0, 5))
    lake.sweep(lake.snapshot())
    assert DeltaTable(lake.uri, version=1).to_pyarrow_table().num_rows == 3
    assert DeltaTable(lake.uri).to_pyarrow_table().num_rows == 5


def test_a_compaction_of_files_that_changed_is_refused(lake: DeltaLake) -> None:
    commit(lake, 0, Range(A, 0, 3))
    commit(lake, 1, Range(A, 3, 5))
    before = lake.snapshot()
    DeltaTable(lake.uri).optimize.compact()
    files = write(lake, 2, Range(A, 0, 5))
    with pytest.raises(StoreError, match="changed in the meantime"):
        lake.commit(batch(2, files, Range(A, 0, 5), replaces=(0, 1)), base=before)
    assert len(offsets(lake)) == 5


def test_many_commits_are_read_back_to_the_last_compaction(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_lake, "_HISTORY_READ", 2)
    for number in range(10):
        lake.commit(batch(number, [], Range(A, number, number + 1)))
    assert [each.number for each in lake.snapshot().batches] == list(range(10))
    lake.commit(batch(10, [], Range(A, 0, 10), replaces=tuple(range(10))), base=lake.snapshot())
    lake.commit(batch(11, [], Range(A, 10, 11)))
    assert [each.number for each in lake.snapshot().batches] == [10, 11]
    assert lake.snapshot().watermark == {A: 11}


def test_missing_manifests_are_reported(lake: DeltaLake) -> None:
    for number in range(3):
        commit(lake, number, Range(A, number, number + 1))
    DeltaTable(lake.uri).create_checkpoint()
    for version in (0, 1, 2):
        Path(lake.uri, "_delta_log", f"{version:020d}.json").unlink()
    with pytest.raises(StoreError, match="no manifest of batch 0"):
        lake.snapshot()


def test_a_damaged_log_is_reported(lake: DeltaLake) -> None:
    commit(lake, 0, Range(A, 0, 3))
    Path(lake.uri, "_delta_log", f"{1:020d}.json").write_text("{")
    with pytest.raises(StoreError, match="cannot be read"):
        lake.snapshot()
