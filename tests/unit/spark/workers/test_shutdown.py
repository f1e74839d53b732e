"""Workers that Spark lets go end without a word; those with a task do it."""

from __future__ import annotations

import socket
import subprocess
import sys
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec

import pytest

from rocketpost.spark.workers.shutdown import (
    DAEMON,
    ignore_disconnects,
    quiet_planning_worker,
    worker_daemon,
)

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def spark_worker(connection: socket.socket, authenticated: bool) -> int:
    assert (connection.recv(9), authenticated) == (b"task", True)
    return 0


def process(monkeypatch: pytest.MonkeyPatch, started_as: str | None) -> types.ModuleType:
    """Let this process be one that was started by ``python -m``, or by a script."""
    main = types.ModuleType("__main__")
    main.__spec__ = None if started_as is None else ModuleSpec(started_as, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


def test_a_task_runs_as_before(pair: Pair) -> None:
    pair[1].sendall(b"task")
    assert ignore_disconnects(spark_worker)(pair[0], True) == 0


def test_without_a_task_nothing_is_done(pair: Pair) -> None:
    pair[1].close()
    assert ignore_disconnects(spark_worker)(pair[0], True) == 1


def test_rows_that_nobody_read_end_a_worker_quietly(pair: Pair) -> None:
    pair[0].sendall(b"rows of the task before")
    pair[1].close()
    assert ignore_disconnects(spark_worker)(pair[0], True) == 1


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_rows_that_nobody_reads_end_a_worker_quietly(pair: Pair, error: type[OSError]) -> None:
    def unheard(connection: socket.socket, authenticated: bool) -> int:
        raise error

    pair[1].sendall(b"task")
    assert ignore_disconnects(unheard)(pair[0], True) == 1


def test_other_errors_of_a_worker_are_reported(pair: Pair) -> None:
    def broken(connection: socket.socket, authenticated: bool) -> int:
        raise PermissionError

    pair[1].sendall(b"task")
    with pytest.raises(PermissionError):
        ignore_disconnects(broken)(pair[0], True)


def test_a_worker_that_plans_is_changed_once(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    main = process(monkeypatch, "pyspark.daemon")
    main.worker = spark_worker  # type: ignore[attr-defined]
    quiet_planning_worker()
    changed = main.worker
    quiet_planning_worker()
    assert main.worker is changed
    pair[1].close()
    assert changed(pair[0], True) == 1


@pytest.mark.parametrize("started_as", [None, "pytest", DAEMON])
def test_other_processes_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, started_as: str | None
) -> None:
    main = process(monkeypatch, started_as)
    main.worker = spark_worker  # type: ignore[attr-defined]
    quiet_planning_worker()
    assert main.worker is spark_worker
    assert worker_daemon() == (DAEMON if started_as == DAEMON else None)


def test_another_pyspark_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    main = process(monkeypatch, "pyspark.daemon")
    quiet_planning_worker()
    assert not hasattr(main, "worker")


def test_the_daemon_loads_nothing_that_a_fork_would_break() -> None:
    script = (
        "import os, sys\n"
        f"import {DAEMON}\n"
        "print(len(os.listdir('/proc/self/task')), 'numpy' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["1", "False"]
