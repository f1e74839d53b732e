"""Delayed messages of a real broker: on time, and neither lost nor early when it is killed."""

from __future__ import annotations

import asyncio
import random
import re
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
    """A broker with short levels that a test may kill."""

    def __init__(self, directory: Path, **settings: str) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.store = directory / "store"
        values = {
            "listenPort": str(port),
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerName": "delaying",
            "storePathRootDir": str(self.store),
            "messageDelayLevel": "1s 2s 3s",
            **SMALL_STORE,
            **settings,
        }
        path = directory / "broker.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        self.process = ServerProcess(["mqbroker", "-c", str(path)], ready=READY)

    async def send(self, link: BrokerLink, keys: list[str], level: int) -> None:
        answers = [
            link.send(
                "T", 0, [SendPart(b"body", {"UNIQ_KEY": key, "DELAY": str(level), "TAGS": "A"})]
            )
            for key in keys
        ]
        for answer in await asyncio.gather(*answers):
            answer.raise_for_code()

    async def delivered(self) -> list[Record]:
        """Return everything that is delivered so far."""
        link = await BrokerLink.connect(self.address)
        try:
            end = await link.max_offset("T", 0)
            return await link.read("T", 0, 0, end)
        finally:
            link.close()

    async def all_delivered(self, count: int, *, seconds: float = 20) -> list[Record]:
        deadline = time.monotonic() + seconds
        while len({key_of(record) for record in await self.delivered()}) < count:
            assert time.monotonic() < deadline, "messages were lost"
            await asyncio.sleep(0.05)
        return await self.delivered()


def key_of(record: Record) -> str:
    return record.properties["UNIQ_KEY"]


@pytest.fixture(params=FLUSH_MODES)
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path, flushDiskType=request.param)
    with broker.process:
        yield broker


async def test_messages_are_delivered_when_they_are_due(broker: Broker) -> None:
    link = await BrokerLink.connect(broker.address)
    for level in (3, 2, 1):
        await broker.send(link, [f"L{level}N{n}" for n in range(100)], level)
        await asyncio.sleep(0.1)
    link.close()
    assert not await broker.delivered()
    records = await broker.all_delivered(300)
    assert len(records) == 300
    for record in records:
        level = int(record.properties["DELAY"])
        late_ms = record.store_ms - record.born_ms - 1000 * level
        assert 0 <= late_ms < LATE_MS_MAX
    by_level = {level: [r for r in records if r.properties["DELAY"] == level] for level in "123"}
    assert [key_of(r) for r in by_level["1"]] == [f"L1N{n}" for n in range(100)]
    assert broker.process.stop() == 0
    text = (broker.store / "config" / "delayOffset.json").read_text()
    assert '"offsetTable":{1:100,2:100,3:100},' in re.sub(r"\s", "", text)


async def test_a_broker_that_was_down_delivers_when_it_is_back(broker: Broker) -> None:
    link = await BrokerLink.connect(broker.address)
    await broker.send(link, ["a", "b"], 1)
    link.close()
    broker.process.stop()
    await asyncio.sleep(1.2)
    broker.process.start()
    records = await broker.all_delivered(2, seconds=5)
    assert [key_of(record) for record in records] == ["a", "b"]


async def test_a_topic_created_by_a_delayed_send_survives_a_kill(broker: Broker) -> None:
    """No queue of the topic tells of it; without its name the message would be discarded."""
    link = await BrokerLink.connect(broker.address)
    await broker.send(link, ["first"], 2)
    broker.process.kill()
    link.close()
    broker.process.start()
    assert [key_of(record) for record in await broker.all_delivered(1)] == ["first"]


@pytest.mark.long
async def test_repeated_kills_while_delivering(broker: Broker) -> None:
    rng = random.Random(8)
    sent: list[str] = []
    for kill in range(6):
        link = await BrokerLink.connect(broker.address)
        for level in (1, 2):
            keys = [f"K{kill}L{level}N{n}" for n in range(400)]
            await broker.send(link, keys, level)
            sent += keys
        link.close()
        await asyncio.sleep(rng.uniform(0.7, 1.3))
        broker.process.kill()
        broker.process.start()
    records = await broker.all_delivered(len(sent))
    for record in records:
        assert record.store_ms - record.born_ms >= 1000 * int(record.properties["DELAY"])
    counts = Counter(map(key_of, records))
    assert counts.keys() == set(sent)
    # A killed process loses nothing that it wrote, so each copy is found again.
    assert max(counts.values()) == 1
