"""A replay whose driver is killed again and again: every copy once, and in order."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from rocketpost.client import Message, Producer
from rocketpost.spark.broker_session import BrokerSession
from rocketpost.spark.options import SourceOptions
from rocketpost.testing.cluster import Cluster

from .conftest import Topics

pytestmark = pytest.mark.long

MESSAGES = 3000
KEYS = 7


def test_a_killed_replay_continues_where_it_stopped(topics: Topics, tmp_path: Path) -> None:
    asyncio.run(send(topics.cluster))
    topics.send("KilledCopy", [b"first"])
    for goal in (300, 1500):
        run = start(topics.cluster, tmp_path)
        wait_for(topics.cluster, goal, run)
        os.killpg(run.pid, signal.SIGKILL)  # driver, JVM and workers, with copies under way
        run.communicate()
    run = start(topics.cluster, tmp_path)
    run.communicate()
    assert run.returncode == 0
    rows = [
        row
        for row in topics.read("KilledCopy").orderBy("commitLogOffset").collect()
        if "COPY_OF" in row.properties
    ]
    assert Counter(int(bytes(row.body)) for row in rows) == Counter(range(0, MESSAGES, 2))
    assert len({row.queueId for row in rows}) > 1
    by_key: dict[str, list[int]] = {}
    for row in rows:
        origin = row.properties["COPY_OF"].rpartition("/")[0]
        key = row.properties.get("__SHARDINGKEY", origin)
        by_key.setdefault(key, []).append(int(bytes(row.body)))
    assert len(by_key) == KEYS + 4
    for bodies in by_key.values():
        assert all(one < other for one, other in pairwise(bodies))


def test_a_replay_that_is_stopped_says_how_many_are_stored(topics: Topics, tmp_path: Path) -> None:
    topics.send("Stopped", [b"%d" % number for number in range(2000)])
    topics.send("StoppedCopy", [b"first"])
    words = ["-t", "Stopped", "--to", "StoppedCopy", "--name", "stopped", "--json", "-"]
    copies = 0
    for stop in (os.kill, os.killpg):  # the latter ends its JVM as well
        goal = copies + 100
        run = start(topics.cluster, tmp_path, *words)
        wait_for(topics.cluster, goal, run, topic="StoppedCopy")
        stop(run.pid, signal.SIGTERM)
        out, errors = run.communicate()
        assert run.returncode == 1, errors
        assert b"ConnectionRefusedError" not in errors, errors.decode()
        assert errors.splitlines()[-1].startswith(b"Error: stopped before everything was done")
        if stop is os.kill:  # else Spark's JVM and its workers have words of their own
            assert b" ERROR " not in errors
            assert b"Traceback" not in errors
        report = json.loads(out)
        assert report["error"].startswith("stopped before everything was done; start it again")
        assert report["messages"] == 2000
        copies = topics.read("StoppedCopy").filter("properties['COPY_OF'] IS NOT NULL").count()
        assert goal <= report["stored"] + 1 <= copies + 1 < 2000, errors
        if stop is os.kill:
            assert report["stored"] == copies
    run = start(topics.cluster, tmp_path, *words[:-2])
    run.communicate()
    assert run.returncode == 0
    assert topics.read("StoppedCopy").count() == 2001


async def send(cluster: Cluster) -> None:
    """Send messages, of which every second has the tag of the replay, half with sharding keys."""
    async with Producer("p", name_servers=cluster.addresses) as producer:
        for number in range(MESSAGES):
            message = Message(
                "Killed",
                b"%d" % number,
                tags="even" if number % 2 == 0 else "odd",
                sharding_key=None if number % 4 else f"key-{number % KEYS}",
            )
            await producer.send_soon(message)
        await producer.flush()


def start(cluster: Cluster, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    words = words or ("-t", "Killed", "--tags", "even", "--to", "KilledCopy", "--name", "killed")
    command = [
        str(Path(sys.executable).with_name("rocketpost")), "pipeline", "replay",
        "-n", cluster.addresses, *words,
        "--rate", "200", "--conf", "spark.driver.memory=1g", "--conf", f"spark.local.dir={folder}",
    ]  # fmt: skip
    return subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def wait_for(
    cluster: Cluster, count: int, run: subprocess.Popen[bytes], *, topic: str = "KilledCopy"
) -> None:
    """Wait until so many copies are stored."""
    with BrokerSession(
        SourceOptions(name_servers=cluster.addresses, topic=topic)
    ) as broker_session:
        queues = broker_session.queues()
        while sum(bound.end for bound in broker_session.bounds(queues).values()) < count:
            assert run.poll() is None, "the replay ended before it could be killed"
            time.sleep(0.1)
