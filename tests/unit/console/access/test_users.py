"""The file of users is readable by its owner alone, and passwords are not in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.console.access.passwords import (
    hash_password_blocking,
    is_password_blocking,
    password_problem,
)
from rocketpost.console.access.users import Role, User, UserFile, name_problem
from rocketpost.errors import ConfigError


def test_users_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "state" / "users.json"
    file = UserFile(path)
    file.load_blocking()
    assert file.is_empty
    file.put(User(name="ada", role="admin", password="scrypt$..."))
    file.save_blocking(file.list())
    assert path.stat().st_mode & 0o777 == 0o600
    again = UserFile(path)
    again.load_blocking()
    found = again.find("ada")
    assert found is not None
    assert found.rights is Role.ADMIN
    assert found.made_ms > 0
    again.remove("ada")
    assert again.is_empty


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_text('{"users": []}')
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        UserFile(path).load_blocking()


@pytest.mark.parametrize("text", ["", "[]", '{"users": [{"name": "ada", "role": "king"}]}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "users.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"users\.json"):
        UserFile(path).load_blocking()


@pytest.mark.slow
def test_passwords_are_kept_as_hashes() -> None:
    kept = hash_password_blocking("correct horse")
    assert "correct" not in kept
    assert is_password_blocking("correct horse", kept)
    assert not is_password_blocking("correct horsf", kept)
    assert not is_password_blocking("correct horse", None)
    assert not is_password_blocking("correct horse", "md5$1$1$00$00")


@pytest.mark.parametrize(
    ("password", "accepted"),
    [
        ("short", False),
        ("a" * 12, False),
        ("Adalovelace", False),
        ("x" * 201, False),
        ("correct horse", True),
    ],
)
def test_weak_passwords_are_refused(password: str, accepted: bool) -> None:
    assert (password_problem(password, "adalovelace") is None) == accepted


def test_names_have_plain_letters() -> None:
    assert name_problem("ada.l@example-1") is None
    for name in ("", "a b", "<script>", "-x", "a" * 65):
        assert name_problem(name) is not None
