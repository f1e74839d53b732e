"""Settings of the store: paths, file sizes, syncs and cleaning."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.properties import PROPERTIES_BYTES_MAX
from rocketpost.codec.record import Record, decode_records, encode_record
from rocketpost.kernel.record_scan import CHECKSUM_HOLDS, judge_checksum
from rocketpost.server.features.cleaning import CleaningFeature

from .harness import COMMIT_OFFSET, HOUR_MS, SUBSCRIPTION, Peer, broker, until


def files_of(directory: Path) -> set[int]:
    """Return the sizes of the files in a directory."""
    return {path.stat().st_size for path in directory.iterdir() if path.is_file()}


def has_files(directory: Path) -> bool:
    return directory.exists() and bool(files_of(directory))


def holds(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text()


async def test_paths_and_sizes_of_files(tmp_path: Path) -> None:
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


async def is_durable(peer: Peer) -> bool:
    assert peer.server._term is not None
    store = peer.server._term.context.store
    return store.durable_position >= store.end_position


async def test_flushIntervalCommitLog(tmp_path: Path) -> None:
    async with (
        broker(tmp_path / "slow", flushIntervalCommitLog=HOUR_MS) as slow,
        broker(tmp_path / "quick", flushIntervalCommitLog=20) as quick,
    ):
        await slow.send("T")
        for _ in range(3):
            await quick.send("T")
            await until(lambda: is_durable(quick))
        assert not await is_durable(slow)


async def test_cleanResourceInterval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned = []

    async def clean(self: CleaningFeature, *args: object, **more: object) -> None:
        cleaned.append(self._context.store_config.root)

    monkeypatch.setattr(CleaningFeature, "_clean", clean)
    async with (
        broker(tmp_path / "slow", cleanResourceInterval=HOUR_MS) as slow,
        broker(tmp_path / "quick", cleanResourceInterval=20) as quick,
    ):
        await until(lambda: has_count(cleaned, quick.server.directory, 2))
        assert slow.server.directory not in cleaned


async def has_count(found: list[str], directory: str, count: int) -> bool:
    return found.count(directory) >= count


async def test_flushConsumerOffsetInterval(tmp_path: Path) -> None:
    async def consume(peer: Peer, group: str) -> None:
        await peer.group(group)
        # An offset that comes with a pull is not saved at once, as one that is told by itself.
        flags = SUBSCRIPTION | COMMIT_OFFSET
        await peer.pull("T", 1, group=group, sysFlag=flags, commitOffset=1)

    def saved(name: str) -> Path:
        return tmp_path / name / "store" / "config" / "consumerOffset.json"

    async with (
        broker(tmp_path / "slow", flushConsumerOffsetInterval=HOUR_MS) as slow,
        broker(tmp_path / "quick", flushConsumerOffsetInterval=30) as quick,
    ):
        await slow.send("T")
        await quick.send("T")
        await consume(slow, "First")
        for group in ("First", "Second"):
            await consume(quick, group)
            await until(lambda g=group: asyncio.to_thread(holds, saved("quick"), f"T@{g}"))  # type: ignore[misc]
        assert not holds(saved("slow"), "T@First")


async def test_messageDelayLevel(tmp_path: Path) -> None:
    async with broker(tmp_path, messageDelayLevel="1s") as peer:
        await peer.send("T", DELAY="3")
        [record] = await peer.records("T", hold_ms=30_000)
        assert record.properties["DELAY"] == "1"  # the last level that there is


async def test_flushDelayOffsetInterval(tmp_path: Path) -> None:
    def stamp(name: str) -> int:
        path = tmp_path / name / "store" / "config" / "delayOffset.json"
        return path.stat().st_mtime_ns if holds(path, "offsetTable") else 0

    async def is_newer(before: int) -> bool:
        return await asyncio.to_thread(stamp, "quick") > before

    short = {"messageDelayLevel": "1s"}
    async with (
        broker(tmp_path / "slow", flushDelayOffsetInterval=HOUR_MS, **short) as slow,
        broker(tmp_path / "quick", flushDelayOffsetInterval=30, **short) as quick,
    ):
        await slow.send("T", DELAY="1")
        await slow.records("T", hold_ms=30_000)
        for offset in range(2):
            before = await asyncio.to_thread(stamp, "quick")
            await quick.send("T", DELAY="1")
            await quick.records("T", offset=offset, hold_ms=30_000)
            await until(lambda b=before: is_newer(b))  # type: ignore[misc]
        assert stamp("slow") == 0


async def is_saved(peer: Peer) -> bool:
    assert peer.server._term is not None
    store = peer.server._term.context.store
    return store._checkpointer.saved_position >= store.end_position


async def test_when_queues_are_flushed(tmp_path: Path) -> None:
    thorough = {"flushConsumeQueueThoroughInterval": 10, "flushIntervalCommitLog": 10}
    async with (
        broker(tmp_path / "slow", flushIntervalConsumeQueue=HOUR_MS, **thorough) as slow,
        broker(tmp_path / "quick", flushIntervalConsumeQueue=20, **thorough) as quick,
    ):
        await slow.send("T")
        for _ in range(3):
            await quick.send("T")
            await until(lambda: is_saved(quick))
        assert not await is_saved(slow)
