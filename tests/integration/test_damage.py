"""Damaged and missing files of a real broker: what is not harmed is served, the rest is named."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.testing.campaign import Campaign
from rocketpost.testing.link import BrokerLink, SendPart
from rocketpost.testing.process import ServerFailed, ServerProcess

from .flush_modes import FLUSH_MODES

pytestmark = pytest.mark.slow

COUNT = 240
QUEUES = 2


class Broker:
    """One broker whose files a test harms while it is down."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self._campaign = Campaign(directory, seed=1, settings=settings)
        self.process: ServerProcess = self._campaign.broker
        self.store = directory / "store"
        self.address = self._campaign.address

    async def send(self, count: int = COUNT) -> None:
        link = await BrokerLink.connect(self.address)
        for number in range(count):
            part = SendPart(b"%05d" % number + bytes(5000), {"UNIQ_KEY": f"K{number}"})
            (await link.send("t", number % QUEUES, [part])).raise_for_code()
        link.close()

    async def read(self) -> list[int]:
        """Return the numbers of all messages that a consumer gets."""
        link = await BrokerLink.connect(self.address)
        found = []
        for queue_id in range(QUEUES):
            offset = 0
            while offset < await link.max_offset("t", queue_id):
                pulled = await link.pull("t", queue_id, offset)
                assert pulled.next_offset > offset, "the consumer is stuck"
                offset = pulled.next_offset
                found += [int(bytes(record.body)[:5]) for record in pulled.records]
        link.close()
        return sorted(found)

    async def next_offsets(self) -> list[int]:
        link = await BrokerLink.connect(self.address)
        found = [await link.max_offset("t", queue_id) for queue_id in range(QUEUES)]
        link.close()
        return found

    def segments(self) -> list[Path]:
        return sorted(path for path in (self.store / "commitlog").iterdir() if path.is_file())

    def flip(self, number: int) -> None:
        """Flip a bit in the body of one message."""
        for path in self.segments():
            data = path.read_bytes()
            at = data.find(b"%05d" % number + bytes(100))
            if at >= 0:
                with path.open("r+b") as file:
                    file.seek(at + 50)
                    file.write(b"\x10")
                return
        raise AssertionError(f"no message {number}")

    def damage(self) -> list[dict[str, object]]:
        ranges: list[dict[str, object]] = json.loads((self.store / "damage.json").read_text())[
            "ranges"
        ]
        return ranges


@pytest.fixture
def flush() -> str:
    return "ASYNC_FLUSH"


@pytest.fixture
def broker(tmp_path: Path, flush: str) -> Iterator[Broker]:
    broker = Broker(tmp_path, flushDiskType=flush)
    with broker.process:
        yield broker


@pytest.mark.parametrize("flush", FLUSH_MODES)
async def test_a_flipped_bit_and_a_kill_cost_one_message(broker: Broker) -> None:
    await broker.send()
    broker.process.kill()
    assert len(broker.segments()) > 1
    broker.flip(20)
    broker.process.start()
    assert await broker.read() == [number for number in range(COUNT) if number != 20]
    assert await broker.next_offsets() == [COUNT // QUEUES] * QUEUES
    (named,) = broker.damage()
    assert (named["topic"], named["queue_id"], named["queue_offset"]) == ("t", 0, 10)
    assert any("ERROR" in line and "damaged" in line for line in broker.process.output)


async def test_a_flipped_bit_and_lost_queues_cost_one_message(broker: Broker) -> None:
    await broker.send()
    broker.process.stop()
    shutil.rmtree(broker.store / "consumequeue")
    broker.flip(21)
    broker.process.start()
    assert await broker.read() == [number for number in range(COUNT) if number != 21]
    assert await broker.next_offsets() == [COUNT // QUEUES] * QUEUES


@pytest.mark.parametrize("flush", ["SYNC_FLUSH"])  # only durable files must exist
async def test_a_missing_segment_prevents_the_start_with_advice(broker: Broker) -> None:
    await broker.send()
    broker.process.kill()
    last = broker.segments()[-1] if broker.segments()[-1].read_bytes().strip(b"\0") else None
    gone = last or broker.segments()[-2]
    gone.unlink()
    with pytest.raises(ServerFailed, match=f"(?s)lacks {gone.name}.*--accept-missing-log"):
        broker.process.start()
    broker.process.kill()
    broker.process._arguments.append("--accept-missing-log")
    broker.process.start()
    found = await broker.read()
    assert 0 < len(found) < COUNT
    assert found == list(range(len(found)))
    assert min(await broker.next_offsets()) >= COUNT // QUEUES
    broker.process.stop()
    broker.process._arguments.remove("--accept-missing-log")
    broker.process.start()
    await broker.send(2)
    assert await broker.read() == sorted([*found, 0, 1])


async def test_lost_queue_and_index_files_are_rebuilt(broker: Broker) -> None:
    await broker.send()
    broker.process.stop()
    queue = broker.store / "consumequeue" / "t" / "0"
    min(queue.iterdir()).unlink()
    for path in (broker.store / "index").iterdir():
        with path.open("r+b") as file:
            file.write(b"\xff" * 40)
    broker.process.start()
    assert await broker.read() == list(range(COUNT))
    link = await BrokerLink.connect(broker.address)
    (record,) = await link.find("t", "K7")
    assert bytes(record.body)[:5] == b"00007"
    link.close()


async def test_two_brokers_cannot_use_one_commit_log(tmp_path: Path) -> None:
    shared = str(tmp_path / "log")
    one = Broker(tmp_path / "one", storePathCommitLog=shared)
    two = Broker(tmp_path / "two", storePathCommitLog=shared)
    with one.process:
        with pytest.raises(ServerFailed, match=r"(?s)log is in use by .*one/store"):
            two.process.start()
        two.process.kill()


async def test_a_file_truncated_under_a_running_broker_loses_only_the_truncated_part(
    tmp_path: Path,
) -> None:
    broker = Broker(tmp_path, checkCRCOnReadInterval="0")
    with broker.process:
        await broker.send()
        assert await broker.read() == list(range(COUNT))  # the file is mapped now
        segment = broker.segments()[0]
        whole = segment.stat().st_size
        os.truncate(segment, whole // 2)
        found = await broker.read()
        assert await broker.read() == found
        lost = sorted(set(range(COUNT)) - set(found))
        assert lost
        assert lost == list(range(lost[0], lost[-1] + 1))
        assert lost[-1] < COUNT - 1  # what lies in later files is read
        await broker.send(2)
        assert await broker.read() == sorted([*found, 0, 1])
        broker.process.stop()
        named = {(each["queue_id"], each["queue_offset"]) for each in broker.damage()}
        assert named == {(number % QUEUES, number // QUEUES) for number in lost}
