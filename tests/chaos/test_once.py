"""Stored once: broker and producer are killed again and again, at chance and at chosen points."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from chaos.once_broker import POINTS
from chaos.once_sender import ROWS, TOPIC
from rocketpost.testing.campaign import TINY_STORE
from rocketpost.testing.cluster import BROKER_READY, Cluster
from rocketpost.testing.link import BrokerLink
from rocketpost.testing.process import ServerProcess

HERE = Path(__file__).parent
QUEUES = 4
_FINISH_SECONDS = 120.0


class Job:
    """The sending program, started again whenever it is gone."""

    def __init__(self, directory: Path, name_servers: str) -> None:
        self.directory = directory
        directory.mkdir()
        self._command = [
            sys.executable, str(HERE / "once_sender.py"), name_servers, str(directory),
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def ensure(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(self._command)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def finish(self) -> None:
        (self.directory / "stop").touch()
        self.ensure()
        assert self._process is not None
        assert self._process.wait(_FINISH_SECONDS) == 0

    @property
    def done(self) -> int:
        path = self.directory / "done"
        return int(path.read_text()) if path.exists() else -1

    def acked(self) -> list[tuple[int, ...]]:
        lines = (self.directory / "acked").read_text().splitlines()
        return [tuple(map(int, line.split())) for line in lines if len(line.split()) == 5]


class World:
    """A name server, a broker that is started in many ways, and a job."""

    def __init__(self, directory: Path, seed: int, flush: str) -> None:
        settings = {**TINY_STORE, "flushDiskType": flush, "flushProducerStateInterval": "60"}
        self.cluster = Cluster(directory, settings=settings)
        self.cluster.brokers, (self._plain,) = [], self.cluster.brokers
        self._broker = self._plain
        self.rng = random.Random(seed)
        self.job = Job(directory / "job", self.cluster.addresses)
        self.kills: Counter[str] = Counter()

    def __enter__(self) -> World:
        self.cluster.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.job.kill()
        self._broker.kill()
        self.cluster.__exit__()

    def start(self, point: str | None = None) -> None:
        self._broker = self._plain
        if point is not None:
            count = self.rng.randint(1, 3 if "log" in point or "snapshot" in point else 60)
            program = [str(HERE / "once_broker.py"), point, str(count), "--"]
            conf = self.cluster.broker_directory() / "broker.conf"
            self._broker = ServerProcess(
                ["mqbroker", "-c", str(conf)], ready=BROKER_READY, program=program
            )
        self._broker.launch()

    async def end(self, point: str | None) -> None:
        """Wait until the broker has killed itself, or kill it after a while."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (6.0 if point else self.rng.uniform(0.3, 2.0))
        while self._broker.is_running and loop.time() < deadline:
            await asyncio.sleep(0.02)
        self.kills[point if point and not self._broker.is_running else "any time"] += 1
        await asyncio.to_thread(self._broker.kill)

    async def run(self, rounds: int) -> None:
        self.start()
        await asyncio.to_thread(self._broker.wait_ready)
        link = await BrokerLink.connect(self.cluster.broker_addresses[0])
        await link.create_topic(TOPIC, QUEUES)
        link.close()
        names = list(POINTS)
        for number in range(rounds):
            self.job.ensure()
            if number % 4 == 3:
                await asyncio.sleep(self.rng.uniform(0.2, 1.0))
                self.job.kill()
                self.kills["the producer"] += 1
                self.job.ensure()
            point = None if number % 3 == 0 else names[(number - number // 3 - 1) % len(names)]
            if number:
                self.start(point)
            await self.end(point)
        self.start()
        await asyncio.to_thread(self._broker.wait_ready)
        await asyncio.to_thread(self.job.finish)

    async def check(self) -> str:
        """Compare what is stored with what the job was told; return what there was."""
        link = await BrokerLink.connect(self.cluster.broker_addresses[0])
        stored: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for queue_id in range(QUEUES):
            end = await link.max_offset(TOPIC, queue_id)
            records = await link.read(TOPIC, queue_id, 0, end)
            assert len(records) == end
            for record in records:
                epoch, sequence = map(int, bytes(record.body).split())
                place = queue_id, record.queue_offset
                stored.setdefault((epoch, sequence), []).append(place)
        link.close()
        twice = {name: places for name, places in stored.items() if len(places) > 1}
        assert not twice, "stored twice"
        acked = self.job.acked()
        for epoch, sequence, *place, _ in acked:
            assert (epoch, sequence) in stored, "acknowledged and lost"
            if place[1] >= 0:
                assert [tuple(place)] == stored[epoch, sequence], "another place was told"
        for epoch in range(self.job.done + 1):
            assert all((epoch, n) in stored for n in range(ROWS)), "lost"
        repeated = sum(line[4] for line in acked)
        unplaced = sum(line[3] < 0 for line in acked)
        return (
            f"kills={sum(self.kills.values())} {dict(self.kills)} epochs={self.job.done + 1} "
            f"stored={len(stored)} acknowledged={len(acked)} duplicates={repeated} "
            f"without_place={unplaced} lost=0 twice=0"
        )


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_once(tmp_path: Path, seed: int, rounds: int, flush: str) -> None:
    with World(tmp_path, seed, flush) as world:
        await world.run(rounds)
        report = await world.check()
        print(f"seed={seed} flush={flush} {report}")
        assert sum(world.kills.values()) >= rounds
        assert world.job.done >= 0
