"""Timed messages of a real broker: on time, once, recallable, and not lost when it is killed."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.codec.record import Record
from rocketpost.testing.cluster import SMALL_STORE
from rocketpost.testing.link import BrokerLink, SendPart
from rocketpost.testing.process import ServerProcess, free_port

from .flush_modes import FLUSH_MODES

pytestmark = pytest.mark.slow

READY = r"The broker\[(?P<name>[^,]+), (?P<address>[^\]]+)\] boot success"
LATE_MS_MAX = 1500
"""Far more than it takes; a machine that runs tests may be busy."""


class Broker:
    """A broker with a timer that a test may kill."""

    def __init__(self, directory: Path, **settings: str) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.store = directory / "store"
        values = {
            "listenPort": str(port),
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerName": "timing",
            "storePathRootDir": str(self.store),
            "recallMessageEnable": "true",
            "mappedFileSizeTimerLog": "65536",
            **SMALL_STORE,
            **settings,
        }
        path = directory / "broker.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        self.process = ServerProcess(["mqbroker", "-c", str(path)], ready=READY)

    async def send(self, link: BrokerLink, keys: list[str], **properties: str) -> list[str]:
        """Send messages; returns their recall handles."""
        answers = [
            link.send("T", 0, [SendPart(b"body", {"UNIQ_KEY": key, "TAGS": "A", **properties})])
            for key in keys
        ]
        handles = []
        for answer in await asyncio.gather(*answers):
            answer.raise_for_code()
            handles.append(answer.fields.get("recallHandle", ""))
        return handles

    async def delivered(self) -> list[Record]:
        """Return everything that is delivered so far."""
        link = await BrokerLink.connect(self.address)
        try:
            end = await link.max_offset("T", 0)
            return await link.read("T", 0, 0, end)
        finally:
            link.close()

    async def all_delivered(self, count: int, *, seconds: float = 30) -> list[Record]:
        deadline = time.monotonic() + seconds
        while len({key_of(record) for record in await self.delivered()}) < count:
            assert time.monotonic() < deadline, "messages were lost"
            await asyncio.sleep(0.05)
        return await self.delivered()


def key_of(record: Record) -> str:
    return record.properties["UNIQ_KEY"]


def due_of(record: Record) -> int:
    return int(record.properties["TIMER_DELIVER_MS"])


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(params=FLUSH_MODES)
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path, flushDiskType=request.param)
    with broker.process:
        yield broker


async def test_messages_are_delivered_at_the_due_millisecond(broker: Broker) -> None:
    link = await BrokerLink.connect(broker.address)
    await broker.send(link, ["past"], TIMER_DELIVER_MS="1")
    handles = await broker.send(link, [f"S{n}" for n in range(50)], TIMER_DELAY_SEC="2")
    assert all(handles)
    await broker.send(link, [f"M{n}" for n in range(50)], TIMER_DELAY_MS="750")
    start = now_ms()
    for n in range(50):
        await broker.send(link, [f"A{n}"], TIMER_DELIVER_MS=str(start + 1000 + 7 * n))
    link.close()
    records = await broker.all_delivered(151)
    assert len(records) == 151
    assert key_of(records[0]) == "past"
    for record in records[1:]:
        assert 0 <= record.store_ms - due_of(record) < LATE_MS_MAX
    assert [due_of(r) for r in records[1:]] == sorted(due_of(r) for r in records[1:])
    assert broker.process.stop() == 0


async def test_a_broker_that_was_down_delivers_when_it_is_back(broker: Broker) -> None:
    link = await BrokerLink.connect(broker.address)
    await broker.send(link, ["a", "b"], TIMER_DELAY_MS="900")
    await broker.send(link, ["c"], TIMER_DELAY_MS="4000")
    link.close()
    broker.process.stop()
    await asyncio.sleep(1)
    broker.process.start()
    records = await broker.all_delivered(3, seconds=10)
    assert [key_of(record) for record in records] == ["a", "b", "c"]
    assert records[2].store_ms >= due_of(records[2])


async def test_bad_times_are_refused_and_change_nothing(broker: Broker) -> None:
    link = await BrokerLink.connect(broker.address)
    for properties in (
        {"TIMER_DELAY_SEC": "soon"},
        {"TIMER_DELAY_MS": "9" * 30},
        {"TIMER_DELAY_SEC": str(366 * 86_400 + 1)},
        {"TIMER_DELIVER_MS": "12.5"},
    ):
        answer = await link.send("T", 0, [SendPart(b"x", {"UNIQ_KEY": "bad", **properties})])
        assert answer.code == 13
    await broker.send(link, ["year"], TIMER_DELAY_SEC=str(365 * 86_400))
    link.close()
    assert not await broker.delivered()


@pytest.mark.long
async def test_repeated_kills_while_delivering(broker: Broker) -> None:
    rng = random.Random(8)
    sent: list[str] = []
    for kill in range(6):
        link = await BrokerLink.connect(broker.address)
        for delay_ms in (300, 800, 1600):
            keys = [f"K{kill}D{delay_ms}N{n}" for n in range(300)]
            await broker.send(link, keys, TIMER_DELAY_MS=str(delay_ms))
            sent += keys
        link.close()
        await asyncio.sleep(rng.uniform(0.2, 1.3))
        broker.process.kill()
        broker.process.start()
    records = await broker.all_delivered(len(sent))
    for record in records:
        assert record.store_ms >= due_of(record)
    counts = Counter(map(key_of, records))
    assert counts.keys() == set(sent)
    # A killed process loses nothing that it wrote, so each copy is found again.
    assert max(counts.values()) == 1


async def test_a_recalled_message_is_not_delivered(broker: Broker) -> None:
    link = await BrokerLink.connect(broker.address)
    keep, gone = await broker.send(link, ["keep", "gone"], TIMER_DELAY_MS="1500")
    (far,) = await broker.send(link, ["far"], TIMER_DELAY_SEC=str(300 * 86_400))
    for handle in (gone, far):
        answer = await link.recall("T", handle)
        answer.raise_for_code()
    assert (await link.recall("T", "bm9uZQ==")).code == 604
    assert (await link.recall("Missing", gone)).code == 17
    link.close()
    broker.process.kill()
    broker.process.start()
    records = await broker.all_delivered(1)
    await asyncio.sleep(0.5)
    records = await broker.delivered()
    assert [key_of(record) for record in records] == ["keep"]
    link = await BrokerLink.connect(broker.address)
    late = await link.recall("T", keep)
    link.close()
    assert late.code == 604
    assert "too late" in (late.remark or "")
