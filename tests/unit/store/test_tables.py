from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketpost.errors import StoreError
from rocketpost.store.files import RealFiles
from rocketpost.store.table_check import with_check, without_check
from rocketpost.store.tables import TableFile


class Crash(Exception):  # noqa: N818
    """The machine stopped here."""


class CrashingFiles(RealFiles):
    """Stops before its Nth changing call; what came before is on disk."""

    def __init__(self, calls_left: int = 10**9) -> None:
        self.calls_left = calls_left

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in ("pwrite", "rename", "ftruncate", "fdatasync", "fsync_dir", "mkdir"):
            return self.counted(found)
        return found

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any) -> Any:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise Crash
            return call(*args)

        return counting


def decode(data: bytes) -> dict[str, int]:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("not a table")
    return found


def table(
    tmp_path: Path,
    files: RealFiles | None = None,
    *,
    is_guarded: bool = False,
    without: str | None = None,
) -> TableFile[dict[str, int]]:
    path = str(tmp_path / "config" / "topics.json")
    return TableFile(
        path,
        files=files or RealFiles(),
        decode=decode,
        empty=dict,
        is_guarded=is_guarded,
        without=without,
    )


def test_a_table_is_read_back_and_the_previous_version_stays(tmp_path: Path) -> None:
    assert table(tmp_path).load_blocking() == {}
    table(tmp_path).save_blocking(b'{"a": 1, "long": 12345}')
    table(tmp_path).save_blocking(b'{"b": 2}')
    assert table(tmp_path).load_blocking() == {"b": 2}
    folder = tmp_path / "config"
    assert sorted(path.name for path in folder.iterdir()) == ["topics.json", "topics.json.bak"]
    assert (folder / "topics.json.bak").read_bytes() == b'{"a": 1, "long": 12345}'


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", None])
def test_the_backup_replaces_a_damaged_table(tmp_path: Path, damage: bytes | None) -> None:
    saved = table(tmp_path)
    saved.save_blocking(b'{"a": 1}')
    saved.save_blocking(b'{"b": 2}')
    main = tmp_path / "config" / "topics.json"
    if damage is None:
        main.unlink()
    else:
        main.write_bytes(damage)
    assert table(tmp_path).load_blocking() == {"a": 1}
    saved.save_blocking(b'{"c": 3}')
    main.write_bytes(b"broken again")
    assert table(tmp_path).load_blocking() == {"a": 1}  # the good .bak was not replaced


def test_damage_without_a_way_out_names_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "topics.json").write_bytes(b"{")
    with pytest.raises(StoreError, match=r"topics\.json is damaged: .* there is no \.bak"):
        table(tmp_path).load_blocking()
    (folder / "topics.json.bak").write_bytes(b"{")
    with pytest.raises(StoreError, match=r"topics\.json\.bak is damaged"):
        table(tmp_path).load_blocking()
    (folder / "topics.json").unlink()
    with pytest.raises(StoreError, match=r"topics\.json\.bak is damaged"):
        table(tmp_path).load_blocking()


def test_an_empty_file_alone_is_an_empty_table(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "topics.json").touch()
    assert table(tmp_path).load_blocking() == {}


def test_bytes_that_could_not_be_read_again_are_refused(tmp_path: Path) -> None:
    table(tmp_path).save_blocking(b'{"a": 1}')
    with pytest.raises(StoreError, match="refusing"):
        table(tmp_path).save_blocking(b"[]")
    assert table(tmp_path).load_blocking() == {"a": 1}


def test_a_stop_at_any_step_leaves_the_old_or_the_new_table(tmp_path: Path) -> None:
    finished = 0
    for calls in range(20):
        folder = tmp_path / str(calls)
        table(folder).save_blocking(b'{"n": 0}')
        table(folder).save_blocking(b'{"n": 1}')
        files = CrashingFiles(calls)
        try:
            table(folder, files).save_blocking(b'{"n": 2}')
            finished += 1
        except Crash:
            pass
        found = table(folder).load_blocking()
        assert found == {"n": 2} or (found == {"n": 1} and files.calls_left < 0)
        table(folder).save_blocking(b'{"n": 3}')
        assert table(folder).load_blocking() == {"n": 3}
    assert 0 < finished < 20


def test_every_flipped_bit_is_found_or_harmless(tmp_path: Path) -> None:
    saved = table(tmp_path, is_guarded=True)
    saved.save_blocking(b'{"a": 1}')
    saved.save_blocking(b'{"b": 22222}')
    main = tmp_path / "config" / "topics.json"
    whole = main.read_bytes()
    assert without_check(whole) == b'{"b": 22222}'
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        main.write_bytes(damaged)
        loaded = table(tmp_path, is_guarded=True)
        found = loaded.load_blocking()
        # In the name of the checksum it harms nobody: that is one more key that is not known.
        assert found == {"a": 1} or found["b"] == 22222, damaged
        assert bool(loaded.repair) == (found == {"a": 1})


def test_a_checksum_of_nothing() -> None:
    assert without_check(with_check(b"{}")) == b"{}"
    assert with_check(b"[]") == b"[]"


def test_a_table_that_was_there_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    assert table(tmp_path, is_guarded=True).load_blocking() == {}
    table(tmp_path, is_guarded=True).save_blocking(b'{"a": 1}')
    main = tmp_path / "config" / "topics.json"
    main.unlink()
    with pytest.raises(StoreError, match=r"topics\.json is missing.* a file that contains {}"):
        table(tmp_path, is_guarded=True).load_blocking()
    main.touch()
    with pytest.raises(StoreError, match=r"topics\.json is empty"):
        table(tmp_path, is_guarded=True).load_blocking()
    main.write_bytes(b"{}")
    assert table(tmp_path, is_guarded=True).load_blocking() == {}


@pytest.mark.parametrize("damage", [None, b"", b"{"])
def test_a_table_that_can_be_done_without_is_set_aside(
    tmp_path: Path, damage: bytes | None
) -> None:
    saved = table(tmp_path, is_guarded=True, without="it is made anew")
    saved.save_blocking(b'{"a": 1}')
    saved.save_blocking(b'{"a": 2}')
    for name in ("topics.json", "topics.json.bak"):
        path = tmp_path / "config" / name
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage)
    loaded = table(tmp_path, is_guarded=True, without="it is made anew")
    assert loaded.load_blocking() == {}
    assert loaded.repair.endswith("it is made anew")
    assert not (tmp_path / "config" / "topics.json").exists()
    assert (tmp_path / "config" / "topics.json.damaged").exists() == (damage is not None)
