from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rocketpost.store.checkpoint import Progress, Times, encode_checkpoint
from rocketpost.store.files import RealFiles
from rocketpost.store.layout import Layout
from rocketpost.store.origin import is_foreign_blocking

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
THEIRS = encode_checkpoint(Times(1, 1), Progress(0, 0, 0, 0, 0))[:64].ljust(4096, b"\0")


def is_foreign(root: Path) -> bool:
    return is_foreign_blocking(Layout(str(root)), RealFiles())


@pytest.mark.parametrize("store", ["store-clean", "store-killed"])
def test_a_store_that_rocketmq_wrote_is_foreign(store: str) -> None:
    assert is_foreign(GOLDEN / store / "files")


@pytest.mark.parametrize(
    "name",
    [
        "commitlog/allocating",
        "config/known",
        "config/droppedTopics.json",
        "config/producerState.json",
        "config/producerState.json.bak",
        "cut-tails",
        "damage.json",
        "dropped",
        "extent",
        "hard-state-0",
        "hard-state-1",
        "late-queues",
        "outside-group",
        "resetting",
        "scrub.json",
        "timerwheel.journal0",
        "timerwheel.journal1",
        "truncating",
    ],
)
def test_one_sign_of_ours_is_enough(tmp_path: Path, name: str) -> None:
    (tmp_path / "checkpoint").write_bytes(THEIRS)
    assert is_foreign(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert not is_foreign(tmp_path)


def test_a_checkpoint_of_ours_that_rocketmq_wrote_to_since_is_ours(tmp_path: Path) -> None:
    ours = encode_checkpoint(Times(1, 1), Progress(0, 0, 0, 0, 0))
    (tmp_path / "checkpoint").write_bytes(THEIRS[:64] + ours[64:])
    assert not is_foreign(tmp_path)
    (tmp_path / "checkpoint").write_bytes(THEIRS[:64] + ours[64:72] + bytes(4024))  # damaged
    assert not is_foreign(tmp_path)


@pytest.mark.parametrize("checkpoint", [None, b"", bytes(4096)])
def test_without_a_checkpoint_it_is_in_doubt(tmp_path: Path, checkpoint: bytes | None) -> None:
    shutil.copytree(GOLDEN / "store-clean" / "files" / "commitlog", tmp_path / "commitlog")
    if checkpoint is not None:
        (tmp_path / "checkpoint").write_bytes(checkpoint)
    assert not is_foreign(tmp_path)
