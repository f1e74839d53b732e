"""Sizes and properties of ``rocketpost up``."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.errors import ConfigError
from rocketpost.server.settings.up import SMALL, parse_size, sizes_blocking
from rocketpost.server.up import settings_of


def make_store(root: Path, *, segment: int, index: int) -> None:
    for name, size in (("commitlog/" + "0" * 20, segment), ("index/20260101000000000", index)):
        path = root / name
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            file.truncate(size)


def test_a_new_store_has_small_files(tmp_path: Path) -> None:
    assert sizes_blocking(str(tmp_path), {}) == SMALL
    assert sizes_blocking(str(tmp_path), {"mappedFileSizeCommitLog": "1", "maxIndexNum": "4"}) == {}


def test_an_existing_store_keeps_its_sizes(tmp_path: Path) -> None:
    make_store(tmp_path, segment=1024**3, index=40 + 5_000_000 * 4 + 20_000_000 * 20)
    assert sizes_blocking(str(tmp_path), {}) == {
        "mappedFileSizeCommitLog": "1073741824",
        "maxHashSlotNum": "5000000",
        "maxIndexNum": "20000000",
    }
    assert "mappedFileSizeCommitLog" not in sizes_blocking(
        str(tmp_path), {"mappedFileSizeCommitLog": "7"}
    )


def test_a_log_elsewhere_is_looked_at(tmp_path: Path) -> None:
    make_store(tmp_path / "a", segment=4096, index=0)
    given = {"storePathCommitLog": str(tmp_path / "a" / "commitlog")}
    assert sizes_blocking(str(tmp_path / "b"), given)["mappedFileSizeCommitLog"] == "4096"


@pytest.mark.parametrize(
    ("text", "size"), [("64M", 64 * 1024**2), ("1g", 1024**3), ("512 ", 512), ("8kb", 8192)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "1.5G", "-1", "1T"])
def test_text_that_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)


def test_a_file_is_taken_but_for_what_options_decide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("listenPort=1\nbrokerName=mine\nmapedFileSizeCommitLog=8388608\nmaxIndexNum=\n")
    assert settings_of(file, "16M") == {"brokerName": "mine", "mappedFileSizeCommitLog": "16777216"}
    told = capsys.readouterr().err
    assert f"note: listenPort of {file} has no effect: --broker-port decides it here" in told
    file.write_text("colour=red\n")
    with pytest.raises(ConfigError, match="colour"):
        settings_of(file, None)
