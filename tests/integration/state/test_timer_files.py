"""Timed messages of a broker that lost one of the timer's files."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.model.names import TIMER_TOPIC

from .harness import Peer, broker, connected

COUNT = 30


def delete_log(root: Path) -> None:
    shutil.rmtree(root / "timerlog")


def delete_checkpoint(root: Path) -> None:
    (root / "config" / "timercheck").unlink()


def zero_checkpoint(root: Path) -> None:
    path = root / "config" / "timercheck"
    path.write_bytes(bytes(path.stat().st_size))


def scramble_wheel(root: Path) -> None:
    with (root / "timerwheel").open("r+b") as file:
        file.write(b"random" * 1000)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [delete_log, delete_checkpoint, zero_checkpoint, scramble_wheel])
async def test_waiting_messages_are_delivered_once_and_the_log_does_not_grow(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    async with broker(tmp_path) as server, connected(server) as peer:
        await peer.send("T", "TIMER_DELAY_MS\x0110\x02", body=b"before")
        while not await peer.pull("T", hold_ms=1000):
            pass
        due_ms = int(time.time() * 1000) + 1000
        for number in range(COUNT):
            await peer.send("T", f"TIMER_DELIVER_MS\x01{due_ms}\x02", body=b"%d" % number)
    damage(tmp_path)
    async with broker(tmp_path) as server, connected(server) as peer:
        assert (await peer.status())["timerRebuiltReason"]
        bodies = [b"before"]
        async with asyncio.timeout(20):
            while len(bodies) <= COUNT:
                found = await peer.pull("T", len(bodies), hold_ms=1000)
                assert all(record.store_ms >= due_ms for record in found)
                bodies += [bytes(record.body) for record in found]
        assert bodies == [b"before", *(b"%d" % number for number in range(COUNT))]
        assert await _count(peer, TIMER_TOPIC) == COUNT + 1
        assert await _count(peer, "T") == COUNT + 1


async def _count(peer: Peer, topic: str) -> int:
    answer = await peer.succeed(Code.GET_MAX_OFFSET, topic=topic, queueId=0)
    return int(answer.fields["offset"])
