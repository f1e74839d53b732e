"""Settings of timed messages: what a running broker does with each."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rocketpost.codec.codes import ResponseCode

from .harness import HOUR_MS, broker, until


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
        await peer.records("Other", hold_ms=30_000)  # that took a second
        assert await peer.records("T") == []
        await peer.set(**{key: "false"})
        assert len(await peer.records("T", hold_ms=30_000)) == 1


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
        [record] = await peer.records("T", hold_ms=30_000)
        assert int(record.properties["TIMER_ROLL_TIMES"]) >= 1


async def test_files_of_the_timer(tmp_path: Path) -> None:
    async with broker(tmp_path, mappedFileSizeTimerLog=8192, timerFlushIntervalMs=30) as peer:
        await peer.send("T", TIMER_DELAY_SEC="60")
        log = tmp_path / "store" / "timerlog" / ("0" * 20)
        await until(lambda: asyncio.to_thread(log.exists))
        assert log.stat().st_size <= 8192


async def test_timerFlushIntervalMs(tmp_path: Path) -> None:
    def stamp(name: str) -> int:
        path = tmp_path / name / "store" / "config" / "timercheck"
        return path.stat().st_mtime_ns if path.exists() else 0

    async def is_newer(before: int) -> bool:
        return await asyncio.to_thread(stamp, "quick") > before

    async with (
        broker(tmp_path / "slow", timerFlushIntervalMs=HOUR_MS) as slow,
        broker(tmp_path / "quick", timerFlushIntervalMs=20) as quick,
    ):
        untouched = await asyncio.to_thread(stamp, "slow")
        await slow.send("T", TIMER_DELAY_SEC="60")
        for _ in range(3):
            before = await asyncio.to_thread(stamp, "quick")
            await quick.send("T", TIMER_DELAY_SEC="60")
            await until(lambda b=before: is_newer(b))  # type: ignore[misc]
        assert stamp("slow") == untouched
