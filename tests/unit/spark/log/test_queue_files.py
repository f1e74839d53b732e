"""Files of queues from outside."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from rocketpost.spark.log.queue_files import QueueFiles, batch_positions, list_queues
from rocketpost.store.layout import Layout

ENTRIES = 8


def write(folder: Path, first: int, units: list[tuple[int, int, int]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = b"".join(struct.pack(">qiq", *unit) for unit in units)
    (folder / f"{first * 20:020d}").write_bytes(data.ljust(ENTRIES * 20, b"\0"))


def test_entries_by_offset_over_files_and_beyond(tmp_path: Path) -> None:
    write(tmp_path, 8, [(0, 0x7FFF_FFFF, 0)] * 3 + [(100 + at, 91, at) for at in range(5)])
    write(tmp_path, 16, [(200, 92, -1)])
    queue = QueueFiles(str(tmp_path))
    assert (queue.first, queue.newest, queue.files) == (8, 200, [(8, 16), (16, 24)])
    entries = queue.entries(6, 18)
    assert entries["position"].tolist() == [0] * 5 + [100, 101, 102, 103, 104, 200, 0]
    assert entries["size"].tolist() == [0] * 5 + [91] * 5 + [92, 0]
    assert queue.entries(12, 15)["position"].tolist() == [101, 102, 103]
    assert queue.entries(9, 13)["size"].tolist() == [0, 0, 91, 91]
    found = queue.find_entries(np.array([16, -(2**62), 12, 2**62, 15], np.int64))
    assert found["position"].tolist() == [200, 0, 101, 0, 104]


def test_a_queue_without_entries(tmp_path: Path) -> None:
    assert not QueueFiles(str(tmp_path / "none")).has_files
    write(tmp_path, 0, [])
    queue = QueueFiles(str(tmp_path))
    assert queue.has_files
    assert queue.newest == -1
    assert QueueFiles(str(tmp_path / "none")).find_entries(np.array([1]))["size"].tolist() == [0]


def test_a_file_that_expired_meanwhile_has_nothing(tmp_path: Path) -> None:
    write(tmp_path, 0, [(1, 91, 0)])
    queue = QueueFiles(str(tmp_path))
    (tmp_path / f"{0:020d}").unlink()
    assert queue.entries(0, 1)["size"].tolist() == [0]


def test_trap_files_expire_between_listing_names_and_reading_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(4):
        write(tmp_path, at * ENTRIES, [(at, 91, 0)] * ENTRIES)
    listed = os.listdir

    def then_expire(path: str) -> list[str]:
        names = listed(path)
        (Path(path) / min(names)).unlink()
        return names

    monkeypatch.setattr(os, "listdir", then_expire)
    queue = QueueFiles(str(tmp_path))
    assert (queue.first, queue.newest) == (ENTRIES, 3)
    assert len(batch_positions(str(tmp_path))) > 0

    def then_delete(path: str) -> list[str]:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "listdir", then_delete)
    assert not QueueFiles(str(tmp_path)).has_files
    assert batch_positions(str(tmp_path)).tolist() == []


def test_queues_of_a_topic(tmp_path: Path) -> None:
    for name in ("0", "12", "x"):
        write(tmp_path / "consumequeue/T" / name, 0, [(int(name, 36), 91, 0)])
    layout = Layout(str(tmp_path))
    assert sorted((queue_id, queue.newest) for queue_id, queue in list_queues(layout, "T")) == [
        (0, 0),
        (12, 38),
    ]
    assert list(list_queues(layout, "none")) == []


def test_batches_by_position(tmp_path: Path) -> None:
    data = b"".join(struct.pack(">qi34x", at, 91) for at in (5, 7))
    (tmp_path / f"{0:020d}").write_bytes(data + bytes(46))
    assert batch_positions(str(tmp_path)).tolist() == [5, 7]
    assert batch_positions(str(tmp_path / "none")).tolist() == []
