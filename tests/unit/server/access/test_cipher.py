"""Encryption of secrets: only with the key, and only for the user."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from rocketpost.errors import ConfigError, StoreError
from rocketpost.server.access.cipher import AesCipher, load_cipher_blocking, parse_key

KEY = bytes(range(32))


def test_a_secret_is_opened_with_its_key_for_its_user_only() -> None:
    cipher = AesCipher(KEY)
    sealed = cipher.seal("norm", "hidden")
    assert "hidden" not in sealed
    assert sealed != cipher.seal("norm", "hidden")
    assert cipher.open("norm", sealed) == "hidden"
    with pytest.raises(StoreError, match="damaged"):
        cipher.open("root", sealed)
    with pytest.raises(StoreError, match="damaged"):
        cipher.open("norm", sealed[:-4] + "AAA=")
    with pytest.raises(StoreError, match="sealed with the key"):
        AesCipher(bytes(32)).open("norm", sealed)
    for text in ("", "x", sealed.partition(".")[0], sealed + ".more"):
        with pytest.raises(StoreError):
            cipher.open("norm", text)


@pytest.mark.parametrize("data", [KEY, KEY.hex().encode() + b"\n", base64.b64encode(KEY)])
def test_a_key_may_be_written_in_three_ways(data: bytes) -> None:
    assert parse_key(data) == KEY


def test_a_key_file_must_be_private_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_cipher_blocking(str(path))
    path.chmod(0o600)
    assert load_cipher_blocking(str(path)) is not None
    path.write_bytes(b"00ff")
    with pytest.raises(ConfigError, match="32 bytes"):
        load_cipher_blocking(str(path))
    path.write_bytes(b"not a key!")
    with pytest.raises(ConfigError, match="openssl"):
        load_cipher_blocking(str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_cipher_blocking(str(tmp_path / "missing"))
    assert load_cipher_blocking("") is None
