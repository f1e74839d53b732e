"""Popped and timed messages of a broker whose machine has its clock set back by an hour."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.record import decode_records
from rocketpost.server.broker import BrokerServer
from rocketpost.server.clock import BrokerClock

from .harness import SETTINGS, Peer, connected

HOUR_MS = 3_600_000


async def pop(peer: Peer, *, poll_ms: int = 0) -> list[bytes]:
    answer = await peer.call(
        Code.POP_MESSAGE, consumerGroup="G", topic="P", queueId=-1, maxMsgNums=32,
        invisibleTime=1000, pollTime=poll_ms, bornTime=0, initMode=0, order="false",
    )  # fmt: skip
    return [bytes(record.body) for record in decode_records(answer.body)]


@pytest.mark.slow
async def test_durations_hold_and_delivery_times_are_waited_for(tmp_path: Path) -> None:
    back_ms = 0
    clock = BrokerClock(lambda: time.time_ns() - back_ms * 1_000_000)
    server = BrokerServer(SETTINGS | {"storePathRootDir": str(tmp_path)}, clock=clock)
    await server.start()
    try:
        async with connected(server) as peer:
            await peer.send("P", body=b"popped")
            assert await pop(peer) == [b"popped"]
            due_ms = int(time.time() * 1000) + 1000
            await peer.send("T", f"TIMER_DELIVER_MS\x01{due_ms}\x02", body=b"at a time")
            await peer.send("T", "TIMER_DELAY_MS\x011001\x02", body=b"delayed")
            back_ms = HOUR_MS
            async with asyncio.timeout(20):
                found: list[bytes] = []
                while not found:
                    found = [bytes(each.body) for each in await peer.pull("T", hold_ms=1000)]
                assert found == [b"delayed"]
                while await pop(peer, poll_ms=2000) != [b"popped"]:
                    pass
            assert len(await peer.pull("T")) == 1  # the time of the day comes in an hour
            assert (await peer.status())["timerCongestNum"] == "1"
    finally:
        await server.stop()
