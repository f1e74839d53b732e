"""``rocketpost pipeline archive`` as a process: signals, kills, and going on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocketpost.spark.lake.lake import FORMATS, Lake, open_lake
from rocketpost.spark.pipelines.verification import verify
from rocketpost.testing.process_tree import session_of

from .conftest import Topics

pytestmark = pytest.mark.long

WAIT_SECONDS = 300
COMMAND = "from rocketpost.cli import rocketpost; rocketpost()"


class Runs:
    """Commands in processes of their own."""

    def __init__(self, topics: Topics, lake: Path) -> None:
        self.topics = topics
        self.path = lake
        self._started: list[subprocess.Popen[str]] = []

    def start(self, topic: str, *more: str) -> subprocess.Popen[str]:
        words = ["pipeline", "archive", "-n", self.topics.cluster.addresses, "-t", topic]
        words += ["--lake", str(self.path), "--json", "-", "--master", "local[1]", *more]
        words += ["--conf", "spark.driver.memory=512m"]
        run = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(run)
        return run

    def lake(self) -> Lake:
        return open_lake(str(self.path))

    def close(self) -> None:
        for run in self._started:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
            run.communicate()


@pytest.fixture
def runs(topics: Topics, tmp_path: Path) -> Iterator[Runs]:
    made = Runs(topics, tmp_path / "lake")
    yield made
    made.close()


def until(is_true: Callable[[], bool], run: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_true():
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def bodies(count: int) -> list[bytes]:
    return [b"%05d" % number for number in range(count)]


def is_writing(path: Path) -> bool:
    return any(path.glob("data/batch=*/_temporary/**/*.parquet"))


@pytest.mark.parametrize("how", ["--every", "--continuous"])
def test_a_signal_ends_a_continuous_run(topics: Topics, runs: Runs, how: str) -> None:
    topic = f"Endless{how}"
    topics.send(topic, bodies(30))
    every = [how, "1"] if how == "--every" else [how]
    run = runs.start(topic, *every)
    until(lambda: runs.lake().snapshot().rows == 30, run)
    topics.send(topic, bodies(10))
    until(lambda: runs.lake().snapshot().rows == 40, run)
    os.killpg(run.pid, signal.SIGINT if how == "--every" else signal.SIGTERM)
    out, errors = run.communicate(timeout=WAIT_SECONDS)
    assert run.returncode == 0, errors
    report = json.loads(out)
    assert (report["ok"], report["messages"]) == (True, 40)
    assert verify(topics.spark, str(runs.path)) == []


def test_spark_ends_with_a_driver_that_is_killed(topics: Topics, runs: Runs) -> None:
    topics.send("Orphaned", bodies(30))
    run = runs.start("Orphaned", "--continuous")
    until(lambda: runs.lake().snapshot().rows == 30, run)
    assert len(list(session_of(run.pid))) > 1
    run.kill()
    run.communicate()
    while any(session_of(run.pid)):
        time.sleep(0.1)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_batch_that_was_interrupted_is_archived_by_the_next_run(
    topics: Topics, runs: Runs, kind: str
) -> None:
    topic = f"Ended-{kind}"
    for _ in range(4):
        topics.send(topic, [body * 200 for body in bodies(10_000)])
    run = runs.start(topic, "--format", kind, "--max-offsets", "10000")
    until(lambda: runs.lake().snapshot().rows >= 10_000 and is_writing(runs.path), run)
    os.killpg(run.pid, signal.SIGTERM)  # as a terminal or a supervisor does it
    out, errors = run.communicate(timeout=WAIT_SECONDS)
    assert run.returncode == 1, errors
    assert "Traceback" not in errors
    report = json.loads(out)
    assert "start it again" in report["error"]
    held = runs.lake().snapshot()
    assert 10_000 <= held.rows == report["messages"] < 40_000
    assert not any(runs.path.glob("data/batch=*/_temporary"))

    run = runs.start(topic)
    _, errors = run.communicate(timeout=WAIT_SECONDS)
    assert run.returncode == 0, errors
    assert runs.lake().snapshot().rows == 40_000
    assert verify(topics.spark, str(runs.path)) == []
