"""Sources of the tools' keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.admin.credentials import parse_tools_file, tool_credentials_blocking
from rocketpost.client import Credentials
from rocketpost.errors import ConfigError


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY", "ROCKETMQ_SECURITY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    (tmp_path / "conf").mkdir()
    return tmp_path


def test_without_a_file_there_are_none() -> None:
    assert tool_credentials_blocking() is None


def test_the_file_of_rocketmq_is_read(home: Path) -> None:
    (home / "conf" / "tools.yml").write_text(
        "# licence\n---\naccessKey: rocketmq2\nsecretKey: '12 #345' # of the tools\n"
    )
    assert tool_credentials_blocking() == Credentials("rocketmq2", "12 #345")


def test_the_environment_wins(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "conf" / "tools.yml").write_text("accessKey: a\nsecretKey: b\n")
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "c")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "d")
    assert tool_credentials_blocking() == Credentials("c", "d")


def test_half_of_the_keys_is_refused_by_name(home: Path) -> None:
    (home / "conf" / "tools.yml").write_text("accessKey: a\n")
    with pytest.raises(ConfigError, match=r"tools\.yml: .*a secret key is missing"):
        tool_credentials_blocking()


def test_an_unreadable_file_is_named_without_its_text() -> None:
    with pytest.raises(ConfigError, match="line 2 of F is not key: value") as raised:
        parse_tools_file("accessKey: a\nsecretKey:hush", name="F")
    assert "hush" not in str(raised.value)
