"""Rules of the pull lane: back-pressure, its switch, and when it learns."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from rocketpost.codec.command import encode_command
from rocketpost.codec.frames import FrameDecoder
from rocketpost.server.handlers import pull_lane

from .pull_rig import PullRig
from .pull_traffic import Consumers
from .rig import MODES, OFF

LANES = [mode for mode in MODES if mode != OFF]


def pulls(*offsets: int, count: int = 2) -> bytes:
    return b"".join(
        encode_command(
            11,
            opaque=offset,
            fields={
                "consumerGroup": "g",
                "topic": "Orders",
                "queueId": "0",
                "queueOffset": str(offset),
                "maxMsgNums": str(count),
                "sysFlag": "4",
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subscription": "*",
            },
        )
        for offset in offsets
    )


async def filled(root: Path, mode: str) -> PullRig:
    rig = PullRig(root, mode)
    rig.set_group("g")
    rig.feed(0, Consumers(random.Random(1)).sends(200))
    await rig.settle()
    rig.connections[0][1].written.clear()
    return rig


@pytest.mark.parametrize("mode", LANES)
def test_a_shape_is_learnt_when_it_comes_back(tmp_path: Path, mode: str) -> None:
    async def run() -> None:
        rig = await filled(tmp_path, mode)
        answered = []
        for offset in (0, 2, 4, 6):
            rig.feed(0, pulls(offset))
            answered.append(rig.answered)
        assert answered == [0, 1, 2, 3]
        await rig.settle()
        frames = FrameDecoder().feed(bytes(rig.connections[0][1].written))
        assert len(frames) == 4
        assert len({len(frame.header) for frame in frames}) == 1
        rig.close()

    asyncio.run(run())


@pytest.mark.parametrize("mode", LANES)
def test_the_lane_can_be_turned_off(tmp_path: Path, mode: str) -> None:
    async def run() -> None:
        rig = await filled(tmp_path, mode)
        rig.configure_pulls(pull_lane=False)
        assert rig.pulls.runtime_values()["pullLane"] == "off, pullLaneEnable=false"
        for _ in range(3):
            rig.feed(0, pulls(0))
        assert rig.answered == 0
        rig.configure_pulls(pull_lane=True)
        assert rig.pulls.runtime_values()["pullLane"] == "on"
        for _ in range(3):
            rig.feed(0, pulls(0))
        assert rig.answered == 2
        rig.close()

    asyncio.run(run())


@pytest.mark.parametrize("mode", LANES)
def test_nothing_is_taken_for_a_peer_that_does_not_read(tmp_path: Path, mode: str) -> None:
    async def run() -> None:
        rig = await filled(tmp_path, mode)
        connection, _ = rig.connections[0]
        rig.feed(0, pulls(0))
        rig.feed(0, pulls(0))
        assert rig.answered == 1
        connection.pause_writing()
        rig.feed(0, pulls(0))
        assert rig.answered == 1
        connection.resume_writing()
        rig.feed(0, pulls(0))
        assert rig.answered == 2
        rig.close()

    asyncio.run(run())


@pytest.mark.parametrize("mode", LANES)
def test_one_call_answers_a_bounded_number_of_bytes(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        rig = await filled(tmp_path, mode)
        rig.feed(0, pulls(0))
        rig.feed(0, pulls(0))
        monkeypatch.setattr(pull_lane, "ANSWER_BYTES_MAX", 1)
        connection, _ = rig.connections[0]
        data = pulls(0, 2, 4)
        assert rig.pulls.express(connection, data, 0, len(data)) == len(pulls(0))
        rig.close()

    asyncio.run(run())


@pytest.mark.parametrize("mode", LANES)
def test_answers_of_one_read_leave_in_one_write(tmp_path: Path, mode: str) -> None:
    async def run() -> None:
        rig = await filled(tmp_path, mode)
        rig.feed(0, pulls(0))
        rig.feed(0, pulls(0))
        await rig.settle()
        _, pipe = rig.connections[0]
        writes: list[int] = []
        write = pipe.writelines
        pipe.writelines = lambda data: (writes.append(len(data)), write(data))  # type: ignore[func-returns-value, method-assign]
        rig.feed(0, pulls(0, 2, 4, 6))
        assert writes == [4]
        rig.close()

    asyncio.run(run())
