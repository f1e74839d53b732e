"""A campaign that kills producer, broker and Spark processes while Spark copies a topic.

A feeder sends numbered messages; one Spark job on a standalone cluster copies them to another topic
and to a lake of Parquet files. A round sends more messages, waits until some are copied, and kills
one process: producer, broker, driver, executor or Python worker. A seed chooses which and when. At
the end the topic, its copy and the lake must hold the same messages, each once, and those of one
sharding key in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from rocketpost.codec.record import Record
from rocketpost.errors import ClientError, Fault
from rocketpost.spark.lake.lake import open_lake
from rocketpost.testing import class_archive
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.feeder import TOPIC, key_of, write_number
from rocketpost.testing.ledger import PromiseBroken
from rocketpost.testing.link import BrokerLink
from rocketpost.testing.process import ServerProcess
from rocketpost.testing.process_tree import Process, session_of
from rocketpost.testing.spark_cluster import SparkCluster
from rocketpost.testing.spark_job import READY, Job

logger = logging.getLogger(__name__)

COPY: Final = "Copied"
QUEUES: Final = 4
SHARES: Final = {
    "executor": 5,
    "worker": 5,
    "broker": 5,
    "driver": 4,
    "producer": 3,
    "planner": 2,
}
"""Relative frequency of each kind of process among the kills.

An executor is a JVM that runs tasks, a worker one of its Python processes, and a planner a Python
process of the driver.
"""
_OFFSETS_MAX: Final = 4000
_RATE: Final = 1000
_MOVE_SECONDS: Final = 90.0
_VICTIM_SECONDS: Final = 60.0
_DELAY_SECONDS_MAX: Final = 1.5
_DOWN_SECONDS_MAX: Final = 3.0
_FINISH_SECONDS: Final = 1200.0
_POLL_SECONDS: Final = 0.1
_SPARK: Final = {
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "8",
    "spark.locality.wait": "0",
}

Place = tuple[int, int]
"""Queue id and queue offset."""


@dataclass(slots=True)
class SparkReport:
    """Report of a campaign."""

    seed: int
    messages: int
    delivery: str
    kills: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    """Number of kills during a batch of the copy or of the lake."""
    jobs: int = 0
    lost: int = 0
    repeated: int = 0
    disordered: int = 0
    batches: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        kinds = " ".join(f"{kind}={count}" for kind, count in sorted(self.kills.items()))
        return (
            f"seed={self.seed} delivery={self.delivery} messages={self.messages} "
            f"kills={self.kills.total()} ({kinds}) "
            f"in a batch of the copy={self.hits['copy']} of the lake={self.hits['lake']} "
            f"drivers={self.jobs} "
            f"copy: lost={self.lost} repeated={self.repeated} disordered={self.disordered}; "
            f"lake: batches={self.batches}; seconds={self.seconds:.0f}"
        )


def deck(rng: random.Random, count: int) -> list[str]:
    """Return the kinds of process to kill: each by its share, in random order."""
    total = sum(SHARES.values())
    kinds = [kind for kind, share in SHARES.items() for _ in range(count * share // total)]
    kinds += rng.choices(list(SHARES), weights=list(SHARES.values()), k=count - len(kinds))
    rng.shuffle(kinds)
    return kinds


class SparkCampaign:
    """Kills one broker, one feeder and one Spark job many times. Use as a context manager.

    Args:
        directory: The directory for all data.
        seed: The seed of all choices.
        messages: Number of messages to send.
        delivery: The delivery option of the sink.
    """

    def __init__(self, directory: Path, *, seed: int, messages: int, delivery: str) -> None:
        self.report = SparkReport(seed, messages, delivery)
        self._rng = random.Random(seed)
        self._directory = directory
        self._cluster = Cluster(directory)
        self._spark = SparkCluster(directory / "spark", workers=2, cores=3)
        self._job = Job(
            name_servers=self._cluster.addresses,
            source=TOPIC,
            target=COPY,
            directory=str(directory),
            delivery=delivery,
            offsets_max=_OFFSETS_MAX,
            rate=_RATE,
            master=self._spark.master,
            options=_SPARK,
        )
        path = directory / "job.json"
        self._job.write(path)
        self._feeder = ServerProcess(
            [self._cluster.addresses, str(directory)],
            ready="$^",
            program=["-m", "rocketpost.testing.feeder"],
        )
        self._driver = ServerProcess(
            [str(path)],
            ready=READY,
            environment=self._spark.environment,
            program=["-m", "rocketpost.testing.spark_job"],
        )

    def __enter__(self) -> SparkCampaign:
        class_archive.java_options()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._cluster)
            stack.enter_context(self._spark)
            stack.callback(self._kill_driver)
            stack.callback(self._feeder.kill)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def run(self, kills: int) -> SparkReport:
        """Kill ``kills`` processes, let everything finish, and compare.

        Raises:
            PromiseBroken: The source or the lake is wrong. Errors of the copy are in the report,
                since not every delivery option promises the same.
        """
        began = time.monotonic()
        link = await BrokerLink.connect(self._cluster.broker_addresses[0])
        for topic in (TOPIC, COPY):
            await link.create_topic(topic, QUEUES)
        link.close()
        step = self.report.messages // kills
        for number, kind in enumerate(deck(self._rng, kills), 1):
            target = self.report.messages if number == kills else step * number
            write_number(self._directory / "target", target)
            await self._round(kind, step)
        await self._finish()
        await self._check()
        self.report.seconds = time.monotonic() - began
        return self.report

    async def _round(self, kind: str, step: int) -> None:
        await self._ensure()
        await self._until_copied(step // 2)
        await asyncio.sleep(self._rng.uniform(0, _DELAY_SECONDS_MAX))
        victim = None
        if kind in ("executor", "worker", "planner"):
            victim = await self._victim(kind)
            kind = kind if victim is not None else "driver"
        for what, is_hit in (("copy", self._copies()), ("lake", self._archives())):
            self.report.hits[what] += is_hit
        await asyncio.to_thread(self._kill, kind, victim)
        self.report.kills[kind] += 1
        if kind == "broker":
            await asyncio.sleep(self._rng.uniform(0, _DOWN_SECONDS_MAX))
            await asyncio.to_thread(self._cluster.brokers[0].start)
        logger.info("killed: kind=%s copied=%s", kind, await self._count_copied())

    def _kill(self, kind: str, victim: Process | None) -> None:
        if victim is not None:
            victim.kill()
        elif kind == "driver":
            self._kill_driver()
        elif kind == "producer":
            self._feeder.kill()
        else:
            self._cluster.brokers[0].kill()

    async def _victim(self, kind: str) -> Process | None:
        """Return a process to kill, waiting for one; None if none appears in time."""
        find = {
            "executor": self._executors,
            "worker": self._workers,
            "planner": self._planners,
        }[kind]
        deadline = time.monotonic() + _VICTIM_SECONDS
        while not (found := find()) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        return self._rng.choice(sorted(found)) if found else None

    def _executors(self) -> list[Process]:
        return [
            each for each in self._spark.processes() if "CoarseGrainedExecutorBack" in each.command
        ]

    def _workers(self) -> list[Process]:
        return [each for each in self._spark.processes() if "pyspark.daemon" in each.command]

    def _planners(self) -> list[Process]:
        if not self._driver.is_running:
            return []
        return [
            each
            for each in session_of(self._driver.pid)
            if "pyspark" in each.command
            and "java" not in each.command.partition(" ")[0]
            and each.pid != self._driver.pid
        ]

    def _copies(self) -> bool:
        """Tell whether the stream is in the middle of a batch."""
        newest = [
            max((int(path.name) for path in folder.glob("[0-9]*")), default=-1)
            for folder in (Path(self._job.checkpoint, name) for name in ("offsets", "commits"))
        ]
        return newest[0] > newest[1]

    def _archives(self) -> bool:
        """Tell whether the lake has files of an uncommitted batch."""
        number = open_lake(self._job.lake).snapshot().next_number
        return any(Path(self._job.lake).glob(f"data/batch={number:08d}-*"))

    async def _ensure(self) -> None:
        if not self._feeder.is_running:
            self._feeder.kill()
            self._feeder.launch()
        if not self._driver.is_running:
            if self.report.jobs:
                logger.info("the job is gone: %s", self._output())
            self._kill_driver()
            self._driver.launch()
            self.report.jobs += 1
            await asyncio.to_thread(self._driver.wait_ready, seconds=_FINISH_SECONDS)
            logger.info("the job is ready: number=%s", self.report.jobs)

    async def _until_copied(self, more: int) -> None:
        """Wait until more messages are copied; not for long, since kills may prevent it."""
        wanted = await self._count_copied() + more
        deadline = time.monotonic() + _MOVE_SECONDS
        while time.monotonic() < deadline and await self._count_copied() < wanted:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)

    async def _count_copied(self) -> int:
        try:
            link = await BrokerLink.connect(self._cluster.broker_addresses[0])
        except ClientError:
            return 0
        try:
            return sum([await link.max_offset(COPY, queue_id) for queue_id in range(QUEUES)])
        except (ClientError, Fault):
            return 0
        finally:
            link.close()

    async def _finish(self) -> None:
        await self._ensure()
        (self._directory / "stop").touch()
        # The job reads once more after the feeder is done, and then has everything.
        deadline = time.monotonic() + _FINISH_SECONDS
        while self._feeder.is_running and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        self._kill_driver()
        self._driver.launch()
        self.report.jobs += 1
        while self._driver.is_running and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        if self._driver.is_running or self._feeder.is_running:
            raise PromiseBroken("the job did not come to its end:\n" + self._output())

    def _output(self) -> str:
        return "\n".join(list(self._driver.output)[-20:])

    def _kill_driver(self) -> None:
        """Kill the driver with its JVM; executors notice by themselves."""
        left = []
        if self.report.jobs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._driver.pid, signal.SIGKILL)
            left = list(session_of(self._driver.pid))
        self._driver.kill()
        for process in left:  # those that have not noticed yet may run a little longer
            if self._rng.random() < 0.5:
                process.kill()

    # Comparison.

    async def _check(self) -> None:
        fed = await self._read_stored(TOPIC)
        copied = await self._read_stored(COPY)
        numbers = [int(record.body) for record in fed.values()]
        if sorted(numbers) != list(range(self.report.messages)):
            raise PromiseBroken(f"{len(numbers)} messages are stored, some lost or twice")
        if _count_disordered(fed):
            raise PromiseBroken("messages of one key are not in order where they were sent to")
        copies = Counter(int(record.body) for record in copied.values())
        self.report.lost = sum(number not in copies for number in numbers)
        self.report.repeated = sum(count - 1 for count in copies.values())
        self.report.disordered = _count_disordered(copied)
        self._check_lake({place: bytes(record.body) for place, record in fed.items()})

    def _check_lake(self, fed: dict[Place, bytes]) -> None:
        lake = open_lake(self._job.lake)
        held = lake.snapshot()
        self.report.batches = len(held.batches)
        if flaws := lake.find_flaws():
            raise PromiseBroken(f"the lake: {flaws[0].text}")
        kept: dict[Place, bytes] = {}
        for uri in [lake.uri_for(file.path) for file in held.files]:
            # Read single files: directories that look like partitions would become columns.
            table = pq.ParquetFile(uri).read(columns=["queueId", "queueOffset", "body"])
            for row in table.to_pylist():
                place = row["queueId"], row["queueOffset"]
                if place in kept:
                    raise PromiseBroken(f"the lake has {place} twice")
                kept[place] = row["body"]
        if kept != fed:
            raise PromiseBroken(f"the lake has {len(kept)} messages, the topic {len(fed)}")

    async def _read_stored(self, topic: str) -> dict[Place, Record]:
        link = await BrokerLink.connect(self._cluster.broker_addresses[0])
        found: dict[Place, Record] = {}
        for queue_id in range(QUEUES):
            end = await link.max_offset(topic, queue_id)
            for record in await link.read(topic, queue_id, 0, end):
                found[queue_id, record.queue_offset] = record
        link.close()
        return found


def _count_disordered(stored: dict[Place, Record]) -> int:
    """Return the number of messages after a later one of their key, or in another queue."""
    last: dict[str, tuple[int, int]] = {}
    count = 0
    for place in sorted(stored):
        number = int(stored[place].body)
        queue_id, before = last.get(key_of(number), (place[0], -1))
        count += number < before or queue_id != place[0]
        last[key_of(number)] = place[0], max(number, before)
    return count
