"""Spark's driver is killed again and again while it copies a topic of Apache's broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.servers import SMALL_STORE, Cluster
from interop.topics import fill, judged, make_topic, read
from rocketpost.testing.spark_job import Job

pytestmark = [pytest.mark.interop, pytest.mark.long]

MESSAGES = 4000
DRIVERS_KILLED = 3
WAIT_SECONDS_MAX = 300.0


@pytest.fixture
def apache(java: None, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "apache", "apache", settings=SMALL_STORE) as cluster:
        yield cluster


def stored(cluster: Cluster) -> int:
    return sum(map(len, read(cluster, "Copied").values()))


def wait_for(cluster: Cluster, count: int, driver: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while stored(cluster) < count:
        assert time.monotonic() < deadline, "nothing moves"
        assert driver.poll() is None, "the driver has ended"
        time.sleep(0.1)


def start(path: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "rocketpost.testing.spark_job", str(path)]
    return subprocess.Popen(command, start_new_session=True)


def kill(driver: subprocess.Popen[bytes]) -> None:
    """End the driver and its JVM; the workers of Python notice that by themselves."""
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


@pytest.mark.parametrize(
    ("delivery", "is_once"), [("atLeastOnce", False), ("effectivelyOnce", True)]
)
def test_no_row_is_lost_or_stored_twice(
    apache: Cluster, tmp_path: Path, delivery: str, is_once: bool
) -> None:
    fill(apache, "Origin", MESSAGES)
    make_topic(apache, "Copied")
    job = Job(
        name_servers=apache.namesrv,
        source="Origin",
        target="Copied",
        directory=str(tmp_path),
        delivery=delivery,
        offsets_max=800,
        rate=300,
        master="local[2,4]",
    )
    job.write(tmp_path / "job.json")
    for killed in range(DRIVERS_KILLED):
        driver = start(tmp_path / "job.json")
        try:
            # In the middle of a batch: some of its rows are stored, and no task has ended.
            wait_for(apache, stored(apache) + 300 + 150 * killed, driver)
        finally:
            kill(driver)
    apache.kill_broker()
    apache.start_broker()
    (tmp_path / "stop").touch()
    driver = start(tmp_path / "job.json")
    try:
        assert driver.wait(WAIT_SECONDS_MAX) == 0
    finally:
        if driver.poll() is None:
            kill(driver)
    missing, repeated, disordered = judged(read(apache, "Copied"), read(apache, "Origin"))
    print(f"{delivery}: {missing=} {repeated=} {disordered=} drivers killed: {DRIVERS_KILLED}")
    assert missing == 0
    if is_once:
        assert (repeated, disordered) == (0, 0)
    else:
        assert repeated > 0  # the test can tell
