from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from rocketpost.errors import ConfigError
from rocketpost.server.secure.authority import Authority


def test_an_authority_can_be_read_again(tmp_path: Path) -> None:
    certificate, key = tmp_path / "ca.pem", tmp_path / "ca.key"
    made = Authority.make("shop")
    made.pem.write_blocking(certificate, key)
    assert Authority.load_blocking(certificate, key).pem == made.pem
    key.write_text("rubbish")
    with pytest.raises(ConfigError, match="cannot be used"):
        Authority.load_blocking(certificate, key)


def test_keys_are_private_and_not_shown(tmp_path: Path) -> None:
    key = tmp_path / "ca.key"
    key.touch(0o644)
    issued = Authority.make("shop").issue("broker", hosts=["10.0.0.1", "broker.shop"])
    issued.write_blocking(tmp_path / "ca.pem", key)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert issued.key.decode().splitlines()[1] not in repr(issued)


def test_without_cryptography_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r"rocketpost\[secure\]"):
        Authority.make("shop")
