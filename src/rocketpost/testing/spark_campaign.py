"""Kills producer, broker, Spark's driver and Spark's Python workers while Spark copies a topic.

A feeder sends numbered messages; one Spark job copies them to another topic and to a lake. A round
lets more messages come, waits until some are copied, and ends one process by SIGKILL, chosen from a
seed. At the end the topic, its copy and the lake must hold the same messages, each once, and those
of one sharding key in their order.
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow.parquet as pq

from rocketpost.codec.record import Record
from rocketpost.errors import ClientError, Fault
from rocketpost.spark.lake import Lake
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.feeder import TOPIC, key_of, write_number
from rocketpost.testing.ledger import PromiseBroken
from rocketpost.testing.link import BrokerLink
from rocketpost.testing.process import ServerProcess
from rocketpost.testing.spark_job import READY, Job

logger = logging.getLogger(__name__)

COPY: Final = "Copied"
QUEUES: Final = 4
CHANCES: Final = {"worker": 9, "broker": 5, "driver": 3, "producer": 3}
"""How often each kind of process is chosen."""
_MOVE_SECONDS: Final = 20.0
_DELAY_SECONDS_MAX: Final = 1.0
_DOWN_SECONDS_MAX: Final = 0.5
_FINISH_SECONDS: Final = 600.0
_POLL_SECONDS: Final = 0.05

Place = tuple[int, int]
"""Queue id and queue offset."""


@dataclass(slots=True)
class SparkReport:
    """What a campaign did and found."""

    seed: int
    messages: int
    delivery: str
    kills: Counter[str] = field(default_factory=Counter)
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
            f"kills={self.kills.total()} ({kinds}) drivers={self.jobs} "
            f"copy: lost={self.lost} repeated={self.repeated} disordered={self.disordered}; "
            f"lake: batches={self.batches}; seconds={self.seconds:.0f}"
        )


class Process(NamedTuple):
    """One process of a session."""

    pid: int
    parent: int
    command: str


class SparkCampaign:
    """One broker, one feeder, one Spark job, many deaths. Use as a context manager.

    Args:
        directory: Where everything goes.
        seed: Every choice comes from it.
        messages: How many are sent in all.
        delivery: The sink's.
        rate: Rows a second and task of the sink.
    """

    def __init__(
        self, directory: Path, *, seed: int, messages: int, delivery: str, rate: int = 400
    ) -> None:
        self.report = SparkReport(seed, messages, delivery)
        self._rng = random.Random(seed)
        self._directory = directory
        self._cluster = Cluster(directory)
        self._job = Job(
            name_servers=self._cluster.addresses,
            source=TOPIC,
            target=COPY,
            directory=str(directory),
            delivery=delivery,
            offsets_max=2000,
            rate=rate,
        )
        path = directory / "job.json"
        self._job.write(path)
        self._feeder = ServerProcess(
            [self._cluster.addresses, str(directory)],
            ready="$^",
            program=["-m", "rocketpost.testing.feeder"],
        )
        self._driver = ServerProcess(
            [str(path)], ready=READY, program=["-m", "rocketpost.testing.spark_job"]
        )

    def __enter__(self) -> SparkCampaign:
        self._cluster.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._feeder.kill()
        self._kill_driver()
        self._cluster.__exit__()

    async def run(self, rounds: int) -> SparkReport:
        """Kill so often, let everything finish, and compare.

        Raises:
            PromiseBroken: The source or the lake is wrong. What is wrong with the copy is in the
                report, since not every delivery promises the same.
        """
        began = time.monotonic()
        link = await BrokerLink.connect(self._cluster.broker_addresses[0])
        for topic in (TOPIC, COPY):
            await link.create_topic(topic, QUEUES)
        link.close()
        for number in range(rounds):
            step = self.report.messages // rounds
            target = self.report.messages if number == rounds - 1 else step * (number + 1)
            write_number(self._directory / "target", target)
            await self._round(step)
        await self._finish()
        await self._check()
        self.report.seconds = time.monotonic() - began
        return self.report

    async def _round(self, step: int) -> None:
        await self._ensure()
        await self._until_copied(step // 2)
        await asyncio.sleep(self._rng.uniform(0, _DELAY_SECONDS_MAX))
        kind = self._rng.choices(list(CHANCES), weights=list(CHANCES.values()))[0]
        if kind == "worker":
            workers = self._workers()
            if workers:
                victim = self._rng.choice(workers)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim.pid, signal.SIGKILL)
            else:
                kind = "driver"  # it has not come to its first task
        if kind == "driver":
            await asyncio.to_thread(self._kill_driver)
        elif kind == "producer":
            await asyncio.to_thread(self._feeder.kill)
        elif kind == "broker":
            broker = self._cluster.brokers[0]
            await asyncio.to_thread(broker.kill)
            await asyncio.sleep(self._rng.uniform(0, _DOWN_SECONDS_MAX))
            await asyncio.to_thread(broker.start)
        self.report.kills[kind] += 1
        logger.info("killed: kind=%s copied=%s", kind, await self._copied())

    async def _ensure(self) -> None:
        if not self._feeder.is_running:
            self._feeder.kill()
            self._feeder.launch()
        if not self._driver.is_running:
            if self._driver_was_started:
                logger.info("the job is gone: %s", self._output())
            self._kill_driver()
            self._driver.launch()
            self.report.jobs += 1
            await asyncio.to_thread(self._driver.wait_ready, seconds=_FINISH_SECONDS)
            logger.info("the job is ready: number=%s", self.report.jobs)

    async def _until_copied(self, more: int) -> None:
        """Wait until some more messages are copied; not for long, since kills may prevent it."""
        wanted = await self._copied() + more
        deadline = time.monotonic() + _MOVE_SECONDS
        while time.monotonic() < deadline and await self._copied() < wanted:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)

    async def _copied(self) -> int:
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
        # The job looks once more after the feeder is done: what it has then is everything.
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
        """Kill the driver with its JVM at once; its workers find out by themselves."""
        with contextlib.suppress(AssertionError, ProcessLookupError):
            os.killpg(self._driver.pid, signal.SIGKILL)
        left = self._session() if self._driver_was_started else []
        self._driver.kill()
        for process in left:  # what did not notice yet may send a little longer
            if self._rng.random() < 0.5:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)

    @property
    def _driver_was_started(self) -> bool:
        return self.report.jobs > 0

    def _workers(self) -> list[Process]:
        """Return the Python processes that run tasks or plan batches."""
        every = {process.pid: process for process in self._session()}
        return [
            process
            for process in every.values()
            if "pyspark" in process.command
            and "java" not in process.command.partition(" ")[0]
            and process.parent in every
            and process.pid != self._driver.pid
        ]

    def _session(self) -> list[Process]:
        return list(_session_of(self._driver.pid))

    # What is compared.

    async def _check(self) -> None:
        fed = await self._stored(TOPIC)
        copied = await self._stored(COPY)
        numbers = [int(record.body) for record in fed.values()]
        if sorted(numbers) != list(range(self.report.messages)):
            raise PromiseBroken(f"{len(numbers)} messages are stored, some lost or twice")
        if _disordered(fed):
            raise PromiseBroken("messages of one key are not in order where they were sent to")
        copies = Counter(int(record.body) for record in copied.values())
        self.report.lost = sum(number not in copies for number in numbers)
        self.report.repeated = sum(count - 1 for count in copies.values())
        self.report.disordered = _disordered(copied)
        self._check_lake({place: bytes(record.body) for place, record in fed.items()})

    def _check_lake(self, fed: dict[Place, bytes]) -> None:
        lake = Lake(self._job.lake)
        self.report.batches = len(lake.batches())
        if flaws := lake.flaws():
            raise PromiseBroken(f"the lake: {flaws[0].text}")
        kept: dict[Place, bytes] = {}
        for uri in lake.file_uris():
            # By its file alone: folders that look like partitions would become columns.
            table = pq.ParquetFile(uri).read(columns=["queueId", "queueOffset", "body"])
            for row in table.to_pylist():
                place = row["queueId"], row["queueOffset"]
                if place in kept:
                    raise PromiseBroken(f"the lake has {place} twice")
                kept[place] = row["body"]
        if kept != fed:
            raise PromiseBroken(f"the lake has {len(kept)} messages, the topic {len(fed)}")

    async def _stored(self, topic: str) -> dict[Place, Record]:
        link = await BrokerLink.connect(self._cluster.broker_addresses[0])
        found: dict[Place, Record] = {}
        for queue_id in range(QUEUES):
            end = await link.max_offset(topic, queue_id)
            for record in await link.read(topic, queue_id, 0, end):
                found[queue_id, record.queue_offset] = record
        link.close()
        return found


def _disordered(stored: dict[Place, Record]) -> int:
    """Return how many messages come after a later one of their key, or in another queue."""
    last: dict[str, tuple[int, int]] = {}
    count = 0
    for place in sorted(stored):
        number = int(stored[place].body)
        queue_id, before = last.get(key_of(number), (place[0], -1))
        count += number < before or queue_id != place[0]
        last[key_of(number)] = place[0], max(number, before)
    return count


def _session_of(leader: int) -> Iterator[Process]:
    """Yield the living processes of a session, its leader too."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if int(fields[3]) == leader and fields[0] != "Z":
                yield Process(int(entry.name), int(fields[1]), command)
