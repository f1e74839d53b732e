"""A broker keeps what a group holds until it has passed, and says what a full disk took."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from rocketpost.codec.bodies.stats import decode_key_values
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.command import Command
from rocketpost.server.broker import BrokerServer
from rocketpost.store.files import DiskUsage, RealFiles
from rocketpost.transport.connection import Connection

pytestmark = pytest.mark.slow

SEGMENT_BYTES = 64 * 1024
BODY = b"x" * 4000
MESSAGES = 60
QUEUE = {"topic": "T", "queueId": "0"}
GROUP = {"consumerGroup": "archive", **QUEUE}


class Broker:
    """A broker in this process, asked in raw commands."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.used_percent = 10

    async def start(self) -> None:
        self.server = BrokerServer(
            {
                "storePathRootDir": str(self.root),
                "brokerIP1": "127.0.0.1",
                "bindAddress": "127.0.0.1",
                "listenPort": "0",
                "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
                "maxMessageSize": "16384",
                "flushDiskType": "SYNC_FLUSH",
                "timerWheelEnable": "false",
                "cleanResourceInterval": "3600000",
                "maxHashSlotNum": "1000",
                "maxIndexNum": "4000",
            }
        )
        await self.server.start()
        loop = asyncio.get_running_loop()
        _, self.connection = await loop.create_connection(
            lambda: Connection(on_request=lambda *_: None), "127.0.0.1", self.server.port
        )

    async def stop(self) -> None:
        self.connection.close()
        await self.connection.wait_closed()
        await self.server.stop()

    async def call(self, code: int, body: bytes = b"", **fields: str) -> Command:
        response = await self.connection.request(code, fields=fields, body=body, timeout=10)
        assert response.code == 0, response.remark
        return response

    async def fill(self) -> None:
        for _ in range(MESSAGES):
            await self.call(
                Code.SEND_MESSAGE,
                BODY,
                producerGroup="P",
                defaultTopic="TBW102",
                defaultTopicQueueNums="1",
                sysFlag="0",
                bornTimestamp="1",
                flag="0",
                **QUEUE,
            )

    async def hold(self, change: str, value: str = "") -> None:
        config = {"groupName": "archive", "attributes": {f"{change}retention.hold": value}}
        body = msgspec.json.encode(config)
        await self.call(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)

    async def commit(self, offset: int) -> None:
        await self.call(Code.UPDATE_CONSUMER_OFFSET, **GROUP, commitOffset=str(offset))

    async def clean(self) -> int:
        """Make all segments old, have expired ones deleted; returns the first offset."""
        for path in (self.root / "commitlog").iterdir():
            os.utime(path, (1, 1))
        await self.call(Code.DELETE_EXPIRED_COMMITLOG)
        return int((await self.call(Code.GET_MIN_OFFSET, **QUEUE)).fields["offset"])

    async def states(self) -> dict[str, str]:
        return decode_key_values((await self.call(Code.GET_BROKER_RUNTIME_INFO)).body)


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    made = Broker(tmp_path)

    def usage(files: RealFiles, path: str) -> DiskUsage:
        total = 100 * SEGMENT_BYTES
        used = total * made.used_percent // 100
        return DiskUsage(total, used, total - used)

    monkeypatch.setattr(RealFiles, "usage", usage)
    await made.start()
    try:
        await made.fill()
        await made.stop()  # only what was saved may go, and now everything is
        await made.start()
        yield made
    finally:
        await made.stop()


async def test_segments_stay_until_the_group_has_passed_them(broker: Broker) -> None:
    await broker.hold("+", "true")
    await broker.commit(0)
    assert await broker.clean() == 0
    await broker.commit(40)
    first = await broker.clean()
    assert 0 < first <= 40
    states = await broker.states()
    assert states["retentionHolds"] == "archive"
    assert int(states["retentionHeldPosition"]) >= SEGMENT_BYTES
    assert states["retentionLost"] == ""
    await broker.stop()
    await broker.start()
    assert await broker.clean() == first  # the hold outlives a restart
    await broker.hold("-")
    assert await broker.clean() > 40


async def test_what_a_full_disk_takes_is_named(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.hold("+", "true")
    await broker.commit(3)
    broker.used_percent = 80  # over the level that cleans, under the one that forces
    assert await broker.clean() == 0
    broker.used_percent = 86
    with caplog.at_level(logging.WARNING, logger="rocketpost.server.parts.hold"):
        first = await broker.clean()
    assert first > 3
    told = f"group=archive topic=T queue=0 first=3 last={first - 1}"
    assert [told in message for message in caplog.messages] == [True]
    states = await broker.states()
    assert states["retentionLostMessages"] == str(first - 3)
    assert states["retentionLost"] == f"archive: T queue 0 offsets 3 to {first - 1}"
    await broker.commit(first)
    assert (await broker.states())["retentionLostMessages"] == "0"
