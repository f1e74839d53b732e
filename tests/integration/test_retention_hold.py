"""A broker keeps what is to be delivered and what a group holds, and says what a full disk took."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from rocketpost.codec.bodies.stats import decode_key_values
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.properties import encode_properties
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

    def usage(self) -> DiskUsage:
        total = 100 * SEGMENT_BYTES
        used = total * self.used_percent // 100
        return DiskUsage(total, used, total - used)

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

    async def ask_to_send(self, **properties: str) -> Command:
        fields = {
            "producerGroup": "P",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "1",
            "sysFlag": "4" if "TRAN_MSG" in properties else "0",
            "bornTimestamp": "1",
            "flag": "0",
            "properties": encode_properties(properties).decode(),
        } | QUEUE
        return await self.connection.request(
            Code.SEND_MESSAGE, fields=fields, body=BODY, timeout=10
        )

    async def fill(self, count: int = MESSAGES) -> None:
        for _ in range(count):
            assert (await self.ask_to_send()).code == 0

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
async def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    made = Broker(tmp_path)
    monkeypatch.setattr(RealFiles, "usage", lambda files, path: made.usage())
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


@pytest.fixture
async def broker(empty: Broker) -> Broker:
    await empty.fill()
    await empty.stop()  # only what was saved may go, and now everything is
    await empty.start()
    return empty


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


async def test_messages_deleted_because_of_a_full_disk_are_reported(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.hold("+", "true")
    await broker.commit(3)
    broker.used_percent = 80  # over the level that cleans, under the one that forces
    assert await broker.clean() == 0
    broker.used_percent = 86
    with caplog.at_level(logging.WARNING, logger="rocketpost.server.features.retention_holds"):
        first = await broker.clean()
    assert first > 3
    told = f"group=archive topic=T queue=0 first=3 last={first - 1}"
    assert [told in message for message in caplog.messages] == [True]
    states = await broker.states()
    assert states["retentionLostMessages"] == str(first - 3)
    assert states["retentionLost"] == f"archive: T queue 0 offsets 3 to {first - 1}"
    await broker.commit(first)
    assert (await broker.states())["retentionLostMessages"] == "0"


async def waiting(empty: Broker, **properties: str) -> None:
    """Store a message that waits, many behind it, and have the disk run full."""
    assert (await empty.ask_to_send(UNIQ_KEY="waits", **properties)).code == 0
    await empty.fill()
    await empty.stop()
    await empty.start()
    empty.used_percent = 88


@pytest.mark.long
async def test_a_timed_message_moves_out_of_the_way_of_a_full_disk(empty: Broker) -> None:
    due_ms = time.time_ns() // 1_000_000 + 8000
    await waiting(empty, TIMER_DELIVER_MS=str(due_ms))
    assert await empty.clean() > 0
    states = await empty.states()
    assert (states["timerMoved"], states["timerLost"]) == ("1", "0")
    assert states["segmentsKeptReason"] == ""
    assert await empty.clean() > 0
    async with asyncio.timeout(60):
        while (await empty.states())["timerDelivered"] != "1":
            await asyncio.sleep(0.1)
    assert time.time_ns() // 1_000_000 >= due_ms
    end = int((await empty.call(Code.GET_MAX_OFFSET, **QUEUE)).fields["offset"])
    assert end == MESSAGES + 1


async def test_a_delayed_message_keeps_its_segment_and_sends_are_refused(empty: Broker) -> None:
    await waiting(empty, DELAY="18")
    assert await empty.clean() == 0
    assert "to be delivered" in (await empty.states())["segmentsKeptReason"]
    empty.used_percent = 91
    assert await empty.clean() == 0
    refused = await empty.ask_to_send()
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "full" in (refused.remark or "")
    empty.used_percent = 50
    assert await empty.clean() == 0  # expired, and kept all the same
    assert (await empty.ask_to_send()).code == 0


async def test_a_pending_half_moves_even_when_sends_are_refused(empty: Broker) -> None:
    await waiting(empty, TRAN_MSG="true", PGROUP="P")
    empty.used_percent = 95
    assert await empty.clean() > 0
    assert (await empty.states())["transactionsPending"] == "1"
    assert (await empty.ask_to_send()).code == ResponseCode.SERVICE_NOT_AVAILABLE
