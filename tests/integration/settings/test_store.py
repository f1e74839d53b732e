"""Where messages lie, how large files are, when they are synced and cleaned."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.properties import PROPERTIES_BYTES_MAX
from rocketpost.codec.record import Record, decode_records, encode_record
from rocketpost.kernel.record_scan import CHECKSUM_HOLDS, judge_checksum
from rocketpost.server.broker import BrokerServer

from .harness import COMMIT_OFFSET, SUBSCRIPTION, Peer, broker, until


def files_of(directory: Path) -> set[int]:
    """Return the sizes of the files in a directory."""
    return {path.stat().st_size for path in directory.iterdir() if path.is_file()}


def has_files(directory: Path) -> bool:
    return directory.exists() and bool(files_of(directory))


def holds(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text()


async def test_places_and_sizes_of_files(tmp_path: Path) -> None:
    async with broker(
        tmp_path,
        storePathRootDir=tmp_path / "root",
        storePathCommitLog=tmp_path / "log",
        mappedFileSizeCommitLog=2 * 1024 * 1024,
        mappedFileSizeConsumeQueue=2000,
        maxHashSlotNum=50,
        maxIndexNum=300,
    ) as peer:
        await peer.send("T", KEYS="k")
        assert files_of(tmp_path / "log") == {2 * 1024 * 1024}
        await until(lambda: asyncio.to_thread(has_files, tmp_path / "root" / "index"))
        assert files_of(tmp_path / "root" / "index") == {40 + 50 * 4 + 300 * 20}
    assert files_of(tmp_path / "root" / "consumequeue" / "T" / "0") == {2000}


async def test_maxMessageSize(tmp_path: Path) -> None:
    async with broker(tmp_path, maxMessageSize=100_000) as peer:
        assert (await peer.send("T", bytes(100_000))).code == 0
        assert (await peer.send("T", bytes(100_001))).code == ResponseCode.MESSAGE_ILLEGAL


def has_true_checksum(record: Record) -> bool:
    data = b"".join(map(bytes, encode_record(record)))
    properties_at = len(data) - len(record.properties_bytes)
    return judge_checksum(data, 0, properties_at, len(data)) == CHECKSUM_HOLDS


async def test_enabledAppendPropCRC(tmp_path: Path) -> None:
    async with broker(
        tmp_path, enabledAppendPropCRC="true", forceVerifyPropCRC="true", messageDelayLevel="1s"
    ) as peer:
        long = "v" * (PROPERTIES_BYTES_MAX - 15)
        refused = await peer.send("T", long=long)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert "properties" in (refused.remark or "")
        await peer.send("T", a="b")
        await peer.send("T", DELAY="1")  # the broker stores it again when it is due
        delivered = await peer.pull("T", offset=1, hold_ms=10_000)
        records = [*await peer.records("T"), *decode_records(delivered.body)]
        assert len(records) >= 2
        assert all(map(has_true_checksum, records))


async def test_messageIndexEnable(tmp_path: Path) -> None:
    found = []
    for enabled in ("true", "false"):
        async with broker(tmp_path / enabled, messageIndexEnable=enabled) as peer:
            await peer.send("T", KEYS="k")
            answer = await peer.call(
                Code.QUERY_MESSAGE, topic="T", key="k", maxNum=9, beginTimestamp=0,
                endTimestamp=2**62,
            )  # fmt: skip
            found.append(answer.code == 0)
    assert found == [True, False]


async def until_durable(peer: Peer) -> float:
    """Send a message; return how long it took until it was on disk."""
    assert peer.server._services is not None
    store = peer.server._services.store
    began = time.monotonic()
    await peer.send("T")

    async def durable() -> bool:
        return store.durable_position >= store.end_position

    await until(durable)
    return time.monotonic() - began


async def test_flushIntervalCommitLog(tmp_path: Path) -> None:
    took = {}
    for interval in (20, 1500):
        async with broker(tmp_path / str(interval), flushIntervalCommitLog=interval) as peer:
            took[interval] = await until_durable(peer)
            took[interval] = await until_durable(peer)
    assert took[1500] > 2 * took[20]
    assert took[1500] > 0.8


async def test_cleanResourceInterval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = asyncio.Semaphore(0)

    async def clean(*args: object, **more: object) -> None:
        rounds.release()

    monkeypatch.setattr(BrokerServer, "_clean", clean)
    async with broker(tmp_path, cleanResourceInterval=20), asyncio.timeout(8):
        await rounds.acquire()
        await rounds.acquire()


async def test_flushConsumerOffsetInterval(tmp_path: Path) -> None:
    async with broker(tmp_path, flushConsumerOffsetInterval=30) as peer:
        await peer.send("T")
        await peer.group("G")
        saved = tmp_path / "store" / "config" / "consumerOffset.json"
        # An offset that comes with a pull is not saved at once, as one that is told by itself.
        await peer.pull("T", 1, sysFlag=SUBSCRIPTION | COMMIT_OFFSET, commitOffset=1)
        await until(lambda: asyncio.to_thread(holds, saved, "T@G"), seconds=4)


async def test_messageDelayLevel(tmp_path: Path) -> None:
    async with broker(tmp_path, messageDelayLevel="1s") as peer:
        # The third level is the last one there is; by default it takes ten seconds.
        await peer.send("T", DELAY="3")
        [record] = await peer.records("T", hold_ms=6000)
        assert record.properties["DELAY"] == "1"


async def test_flushDelayOffsetInterval(tmp_path: Path) -> None:
    async with broker(tmp_path, messageDelayLevel="1s", flushDelayOffsetInterval=30) as peer:
        await peer.send("T", DELAY="1")
        await peer.records("T", hold_ms=6000)
        saved = tmp_path / "store" / "config" / "delayOffset.json"

        await until(lambda: asyncio.to_thread(holds, saved, "offsetTable"), seconds=4)


async def until_saved(peer: Peer) -> float:
    """Send a message; return how long it took until its queue was on disk."""
    assert peer.server._services is not None
    store = peer.server._services.store
    began = time.monotonic()
    await peer.send("T")

    async def saved() -> bool:
        return store._upkeep.saved_position >= store.end_position

    await until(saved, seconds=8)
    return time.monotonic() - began


async def test_when_queues_are_flushed(tmp_path: Path) -> None:
    took = {}
    for interval in (20, 1500):
        async with broker(
            tmp_path / str(interval),
            flushIntervalConsumeQueue=interval,
            flushConsumeQueueThoroughInterval=10,
            flushIntervalCommitLog=10,
        ) as peer:
            took[interval] = await until_saved(peer)
            took[interval] = await until_saved(peer)
    assert took[1500] > 2 * took[20]
    assert took[1500] > 0.8
