"""The promise of both kinds of lakes: a batch counts when its manifest is committed."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rocketpost.errors import ClientError, ConfigError
from rocketpost.spark.lake.lake import (
    FORMATS,
    Batch,
    BatchExists,
    DataFile,
    Flaw,
    Lake,
    check_topics,
    coverage_flaws,
    open_lake,
)
from rocketpost.spark.source.plan import QueueKey, Range

from ..lakes import A, B, batch, commit, compact, write

pytestmark = pytest.mark.slow  # the first use of Delta takes half a second


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return open_lake(str(tmp_path / "lake"), request.param)


def without_files(batches: list[Batch]) -> list[Batch]:
    return [each._replace(files=[]) for each in batches]


def test_a_new_lake_is_empty(lake: Lake) -> None:
    assert lake.snapshot() == ([], [], 0)
    assert lake.snapshot().watermark == {}
    assert lake.find_flaws() == []
    assert not Path(lake.uri).exists()


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_is_no_lake(tmp_path: Path, kind: str) -> None:
    (tmp_path / "lake").write_text("notes")
    with pytest.raises(ConfigError, match="lake is a file, but a lake is a directory"):
        open_lake(str(tmp_path / "lake"), kind)


def test_batches_are_read_back_as_written(lake: Lake) -> None:
    first = commit(lake, 0, Range(A, 5, 9))
    second = commit(lake, 1, Range(A, 9, 20), Range(B, 0, 4))
    again = open_lake(f"file://{lake.uri}")
    assert again.kind == lake.kind
    held = again.snapshot()
    assert without_files(held.batches) == without_files([first, second])
    assert sorted(held.files) == sorted(first.files + second.files)
    assert held.watermark == {A: 20, B: 4}
    assert held.topics == {"T"}
    assert held.ranges == {A: Range(A, 5, 20), B: Range(B, 0, 4)}
    assert (held.next_number, held.rows) == (2, 19)
    assert again.find_flaws() == []


def test_files_without_a_manifest_do_not_count(lake: Lake) -> None:
    commit(lake, 0, Range(A, 0, 1))
    left = write(lake, 1, Range(A, 1, 7))
    assert len(lake.snapshot().files) == 1
    folder = "/".join(left[0].path.split("/")[:2])
    lake.discard(folder)
    assert not Path(lake.uri, folder).exists()
    lake.discard(folder)
    assert lake.find_flaws() == []


def test_a_batch_without_messages_counts(lake: Lake) -> None:
    lake.commit(batch(0, [], Range(A, 0, 8)))  # a filter let nothing through
    assert lake.snapshot().watermark == {A: 8}
    assert lake.snapshot().next_number == 1
    assert lake.find_flaws() == []


def test_a_second_writer_is_noticed(lake: Lake) -> None:
    files = write(lake, 0, Range(A, 0, 1))
    other = commit(lake, 0, Range(A, 0, 3))
    with pytest.raises(BatchExists, match="another run"):
        lake.commit(batch(0, files, Range(A, 0, 1)))
    assert lake.snapshot().files == other.files
    assert lake.find_flaws() == []


def test_leftovers_of_a_killed_run_are_deleted_by_the_next_writer(lake: Lake) -> None:
    kept = commit(lake, 0, Range(A, 0, 3))
    left = write(lake, 1, Range(A, 3, 5))
    half = Path(lake.uri, lake.make_folder_name(1), "topic=T", "part-0.parquet")
    half.parent.mkdir(parents=True)
    half.touch()  # as a writer leaves it that was killed at its first byte
    with lake.write_lock():
        assert not half.exists()
        assert not Path(lake.uri, left[0].path).exists()
        assert lake.snapshot().files == kept.files
    assert lake.find_flaws() == []


def test_files_that_a_compaction_replaced_are_left_to_their_readers(lake: Lake) -> None:
    before = commit(lake, 0, Range(A, 0, 3))
    commit(lake, 1, Range(A, 3, 5))
    compact(lake, Range(A, 0, 5))
    with lake.write_lock():
        assert Path(lake.uri, before.files[0].path).exists()


def test_a_second_writer_waits_for_its_turn(lake: Lake) -> None:
    other = type(lake)(lake.uri)
    asked = threading.Event()

    def is_over() -> bool:
        asked.set()
        return False

    def write_too() -> int:
        with other.write_lock(is_over=is_over):
            return other.snapshot().next_number

    with ThreadPoolExecutor(1) as pool:
        with lake.write_lock():
            waiting = pool.submit(write_too)
            assert asked.wait(30)
            commit(lake, 0, Range(A, 0, 3))
        assert waiting.result() == 1  # it saw what the first one wrote


def test_a_second_writer_can_stop_waiting(lake: Lake) -> None:
    other = type(lake)(lake.uri)
    with (
        lake.write_lock(),
        pytest.raises(ClientError, match=r"stopped while waiting for process \d+"),
        other.write_lock(is_over=lambda: True),
    ):
        pass


def test_a_compacted_batch_replaces_its_source_batches(lake: Lake) -> None:
    commit(lake, 0, Range(A, 0, 3))
    commit(lake, 1, Range(A, 3, 5))
    before = compact(lake, Range(A, 0, 5))
    commit(lake, 3, Range(A, 5, 8))
    held = lake.snapshot()
    assert [each.number for each in held.batches] == [2, 3]
    assert not {file.path for file in before.files} & {file.path for file in held.files}
    assert (len(held.files), held.rows, held.watermark) == (2, 8, {A: 8})
    assert lake.find_flaws() == []


def test_a_compaction_may_keep_large_files(lake: Lake) -> None:
    large = commit(lake, 0, Range(A, 0, 30))
    commit(lake, 1, Range(A, 30, 32))
    commit(lake, 2, Range(A, 32, 33))
    before = lake.snapshot()
    files = [*large.files, *write(lake, 3, Range(A, 30, 33))]
    lake.commit(batch(3, files, Range(A, 0, 33), replaces=(0, 1, 2)), base=before)
    assert sorted(lake.snapshot().files) == sorted(files)
    assert lake.find_flaws() == []


def test_holes_overlaps_and_missing_files_are_flaws(lake: Lake) -> None:
    commit(lake, 0, Range(A, 0, 3))
    commit(lake, 1, Range(A, 4, 9))
    made = commit(lake, 2, Range(A, 7, 10))
    Path(lake.uri, made.files[0].path).unlink()
    assert [flaw.text for flaw in lake.find_flaws()] == [
        "queue 0 of T on a: offsets 3 to 4 are missing",
        "queue 0 of T on a: offsets 7 to 9 exist twice",
        f"{made.files[0].path} is missing or has another size",
    ]


def test_a_manifest_that_counts_other_rows_is_a_flaw(lake: Lake) -> None:
    made = batch(0, write(lake, 0, Range(A, 0, 3)), Range(A, 0, 3))
    lake.commit(made._replace(rows=4))
    assert lake.find_flaws() == [Flaw("the manifests count 4 messages, the files have 3")]


def test_names_of_topics_may_have_percent_signs(lake: Lake) -> None:
    retried = QueueKey("%RETRY%g", "a", 0)
    made = commit(lake, 0, Range(retried, 0, 2), Range(A, 0, 1))
    assert "topic=%25RETRY%25g" in made.files[0].path
    commit(lake, 1, Range(retried, 2, 3))
    assert lake.find_flaws() == []
    compact(lake, Range(retried, 0, 3), Range(A, 0, 1))
    assert len(lake.snapshot().files) == 2
    assert lake.find_flaws() == []


def test_a_lake_has_one_format(tmp_path: Path) -> None:
    for kind, other in (FORMATS, FORMATS[::-1]):
        uri = str(tmp_path / kind)
        commit(open_lake(uri, kind), 0, Range(A, 0, 1))
        assert open_lake(uri).kind == kind
        with pytest.raises(ConfigError, match=f"of the format {kind}, not {other}"):
            open_lake(uri, other)
    with pytest.raises(ConfigError, match="'orc' must be one of parquet, delta"):
        open_lake(str(tmp_path), "orc")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocketpost.spark.lake.delta", None)
    with pytest.raises(ConfigError, match=r"pip install 'rocketpost\[delta\]'"):
        open_lake(str(tmp_path), "delta")


def test_coverage_is_judged_by_queue() -> None:
    one = batch(0, [DataFile("x", 1)], Range(A, 0, 2), Range(B, 7, 9))
    assert coverage_flaws([one, batch(1, [], Range(B, 9, 10), Range(A, 2, 3))]) == []


def test_a_batch_may_have_offsets_without_messages(lake: Lake) -> None:
    commit(lake, 0, Range(A, 0, 5))
    lake.commit(batch(1, [], Range(A, 5, 9)))  # all of them were gone
    assert lake.snapshot().watermark == {A: 9}
    assert lake.snapshot().rows == 5
    assert lake.find_flaws() == []


def test_a_location_that_nothing_can_open_is_refused() -> None:
    with pytest.raises(ConfigError, match="the lake nowhere://at/all cannot be opened"):
        open_lake("nowhere://at/all")


def test_missing_topics_are_named_together_with_existing_ones() -> None:
    check_topics(["A"], {"A", "B"}, where="lake x")
    with pytest.raises(ConfigError, match=r"the lake x has no topic C, D; there are A, B$"):
        check_topics(["C", "A", "D"], {"B", "A"}, where="lake x")
    many = {f"A{number:03}" for number in range(100)} | {"Spelled"}
    with pytest.raises(ConfigError, match="there are Spelled, "):
        check_topics(["Speled"], many, where="lake x")
    with pytest.raises(ConfigError, match="there is none"):
        check_topics(["C"], (), where="lake x")
    with pytest.raises(ConfigError, match=r"T00, .*, T19, \.\.\.$"):
        check_topics(["C"], [f"T{number:02d}" for number in range(30)], where="lake x")
