"""Pipelines killed in the middle, driver and all, and run again: every message once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rocketpost.client import Message, Producer
from rocketpost.codec.record import Record
from rocketpost.spark.lake.lake import FORMATS, open_lake
from rocketpost.testing.class_archive import java_options
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.link import BrokerLink
from rocketpost.testing.process import ServerFailed, ServerProcess
from rocketpost.testing.process_tree import session_of

pytestmark = pytest.mark.long

MESSAGES = 3000
QUEUES = 4
KILLS = 3
RUN_SECONDS = 600.0
COMMAND = Path(sys.executable).with_name("rocketpost")
EXEC = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"


def pipeline(name: str, *words: str) -> ServerProcess:
    java = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {java_options()}"
    confs = ["spark.driver.memory=1g", f"spark.driver.extraJavaOptions={java}"]
    spark = [word for conf in confs for word in ("--conf", conf)]
    return ServerProcess(
        [str(COMMAND), "pipeline", name, *words, "--master", "local[4]", *spark],
        ready="$^",
        program=["-c", EXEC],
    )


def kill_when(run: ServerProcess, is_time: Callable[[], bool]) -> None:
    """Start a run and kill it, with all that it started, in the middle."""
    run.launch()
    deadline = time.monotonic() + RUN_SECONDS
    while not is_time():
        assert run.is_running, "\n".join(run.output)
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for process in session_of(run.pid):
        process.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.kill()


def run_to_the_end(run: ServerProcess) -> None:
    run.launch()
    with contextlib.suppress(ServerFailed):
        run.wait_for(r"(?!)", seconds=RUN_SECONDS)
    assert not run.is_running
    assert run.exit_code == 0, "\n".join(run.output)
    run.kill()


async def prepare(cluster: Cluster, *topics: str) -> None:
    broker_session = await BrokerLink.connect(cluster.broker_addresses[0])
    for topic in topics:
        await broker_session.create_topic(topic, QUEUES)
    broker_session.close()
    async with Producer("loader", name_servers=cluster.addresses) as producer:
        for start in range(0, MESSAGES, 100):
            messages = [Message(topics[0], b"%d" % n) for n in range(start, start + 100)]
            await asyncio.gather(*map(producer.send, messages))


async def stored(cluster: Cluster, topic: str) -> list[list[Record]]:
    broker_session = await BrokerLink.connect(cluster.broker_addresses[0])
    found = []
    for queue_id in range(QUEUES):
        end = await broker_session.max_offset(topic, queue_id)
        found.append(await broker_session.read(topic, queue_id, 0, end))
    broker_session.close()
    return found


def count(cluster: Cluster, topic: str) -> int:
    return sum(map(len, asyncio.run(stored(cluster, topic))))


@pytest.mark.parametrize("kind", FORMATS)
def test_an_archive_killed_in_the_middle_of_batches(
    cluster: Cluster, tmp_path: Path, kind: str
) -> None:
    topic = f"KilledArchive-{kind}"
    asyncio.run(prepare(cluster, topic))
    lake = open_lake(str(tmp_path), kind)
    run = pipeline(
        "archive",
        *("-n", cluster.addresses, "-t", topic, "--lake", str(tmp_path), "--format", kind),
        *("--max-offsets", "400"),
    )

    def in_next_batch() -> bool:
        number = lake.snapshot().next_number
        return number > done and any(tmp_path.glob(f"data/batch={number:08d}-*"))

    for _ in range(KILLS):
        done = lake.snapshot().next_number
        kill_when(run, in_next_batch)
    assert 0 < len(lake.snapshot().batches) < 8
    run_to_the_end(run)
    kept: Counter[bytes] = Counter()
    for uri in [lake.uri_for(file.path) for file in lake.snapshot().files]:
        kept.update(pq.ParquetFile(uri).read(columns=["body"]).column("body").to_pylist())
    assert kept == Counter(b"%d" % number for number in range(MESSAGES))
    assert lake.find_flaws() == []


def test_a_replay_killed_in_the_middle(cluster: Cluster) -> None:
    asyncio.run(prepare(cluster, "KilledOrigin", "KilledReplay"))
    run = pipeline(
        "replay",
        *("-n", cluster.addresses, "-t", "KilledOrigin", "--to", "KilledReplay"),
        *("--name", "killed", "--rate", "400"),
    )
    for number in range(KILLS):
        kill_when(run, lambda at=number: count(cluster, "KilledReplay") > 600 * (at + 1))  # type: ignore[misc]
    assert count(cluster, "KilledReplay") < MESSAGES
    run_to_the_end(run)
    copies = asyncio.run(stored(cluster, "KilledReplay"))
    bodies = Counter(bytes(record.body) for queue in copies for record in queue)
    assert bodies == Counter(b"%d" % number for number in range(MESSAGES))
    for queue in copies:  # every queue of the origin is in order in one queue
        last: dict[str, int] = {}
        for record in queue:
            origin, _, offset = record.properties["COPY_OF"].rpartition("/")
            assert int(offset) > last.get(origin, -1)
            last[origin] = int(offset)
