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
    now = 0.0

    def tick() -> float:
        nonlocal now
        now += 61.0
        return now

    audit = AuditLog(str(path), seconds=tick)  # each line is the first of its minute
    for _ in range(10_005):
        audit.note("denied")
    await audit.close()
    found = lines(path)
    assert len(found) == 10_001
    assert found[-1]["count"] == 5


async def test_strangers_cannot_push_changes_out_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(str(path), bytes_max=20_000, seconds=lambda: 0.0)
    await audit.record("userChanged", user="root", target="norm")
    for number in range(100_000):
        audit.note("loginFailed", user="root", source=f"10.0.{number % 30}.1:{number % 60_000}")
    await audit.close()
    found = lines(path)
    assert found[0]["event"] == "userChanged"
    written = [line for line in found if "leftOut" not in line and line["event"] == "loginFailed"]
    left_out = [line["leftOut"] for line in found if "leftOut" in line]
    assert len(written) == 100
    assert sum(left_out) == 100_000 - 100
    assert len(left_out) == 30


async def test_one_source_does_not_hide_the_others(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(str(path), seconds=lambda: 0.0)
    for port in range(1000):
        audit.note("loginFailed", source=f"10.0.0.1:{port}")
    audit.note("loginFailed", source="10.0.0.2:1")
    await audit.close()
    sources = [line["source"] for line in lines(path) if "leftOut" not in line]
    assert len(sources) == 21
    assert sources[-1] == "10.0.0.2:1"


async def test_missing_lines_are_counted_when_the_next_interval_begins(tmp_path: Path) -> None:
    path, now = tmp_path / "audit.log", [0.0]
    audit = AuditLog(str(path), seconds=lambda: now[0])
    for port in range(21):
        audit.note("denied", source=f"10.0.0.1:{port}")
    now[0] = 60.0
    audit.note("denied", source="10.0.0.1:99")
    await audit.close()
    found = lines(path)
    assert found[20] == {**found[20], "event": "denied", "source": "10.0.0.1", "leftOut": 1}
    assert found[21]["source"] == "10.0.0.1:99"


async def test_a_change_that_cannot_be_recorded_fails(tmp_path: Path) -> None:
    audit = AuditLog(str(tmp_path / "missing" / "audit.log"))
    with pytest.raises(StoreError, match="cannot be written"):
        await audit.record("userChanged")
    audit.note("denied")
    await audit.close()


async def test_the_newest_lines_are_read_across_rotated_files(tmp_path: Path) -> None:
    audit = AuditLog(str(tmp_path / "audit.log"), bytes_max=400, seconds=lambda: 0.0)
    for number in range(12):
        await audit.record(
            "userChanged", user="even" if number % 2 == 0 else "odd", target=str(number)
        )
    audit.note("denied", user="even", source="10.0.0.1:1")

    async def targets(count: int, **wanted: str) -> list[str]:
        found = [json.loads(line) for line in await audit.newest(count, **wanted)]
        return [line.get("target", line["event"]) for line in found]

    assert await targets(3) == ["10", "11", "denied"]
    assert await targets(3, user="odd") == ["7", "9", "11"]
    assert await targets(9, event="denied") == ["denied"]
    assert await targets(9, event="denied", user="odd") == []
    assert await targets(100) == [str(number) for number in range(12)] + ["denied"]
    await audit.close()


async def test_half_a_line_of_a_power_cut_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b'{"at":"x","event":"userCreated"}\n{"at":"y","ev')
    audit = AuditLog(str(path))
    assert await audit.newest(10) == [b'{"at":"x","event":"userCreated"}']
    await audit.close()


async def test_a_long_log_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    lines_ = [json.dumps({"event": "denied", "target": str(number)}) for number in range(9000)]
    path.write_text("\n".join(lines_) + "\n")
    audit = AuditLog(str(path))
    assert [line.decode() for line in await audit.newest(5000)] == lines_[-5000:]
    await audit.close()
