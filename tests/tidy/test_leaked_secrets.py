"""The search for secrets finds what it should."""

from __future__ import annotations

import logging
from pathlib import Path

from leaked_secrets import SecretWatch, find_leaks, find_secret

SECRET = "found" + "-secret"


def test_files_with_secrets_are_found_unless_they_are_settings(tmp_path: Path) -> None:
    (tmp_path / "audit.log").write_text(f"password {SECRET} given")
    (tmp_path / "auth.json.bak").write_text(SECRET)
    (tmp_path / "broker.conf").write_text(SECRET)
    sparse = tmp_path / "00000000000000000000"
    with sparse.open("wb") as file:
        file.seek(3_000_000 - 5)
        file.write(SECRET.encode())
        file.truncate(20_000_000)
    found = sorted(find_leaks(tmp_path))
    assert found == [f"{sparse}: {SECRET}", f"{tmp_path / 'audit.log'}: {SECRET}"]
    for path in (sparse, tmp_path / "audit.log"):
        path.unlink()
    assert not list(find_leaks(tmp_path))


def test_log_lines_with_secrets_are_found() -> None:
    watch = SecretWatch()
    logger = logging.Logger("own")
    logger.addHandler(watch)
    logger.info("user created: name=%s", "norm")
    assert not watch.found
    logger.info("user created: password=%s", SECRET)
    assert SECRET in watch.found.pop()
    assert find_secret("no secrets, only the-secretary") is None
