"""A dozen deaths of a real broker: nothing acknowledged is lost. ``tests/chaos`` has hundreds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.testing.campaign import Campaign
from rocketpost.testing.ledger import Ledger
from rocketpost.testing.link import BrokerLink, SendPart
from rocketpost.testing.process import ServerProcess

from .flush_modes import FLUSH_MODES

pytestmark = pytest.mark.slow

SEED = 20260


@pytest.mark.parametrize("flush", FLUSH_MODES)
async def test_acknowledged_messages_survive_kills(tmp_path: Path, flush: str) -> None:
    with Campaign(tmp_path, seed=SEED, settings={"flushDiskType": flush}) as campaign:
        report = await campaign.run(6)
        assert report.kills >= 5
        assert report.counts.acknowledged > 100


class Broker:
    """One broker that a test starts, breaks and starts again."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self._campaign = Campaign(directory, seed=SEED, settings=settings)
        self.process: ServerProcess = self._campaign.broker
        self.store = directory / "store"
        self.address = self._campaign.address

    async def connect(self) -> BrokerLink:
        return await BrokerLink.connect(self.address)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    with broker.process:
        yield broker


async def test_a_topic_created_by_a_send_exists_with_the_message(broker: Broker) -> None:
    link = await broker.connect()
    answer = await link.send("fresh", 1, [SendPart(b"body", {"UNIQ_KEY": "A1"})])
    answer.raise_for_code()
    broker.process.kill()
    link.close()
    # The message is in the log, but the crash came before the table of topics was saved.
    for path in (broker.store / "config").glob("topics.json*"):
        path.unlink()

    broker.process.start()

    link = await broker.connect()
    found = await link.pull("fresh", 1, 0)
    assert [record.body for record in found.records] == [b"body"]
    # A client that knows the topic with all its queues can go on at once.
    (await link.send("fresh", 3, [SendPart(b"next", {"UNIQ_KEY": "A2"})])).raise_for_code()
    link.close()


async def test_a_deleted_topic_stays_deleted_and_its_offsets_are_not_used_again(
    broker: Broker,
) -> None:
    link = await broker.connect()
    await link.create_topic("gone", 1)
    for number in range(5):
        part = SendPart(b"old", {"UNIQ_KEY": f"B{number}"})
        (await link.send("gone", 0, [part])).raise_for_code()
    await link.delete_topic("gone")
    broker.process.kill()
    link.close()

    broker.process.start()

    link = await broker.connect()
    assert not await link.has_topic("gone")
    await link.create_topic("gone", 1)
    assert await link.min_offset("gone", 0) == await link.max_offset("gone", 0)
    (await link.send("gone", 0, [SendPart(b"new", {"UNIQ_KEY": "C0"})])).raise_for_code()
    first, end = await link.min_offset("gone", 0), await link.max_offset("gone", 0)
    records = await link.read("gone", 0, first, end)
    assert [(record.queue_offset, record.body) for record in records] == [(5, b"new")]
    link.close()


async def test_a_kill_during_the_start_is_survived(broker: Broker) -> None:
    ledger = Ledger()
    link = await broker.connect()
    for number in range(50):
        properties = {"UNIQ_KEY": f"D{number}", "NUMBER": str(number)}
        body = bytes([number]) * 1000
        ledger.note(number, topic="t", queue_id=0, stream=1, body=body, properties=properties)
        answer = await link.send("t", 0, [SendPart(body, properties)])
        answer.raise_for_code()
        ledger.acknowledge(number, int(answer.fields["queueOffset"]))
    link.close()
    broker.process.kill()

    for lines in range(3):
        broker.process.launch()
        # Die at the first line of output, which recovery prints before the broker is ready.
        broker.process.wait_for("store recovered" if lines else ".", seconds=30)
        broker.process.kill()
    broker.process.start()

    link = await broker.connect()
    ledger.check_queue("t", 0, await link.read("t", 0, 0, 100), first=0)
    ledger.check_lost()
    ledger.verify()
    link.close()
