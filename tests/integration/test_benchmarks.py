"""The benchmarks run, and their load generator refuses to measure anything but success."""

from __future__ import annotations

import importlib
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rocketpost.codec.command import encode_command

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SUCCESS, SYSTEM_BUSY = 0, 2


@pytest.mark.slow
@pytest.mark.long
def test_a_comparison_of_builds_measures_every_row() -> None:
    builds = ["base=.:plain"]
    command = [sys.executable, "benchmarks/compare.py", "--scale", "0.01", "--rounds", "1"]
    done = subprocess.run(
        [*command, *builds], cwd=BENCHMARKS.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for row in ("send", "binary", "keyed", "x16", "64x1", "single", "batch", "pull", "sync"):
        assert f"│ {row} " in done.stdout


@pytest.mark.slow
@pytest.mark.long
def test_two_brokers_are_compared_with_one() -> None:
    command = [sys.executable, "benchmarks/cores.py", "--build", "base=.:plain", "--rows", "send"]
    command += ["--scale", "0.01", "--rounds", "1"]
    done = subprocess.run(command, cwd=BENCHMARKS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ratio of two to one" in done.stdout


@pytest.mark.long
def test_masters_with_and_without_slaves_are_compared() -> None:
    command = [sys.executable, "benchmarks/replication.py", "--build", "base=.:plain"]
    command += ["--scale", "0.01", "--rounds", "1"]
    done = subprocess.run(command, cwd=BENCHMARKS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for figure in ("SYNC_MASTER rate, to alone", "slave, to its master", "catch-up of a new slave"):
        assert f"\n{figure} " in done.stdout


@pytest.mark.parametrize("encoding", [0, 1])
def test_a_refused_request_ends_the_run(encoding: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    closed_loop = importlib.import_module("closed_loop")
    good = encode_command(SUCCESS, opaque=1, flag=1, fields={"queueId": "0"}, encoding=encoding)
    bad = encode_command(SYSTEM_BUSY, opaque=2, flag=1, remark="busy", encoding=encoding)
    server, client = socket.socketpair()
    with server, client:
        answers = closed_loop.Answers()
        server.sendall(good + good + bad[:-1])
        assert answers.read(client) == 2
        server.sendall(bad[-1:])
        with pytest.raises(closed_loop.RequestRefused, match="busy"):
            answers.read(client)
