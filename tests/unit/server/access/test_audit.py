"""The audit log: lines of JSON, rotated, complete or honest about what is missing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rocketpost.errors import StoreError
from rocketpost.server.access.audit import AuditLog

NOW = datetime(2026, 11, 18, 3, 4, 5, 678_000, tzinfo=UTC)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def listing(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


async def test_changes_are_on_disk_when_they_return(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(str(path), now=lambda: NOW)
    audit.note("denied", user="norm", reason="x" * 5000, left_out=None)
    await audit.record("userChanged", user="root", target="norm")
    first, second = lines(path)
    assert first["event"] == "denied"
    assert len(first["reason"]) == 1024
    assert second == {
        "at": "2026-11-18T03:04:05.678Z", "event": "userChanged", "user": "root", "target": "norm",
    }  # fmt: skip
    assert path.stat().st_mode & 0o777 == 0o600
    await audit.close()


async def test_the_file_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(str(path), bytes_max=200)
    for number in range(30):
        await audit.record("userChanged", target=str(number))
    await audit.close()
    files = listing(tmp_path)
    found = [each for name in files for each in lines(name)]
    assert len(files) == 6
    assert lines(path)[-1]["target"] == "29"
    assert len(found) < 30, "the oldest files are gone"


async def test_it_says_how_many_lines_it_dropped(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(str(path))
    for _ in range(10_005):
        audit.note("denied")
    await audit.close()
    found = lines(path)
    assert len(found) == 10_001
    assert found[-1]["count"] == 5


async def test_a_change_that_cannot_be_recorded_fails(tmp_path: Path) -> None:
    audit = AuditLog(str(tmp_path / "missing" / "audit.log"))
    with pytest.raises(StoreError, match="cannot be written"):
        await audit.record("userChanged")
    audit.note("denied")
    await audit.close()
