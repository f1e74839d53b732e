"""Timed messages of a broker that dies at every step of the timer, and at random.

Whatever was acknowledged comes once, not early, and not at all if its recall was acknowledged. What
was not acknowledged may come or not, but not twice either.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from chaos.mortal_broker import POINTS
from rocketpost.codec.record import Record
from rocketpost.errors import RocketpostError
from rocketpost.testing.cluster import SMALL_STORE
from rocketpost.testing.link import BrokerLink
from rocketpost.testing.process import ServerFailed, ServerProcess, free_port
from rocketpost.testing.workloads.base import key_of
from rocketpost.testing.workloads.timed import DELAYS_MS, TimedPromises

PROGRAM = str(Path(__file__).with_name("mortal_broker.py"))
READY = r"The broker\[(?P<name>[^,]+), (?P<address>[^\]]+)\] boot success"


class Mortal:
    """A broker that dies where it is told to."""

    def __init__(self, directory: Path, flush: str) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._points = directory / "point"
        self._points.write_text("")
        values = {
            "listenPort": str(port),
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerName": "mortal",
            "storePathRootDir": str(directory / "store"),
            "recallMessageEnable": "true",
            "flushDiskType": flush,
            "mappedFileSizeTimerLog": "65536",
            "timerPrecisionMs": "100",
            "timerRollWindowSlot": "20",
            "timerFlushIntervalMs": "150",
            **SMALL_STORE,
        }
        path = directory / "broker.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        self.process = ServerProcess(
            ["mqbroker", "-c", str(path)], ready=READY, program=[PROGRAM, str(self._points), "--"]
        )

    def start(self, point: str = "", passes: int = 0) -> bool:
        """Start it; False if it died before it was ready."""
        self._points.write_text(f"{point} {passes}" if point else "")
        try:
            self.process.start()
        except ServerFailed:
            return False
        return True


async def disturb(broker: Mortal, promises: TimedPromises, rng: random.Random, name: str) -> None:
    """Send and recall until the broker dies or a moment has passed."""
    with contextlib.suppress(RocketpostError, OSError):
        link = await BrokerLink.connect(broker.address)
        try:
            for turn in range(16):
                keys = [f"{name}T{turn}N{number}" for number in range(15)]
                await promises.send(link, "T", keys, rng, levels=False)
                await asyncio.sleep(0.08)
        finally:
            link.close()


async def delivered(broker: Mortal) -> list[Record]:
    link = await BrokerLink.connect(broker.address)
    try:
        first, end = await link.min_offset("T", 0), await link.max_offset("T", 0)
        return await link.read("T", 0, first, end)
    finally:
        link.close()


async def judge(broker: Mortal, promises: TimedPromises) -> None:
    deadline = time.monotonic() + 60
    while lost := promises.owed - set(map(key_of, await delivered(broker))):
        assert time.monotonic() < deadline, f"lost: {sorted(lost)[:5]}"
        await asyncio.sleep(0.2)
    await asyncio.sleep(DELAYS_MS[-1] / 1000)
    records = await delivered(broker)
    print(
        f"sent={len(promises.due_ms)} acknowledged={len(promises.acknowledged)} "
        f"recalled={len(promises.recalled)} delivered={len(records)}"
    )
    assert not promises.find_broken(records)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_death_at_every_step(tmp_path: Path, seed: int, rounds: int, flush: str) -> None:
    rng = random.Random(seed)
    broker, promises, deaths = Mortal(tmp_path, flush), TimedPromises(), Counter[str]()
    try:
        for point in POINTS:
            for number in range(max(3, rounds // 25)):
                passes = rng.choice([1, 2, 4]) if number == 0 else 1
                if await asyncio.to_thread(broker.start, point, passes):
                    await disturb(broker, promises, rng, f"{point}{number}")
                    await asyncio.sleep(0.5)
                deaths[point] += not broker.process.is_running
                broker.process.kill()
                if deaths[point] >= max(1, rounds // 50):
                    break
        await asyncio.to_thread(broker.start)
        await judge(broker, promises)
    finally:
        broker.process.kill()
    print(f"died by itself {deaths.total()} times")
    assert not [point for point in POINTS if not deaths[point]]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_death_at_random(tmp_path: Path, seed: int, rounds: int, flush: str) -> None:
    rng = random.Random(seed)
    broker, promises = Mortal(tmp_path, flush), TimedPromises()
    try:
        for number in range(rounds // 5):
            await asyncio.to_thread(broker.start)
            killing = asyncio.get_running_loop().call_later(
                rng.uniform(0.05, 1.2), broker.process.kill
            )
            await disturb(broker, promises, rng, f"K{number}")
            killing.cancel()
            broker.process.kill()
        await asyncio.to_thread(broker.start)
        await judge(broker, promises)
    finally:
        broker.process.kill()
