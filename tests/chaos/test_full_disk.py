"""A disk that is really full: a small tmpfs of the broker's own.

The broker refuses messages and says why, goes on answering pulls, and takes messages again by
itself when there is room; nothing that it acknowledged is lost. A write through a mapping would
end it with SIGBUS here.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.headers.message import SendResponse
from rocketpost.testing.campaign import Campaign
from rocketpost.testing.ledger import NUMBER_PROPERTY, Ledger
from rocketpost.testing.link import BrokerLink, SendPart

DISK_BYTES = 16 * 1024 * 1024
TOPIC = "full"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    directory = tmp_path / "disk"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


class Sender:
    """Sends one message at a time and keeps the ledger."""

    def __init__(self, link: BrokerLink, ledger: Ledger, *, body_bytes: int = 10_000) -> None:
        self._link = link
        self._ledger = ledger
        self._body_bytes = body_bytes

    async def send(self) -> str | None:
        """Send a message; returns why it was refused, None if it was not."""
        number = self._ledger.next_number()
        properties = {"UNIQ_KEY": f"{number:032X}", NUMBER_PROPERTY: str(number)}
        body = number.to_bytes(4, "big") * (self._body_bytes // 4)
        self._ledger.note(
            number, topic=TOPIC, queue_id=0, stream=1, body=body, properties=properties
        )
        answer = await asyncio.wait_for(
            self._link.send(TOPIC, 0, [SendPart(body, properties)], queue_nums=1), 20
        )
        if answer.code == ResponseCode.SUCCESS:
            self._ledger.acknowledge(number, answer.read(SendResponse).queue_offset)
            return None
        self._ledger.refuse(number)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, answer.remark
        return answer.remark or ""

    async def until_refused(self) -> str:
        async with asyncio.timeout(60):
            while (reason := await self.send()) is None:
                pass
        return reason

    async def until_taken(self) -> None:
        async with asyncio.timeout(15):
            while await self.send() is not None:
                await asyncio.sleep(0.05)


async def check(link: BrokerLink, ledger: Ledger) -> None:
    """Read everything and compare."""
    end = await link.max_offset(TOPIC, 0)
    ledger.check_queue(TOPIC, 0, await link.read(TOPIC, 0, 0, end), first=0)
    ledger.check_lost()
    ledger.verify()


def campaign_on(disk: Path, flush: str, **settings: str) -> Campaign:
    values = {"flushDiskType": flush, "cleanFileForciblyEnable": "false", **settings}
    return Campaign(disk, seed=0, settings=values)


@asynccontextmanager
async def linked(campaign: Campaign) -> AsyncIterator[BrokerLink]:
    link = await BrokerLink.connect(campaign.address)
    try:
        yield link
    finally:
        link.close()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("index_entries", [4000, 64])
async def test_no_space(disk: Path, flush: str, index_entries: int) -> None:
    # Rejection by level is tested below; here the disk itself says no. With few entries in an
    # index file it is mostly the index that finds no room.
    settings = {"cleanResourceInterval": "3600000", "maxIndexNum": str(index_entries)}
    with campaign_on(disk, flush, **settings) as campaign:
        campaign.broker.start()
        filler = disk / "filler"
        filler.write_bytes(bytes(DISK_BYTES // 4))
        async with linked(campaign) as link:
            sender = Sender(link, campaign.ledger, body_bytes=10_000 if index_entries > 64 else 200)
            for _ in range(3):
                reason = await sender.until_refused()
                assert "No space left on device" in reason
                await check(link, campaign.ledger)
            filler.unlink()
            await sender.until_taken()
            reason = await sender.until_refused()
            assert "No space left on device" in reason
            await check(link, campaign.ledger)
        assert campaign.broker.is_running


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_restart_while_full(disk: Path, flush: str, how: str) -> None:
    """A broker on a full disk can be started again, serves reads, and resumes when it may."""
    settings = {"cleanResourceInterval": "3600000"}
    with campaign_on(disk, flush, **settings) as campaign:
        campaign.broker.start()
        filler = disk / "filler"
        filler.write_bytes(bytes(DISK_BYTES // 4))
        async with linked(campaign) as link:
            await Sender(link, campaign.ledger).until_refused()
            fill(disk / "rest")
        if how == "kill":
            campaign.broker.kill()
        else:
            campaign.broker.stop()
        fill(disk / "more")
        campaign.broker.start()
        async with linked(campaign) as link:
            sender = Sender(link, campaign.ledger)
            await check(link, campaign.ledger)
            await sender.until_refused()
            for name in ("filler", "rest", "more"):
                (disk / name).unlink(missing_ok=True)
            await sender.until_taken()
            await check(link, campaign.ledger)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_levels(disk: Path, flush: str) -> None:
    """Above diskSpaceWarningLevelRatio messages are refused, until it is under the level again."""
    settings = {
        "cleanResourceInterval": "100",
        "diskSpaceWarningLevelRatio": "60",
        "diskSpaceCleanForciblyRatio": "55",
    }
    with campaign_on(disk, flush, **settings) as campaign:
        campaign.broker.start()
        async with linked(campaign) as link:
            sender = Sender(link, campaign.ledger, body_bytes=100)
            assert await sender.send() is None
            filler = disk / "filler"
            filler.write_bytes(bytes(DISK_BYTES * 6 // 10))
            async with asyncio.timeout(20):
                while (reason := await sender.send()) is None:
                    await asyncio.sleep(0.05)
            assert "the disk is" in reason
            assert "full" in reason
            await check(link, campaign.ledger)
            filler.unlink()
            await sender.until_taken()
            await check(link, campaign.ledger)


def fill(path: Path) -> None:
    """Take all that is left of the disk."""
    with path.open("wb", buffering=0) as file:
        for size in (65536, 4096, 512):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
