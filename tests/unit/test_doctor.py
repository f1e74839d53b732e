"""Every check of ``rocketpost doctor``, and what it advises."""

from __future__ import annotations

import json
import resource
import socket
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rocketpost import doctor
from rocketpost.cli import rocketpost
from rocketpost.doctor import Finding, Level
from rocketpost.kernel.form import Form

Usage = namedtuple("Usage", "total used free")
GB = 1024**3


def only(findings: Iterator[Finding]) -> Finding:
    (found,) = findings
    return found


def test_the_command_prints_every_finding_and_exits_by_the_worst(tmp_path: Path) -> None:
    done = CliRunner().invoke(rocketpost, ["doctor", "--data", str(tmp_path / "new")])
    for name in ("rocketpost", "python", "kernel", "libraries", "uvloop", "open files", "store"):
        assert f" {name}" in done.output
    as_json = CliRunner().invoke(rocketpost, ["doctor", "--data", str(tmp_path), "--json"])
    worst = max(Level[each["level"].upper()] for each in json.loads(as_json.output))
    assert done.exit_code == as_json.exit_code == doctor.EXIT_CODES[worst]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("levels", "code"),
    [([], 0), ([0, 1], 0), ([Level.WARNING, 0], 1), ([Level.WARNING, Level.PROBLEM], 2)],
)
def test_exit_codes(levels: list[int], code: int) -> None:
    assert doctor.exit_code([Finding("x", Level(level), "") for level in levels]) == code


@pytest.mark.parametrize(
    ("form", "level", "advice"),
    [
        (Form("compiled", "by cc from Cython 3"), Level.OK, ""),
        (Form("switched off", "so"), Level.NOTE, "unset ROCKETPOST_KERNEL"),
        (Form("absent", "so"), Level.WARNING, "make kernel"),
        (Form("failed", "so"), Level.WARNING, "make kernel"),
        (Form("stale", "so"), Level.WARNING, "make kernel"),
    ],
)
def test_the_form_of_the_kernel(form: Form, level: Level, advice: str) -> None:
    found = only(doctor.check_kernel(form))
    assert found.level == level
    assert advice in found.advice
    assert form.reason in found.text


def test_an_installed_package_is_not_told_to_run_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_CHECKOUT", tmp_path)
    assert "pip install" in only(doctor.check_kernel(Form("absent", "so"))).advice


def test_few_open_files_are_a_warning() -> None:
    few, many, endless = (
        only(doctor.check_open_files(limits))
        for limits in ((256, 1024), (1024, 65_536), (1024, resource.RLIM_INFINITY))
    )
    assert (few.level, many.level, endless.level) == (Level.WARNING, Level.OK, Level.OK)
    assert "LimitNOFILE" in few.advice
    assert "by themselves" in many.text


def test_missing_libraries_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_LIBRARIES", ("click", "no_such_library"))
    found = next(doctor.check_libraries())
    assert found.level == Level.PROBLEM
    assert "no_such_library" in found.text


def test_a_store_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    found = only(doctor.check_store(file / "data"))
    assert found.level == Level.PROBLEM
    assert "--data" in found.advice


@pytest.mark.parametrize(
    ("usage", "kind", "level", "said"),
    [
        (Usage(100 * GB, 50 * GB, 50 * GB), "ext4", Level.OK, "writable, 50.0 GB free"),
        (Usage(100 * GB, 85 * GB, 9 * GB), "ext4", Level.PROBLEM, "90 % full"),
        (Usage(10 * GB, 8 * GB, 2 * GB), "ext4", Level.WARNING, "only 2.0 GB free"),
        (Usage(100 * GB, 50 * GB, 50 * GB), "tmpfs", Level.WARNING, "in memory"),
        (Usage(100 * GB, 50 * GB, 50 * GB), "nfs4", Level.WARNING, "on the network"),
    ],
)
def test_the_disk_of_the_store(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    usage: Usage,
    kind: str,
    level: Level,
    said: str,
) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(doctor, "file_system_of", lambda path: kind)
    found = only(doctor.check_store(tmp_path))
    assert found.level == level
    assert said in found.text


def test_the_file_system_of_the_longest_mount_counts(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("a / ext4 rw 0 0\nb /data tmpfs rw 0 0\nc /data/my\\040disk xfs rw 0 0\n")
    kinds = [
        doctor.file_system_of(Path(path), mounts)
        for path in ("/home", "/data/x", "/data/my disk/x", "/database")
    ]
    assert kinds == ["ext4", "tmpfs", "xfs", "ext4"]
    assert doctor.file_system_of(Path("/"), tmp_path / "absent") == ""


def test_ports_in_use_are_noted() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        found = only(doctor.check_ports((port,)))
    assert found.level == Level.NOTE
    assert str(port) in found.text


def test_an_old_or_absent_java_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for said, level in (("1.8.0_392", Level.WARNING), ("17.0.15", Level.OK), ("?", Level.WARNING)):
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{said}\"' >&2\n")
        java.chmod(0o755)
        *_, found = doctor.check_spark()
        assert found.level == level, found
    java.unlink()
    *_, found = doctor.check_spark()
    assert "cannot be started" in found.text


def test_spark_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_SPARK_LIBRARIES", ("no-such-library",))
    found = only(doctor.check_spark())
    assert (found.level, "rocketpost[spark]" in found.advice) == (Level.NOTE, True)
