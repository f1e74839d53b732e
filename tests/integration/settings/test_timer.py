"""Settings of timed messages: what a running broker does with each."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from rocketpost.codec.codes import ResponseCode

from .harness import broker, until


async def test_timerWheelEnable(tmp_path: Path) -> None:
    answers = []
    for enabled in ("true", "false"):
        async with broker(tmp_path / enabled, timerWheelEnable=enabled) as peer:
            answers.append((await peer.send("T", TIMER_DELAY_SEC="60")).code)
    assert answers == [0, ResponseCode.SYSTEM_ERROR]


async def test_timerMaxDelaySec(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        assert (await peer.send("T", TIMER_DELAY_SEC="60")).code == 0
        await peer.set(timerMaxDelaySec=30)
        assert (await peer.send("T", TIMER_DELAY_SEC="60")).code == ResponseCode.MESSAGE_ILLEGAL


async def test_timerPrecisionMs(tmp_path: Path) -> None:
    async with broker(tmp_path, timerPrecisionMs=200) as peer:
        await peer.send("T", TIMER_DELAY_MS="60000")
        [record] = await peer.records("rmq_sys_wheel_timer")
        properties = record.properties
        due, out = int(properties["TIMER_DELIVER_MS"]), int(properties["TIMER_OUT_MS"])
        assert 0 < due - out <= 200
        assert out % 200 == 0


@pytest.mark.parametrize("key", ["timerStopEnqueue", "timerStopDequeue"])
async def test_a_stopped_timer(tmp_path: Path, key: str) -> None:
    async with broker(tmp_path) as peer:
        await peer.set(**{key: "true"})
        await peer.send("T", TIMER_DELAY_MS="100")
        await peer.send("Other", DELAY="1")
        await peer.records("Other", hold_ms=8000)  # that took a second
        assert await peer.records("T") == []
        await peer.set(**{key: "false"})
        assert len(await peer.records("T", hold_ms=8000)) == 1


async def test_timerCongestNumEachSlot(tmp_path: Path) -> None:
    async with broker(tmp_path, timerPrecisionMs=10_000) as peer:
        await peer.set(timerCongestNumEachSlot=1)

        async def refused() -> bool:
            answer = await peer.send("T", TIMER_DELAY_SEC="600")
            return answer.code == ResponseCode.SYSTEM_ERROR

        await until(refused)


async def test_timerRollWindowSlot(tmp_path: Path) -> None:
    async with broker(tmp_path, timerRollWindowSlot=2, timerPrecisionMs=200) as peer:
        await peer.send("T", TIMER_DELAY_MS="1500")
        [record] = await peer.records("T", hold_ms=8000)
        assert int(record.properties["TIMER_ROLL_TIMES"]) >= 1


async def test_files_of_the_timer(tmp_path: Path) -> None:
    async with broker(tmp_path, mappedFileSizeTimerLog=8192, timerFlushIntervalMs=30) as peer:
        await peer.send("T", TIMER_DELAY_SEC="60")
        log = tmp_path / "store" / "timerlog" / ("0" * 20)
        await until(lambda: asyncio.to_thread(log.exists), seconds=5)
        assert log.stat().st_size <= 8192


async def test_timerFlushIntervalMs(tmp_path: Path) -> None:
    took = {}
    for interval in (20, 2000):
        root = tmp_path / str(interval)
        async with broker(root, timerFlushIntervalMs=interval) as peer:
            check = root / "store" / "config" / "timercheck"
            before = await asyncio.to_thread(stamp, check)
            began = time.monotonic()
            await peer.send("T", TIMER_DELAY_SEC="60")
            await until(lambda c=check, b=before: asyncio.to_thread(is_newer, c, b))  # type: ignore[misc]
            took[interval] = time.monotonic() - began
    assert took[2000] > max(1.2, 2 * took[20])


def stamp(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def is_newer(path: Path, before: int) -> bool:
    return stamp(path) > before
