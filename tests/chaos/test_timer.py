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
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chaos.mortal_broker import POINTS
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.record import Record
from rocketpost.errors import RocketpostError
from rocketpost.testing.cluster import SMALL_STORE
from rocketpost.testing.link import BrokerLink, Part
from rocketpost.testing.process import ServerFailed, ServerProcess, free_port

PROGRAM = str(Path(__file__).with_name("mortal_broker.py"))
READY = r"The broker\[(?P<name>[^,]+), (?P<address>[^\]]+)\] boot success"
DELAYS_MS = (40, 150, 400, 900, 1500, 4000)


@dataclass
class Promises:
    """What senders were told."""

    asked: dict[str, int] = field(default_factory=dict)
    """Key to the earliest time that the message may come."""
    acked: set[str] = field(default_factory=set)
    recalled: set[str] = field(default_factory=set)
    maybe_recalled: set[str] = field(default_factory=set)


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


async def disturb(broker: Mortal, promises: Promises, rng: random.Random, name: str) -> None:
    """Send and recall until the broker dies or a moment has passed."""
    with contextlib.suppress(RocketpostError, OSError):
        link = await BrokerLink.connect(broker.address)
        try:
            for turn in range(16):
                await send(link, promises, rng, f"{name}T{turn}")
                await asyncio.sleep(0.08)
        finally:
            link.close()


async def send(link: BrokerLink, promises: Promises, rng: random.Random, name: str) -> None:
    keys = [f"{name}N{number}" for number in range(15)]
    calls = []
    for key in keys:
        delay_ms = rng.choice(DELAYS_MS)
        promises.asked[key] = time.time_ns() // 1_000_000 + delay_ms
        properties = {"UNIQ_KEY": key, "TIMER_DELAY_MS": str(delay_ms)}
        calls.append(asyncio.ensure_future(link.send("T", 0, [Part(b"body", properties)])))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    handles = {}
    for key, answer in zip(keys, answers, strict=True):
        if not isinstance(answer, BaseException) and answer.code == ResponseCode.SUCCESS:
            promises.acked.add(key)
            handles[key] = answer.fields["recallHandle"]
    for key in rng.sample(sorted(handles), min(2, len(handles))):
        promises.maybe_recalled.add(key)
        answer = await link.recall("T", handles[key])
        if answer.code == ResponseCode.SUCCESS:
            promises.recalled.add(key)
        else:
            assert answer.code == ResponseCode.ILLEGAL_OPERATION
            promises.maybe_recalled.discard(key)


async def delivered(broker: Mortal) -> list[Record]:
    link = await BrokerLink.connect(broker.address)
    try:
        first, end = await link.min_offset("T", 0), await link.max_offset("T", 0)
        return await link.read("T", 0, first, end)
    finally:
        link.close()


async def judge(broker: Mortal, promises: Promises) -> None:
    due = promises.acked - promises.maybe_recalled
    counts: Counter[str] = Counter()
    records: list[Record] = []
    deadline = time.monotonic() + 60
    while not due <= counts.keys():
        assert time.monotonic() < deadline, f"lost: {sorted(due - counts.keys())[:5]}"
        await asyncio.sleep(0.2)
        records = await delivered(broker)
        counts = Counter(record.properties["UNIQ_KEY"] for record in records)
    await asyncio.sleep(DELAYS_MS[-1] / 1000)
    records = await delivered(broker)
    counts = Counter(record.properties["UNIQ_KEY"] for record in records)
    early = [r for r in records if r.store_ms < promises.asked[r.properties["UNIQ_KEY"]]]
    assert not early
    assert not [key for key, count in counts.items() if count > 1]
    assert not counts.keys() & promises.recalled
    print(
        f"sent={len(promises.asked)} acknowledged={len(promises.acked)} "
        f"recalled={len(promises.recalled)} delivered={len(records)} lost=0 early=0 twice=0"
    )


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_death_at_every_step(tmp_path: Path, seed: int, rounds: int, flush: str) -> None:
    rng = random.Random(seed)
    broker, promises, deaths = Mortal(tmp_path, flush), Promises(), Counter[str]()
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
    broker, promises = Mortal(tmp_path, flush), Promises()
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
