"""Manifests as files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocketpost.errors import ConfigError, StoreError
from rocketpost.spark.lake.parquet import ParquetLake
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.pipelines.archive import ArchiveConfig
from rocketpost.spark.source.plan import Range

from ..lakes import A, batch, commit, compact, write


@pytest.fixture
def lake(tmp_path: Path) -> ParquetLake:
    return ParquetLake(str(tmp_path / "lake"))


def test_a_damaged_manifest_is_named(lake: ParquetLake) -> None:
    commit(lake, 0, Range(A, 0, 3))
    Path(lake.uri, "manifest", "00000000.json").write_text("{}")
    with pytest.raises(StoreError, match=r"00000000\.json"):
        lake.snapshot()


def test_a_manifest_that_was_not_finished_does_not_count(lake: ParquetLake) -> None:
    commit(lake, 0, Range(A, 0, 3))
    Path(lake.uri, "manifest", "00000001.json.5f0c").write_text("{")
    assert lake.snapshot().next_number == 1


def test_files_of_early_manifests_have_no_counts(lake: ParquetLake) -> None:
    commit(lake, 0, Range(A, 0, 3))
    path = Path(lake.uri, "manifest", "00000000.json")
    manifest = json.loads(path.read_text())
    del manifest["files"][0]["rows"]
    path.write_text(json.dumps(manifest))
    assert lake.snapshot().files[0].rows is None
    assert lake.find_flaws() == []


def test_manifests_swept_during_a_read_do_no_harm(
    lake: ParquetLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(lake, 0, Range(A, 0, 3))
    compact(lake, Range(A, 0, 3))
    listed = lake._read_manifests()
    ParquetLake(lake.uri).sweep(lake.snapshot())
    assert len(listed) > len(lake._read_manifests())
    answers = [listed, lake._read_manifests()]
    monkeypatch.setattr(lake, "_read_manifests", lambda: answers.pop(0))
    assert lake.snapshot().watermark == {A: 3}


def test_a_sweep_removes_files_without_manifest_or_writer(lake: ParquetLake) -> None:
    killed = write(lake, 0, Range(A, 0, 9))
    commit(lake, 0, Range(A, 0, 3))
    commit(lake, 1, Range(A, 3, 5))
    before = compact(lake, Range(A, 0, 5))
    running = write(lake, 3, Range(A, 5, 9))
    own = Path(lake.uri, "data", "notes.txt")
    own.write_text("mine")

    def is_there(path: str) -> bool:
        return Path(lake.uri, path).exists()

    assert all(is_there(file.path) for file in before.files)  # somebody may be reading them
    lake.sweep(lake.snapshot())
    assert not any(is_there(file.path) for file in [*before.files, *killed])
    assert all(is_there(file.path) for file in [*running, *lake.snapshot().files])
    assert sorted(path.name for path in Path(lake.uri, "manifest").iterdir()) == ["00000002.json"]
    assert own.exists()
    assert lake.find_flaws() == []


def test_nothing_is_written_if_a_manifest_could_replace_another() -> None:
    source = SourceOptions(name_servers="h:1", topic="T")
    with pytest.raises(ConfigError, match=r"must be in a directory, not at mock:///lake.*delta"):
        ArchiveConfig(source=source, lake="mock:///lake").open()
    lake = ParquetLake("mock:///lake")
    assert lake.snapshot().batches == []  # it can be read
    with pytest.raises(ConfigError, match="manifests"):
        lake.commit(batch(0, [], Range(A, 0, 3)))
