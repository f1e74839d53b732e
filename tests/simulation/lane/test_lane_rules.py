"""What holds for ordinary sends holds in the lane: waiting, refusals, back-pressure, switches."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import decode_commands
from rocketpost.codec.frames import FrameDecoder
from rocketpost.store.config import FlushMode

from .rig import MODES, OFF, Rig
from .traffic import Traffic

Act = Callable[[Rig], Awaitable[None]]
LANES = [mode for mode in MODES if mode != OFF]


def sends(count: int, *, body: bytes = b"body", oneway: bool = False) -> bytes:
    """Return plain sends to one queue."""
    traffic = Traffic(random.Random(1))
    fields = {
        "producerGroup": "p",
        "topic": "Orders",
        "queueId": "0",
        "properties": "UNIQ_KEY\x01k\x02",
    }
    made = b""
    while count:
        frame = traffic._encode(fields, body, code=310)
        if (b'"flag": 2' in frame or b'"flag":2' in frame or frame[20] == 2) == oneway:
            made += frame
            count -= 1
    return made


def codes(rig: Rig) -> list[int]:
    written = bytes(rig.connections[0][1].written)
    return [command.code for command in decode_commands(FrameDecoder().feed(written))]


def outcomes(root: Path, act: Act, **more: Any) -> list[dict[str, Any]]:
    """Let the same happen in every mode; all outcomes must be equal."""

    async def run(mode: str) -> dict[str, Any]:
        rig = Rig(root / mode, mode, **more)
        rig.feed(0, sends(1))  # the lane learns the queue
        await rig.settle()
        await act(rig)
        await rig.settle()
        rig.close()
        found = rig.outcome()
        found["codes"] = codes(rig)
        return found

    found = [asyncio.run(run(mode)) for mode in [OFF, *LANES]]
    for other in found[1:]:
        assert other == found[0]
    return found


def test_sends_that_wait_too_long_are_answered_late(tmp_path: Path) -> None:
    async def act(rig: Rig) -> None:
        rig.store.request_flush = lambda: None
        rig.writer._waiting.set_timeout(30)
        taken = rig.taken
        rig.feed(0, sends(5))
        await rig.turn()
        assert rig.taken == taken + (0 if rig.mode == OFF else 5)
        assert rig.writer.waiting_count == 5
        assert len(codes(rig)) == 1
        while len(codes(rig)) < 6:
            await asyncio.sleep(0.005)
        rig.store.flush_blocking()

    found = outcomes(tmp_path, act, flush_mode=FlushMode.SYNC_FLUSH)
    assert found[0]["codes"] == [0] + [ResponseCode.FLUSH_DISK_TIMEOUT] * 5


def test_sends_that_wait_are_refused_when_the_disk_fails(tmp_path: Path) -> None:
    async def act(rig: Rig) -> None:
        rig.store.request_flush = lambda: None
        rig.feed(0, sends(3) + sends(2, oneway=True))
        await rig.turn()
        rig.writer.fail("the disk is gone")

    found = outcomes(tmp_path, act, flush_mode=FlushMode.SYNC_FLUSH)
    assert found[0]["codes"] == [0] + [ResponseCode.SERVICE_NOT_AVAILABLE] * 3


def test_a_failed_write_refuses_every_request_and_counts_it(tmp_path: Path) -> None:
    async def act(rig: Rig) -> None:
        rig.files.failures.append(500)
        rig.feed(0, sends(3) + sends(2, oneway=True))
        await rig.turn()
        rig.feed(0, sends(1))

    found = outcomes(tmp_path, act)
    assert found[0]["codes"] == [0] + [ResponseCode.SERVICE_NOT_AVAILABLE] * 3 + [0]
    assert found[0]["stored"][2] == 5


def test_more_than_the_buffers_hold_in_one_read(tmp_path: Path) -> None:
    async def act(rig: Rig) -> None:
        taken = rig.taken
        rig.feed(0, sends(400, body=bytes(12_000)))
        assert rig.taken - taken == (0 if rig.mode == OFF else 400)

    found = outcomes(tmp_path, act, segment_bytes=16 * 1024 * 1024)
    assert found[0]["codes"] == [0] * 401


def test_a_segment_that_is_full_is_left_to_the_ordinary_way(tmp_path: Path) -> None:
    async def act(rig: Rig) -> None:
        for _ in range(4):
            rig.feed(0, sends(10, body=bytes(8000)))
            await rig.turn()

    found = outcomes(tmp_path, act, segment_bytes=64 * 1024)
    logs = [name for name in found[0]["files"] if name.startswith("commitlog")]
    assert len(logs) > 4


def test_nothing_is_taken_while_the_store_refuses_messages(tmp_path: Path) -> None:
    async def act(rig: Rig) -> None:
        taken = rig.taken
        rig.store.set_disk_full("the disk is nearly full")
        rig.feed(0, sends(2))
        assert rig.taken == taken
        rig.store.set_disk_full(None)
        rig.feed(0, sends(1))

    found = outcomes(tmp_path, act)
    assert found[0]["codes"].count(ResponseCode.SERVICE_NOT_AVAILABLE) == 2


def test_an_attempt_that_takes_nothing_leaves_no_store_time_behind(tmp_path: Path) -> None:
    async def act(rig: Rig) -> None:
        rig.feed(0, sends(1, body=b"").replace(b"Orders", b"Orderz"))
        await rig.turn()
        rig.clock.advance(5000)
        rig.feed(0, sends(1))

    found = outcomes(tmp_path, act)
    assert found[0]["stored"][0] == 2


@pytest.mark.parametrize("mode", LANES)
def test_the_lane_is_off_where_it_must_be(tmp_path: Path, mode: str) -> None:
    async def run() -> None:
        rig = Rig(tmp_path, mode)
        rig.feed(0, sends(1))
        await rig.settle()

        def takes() -> bool:
            taken = rig.taken
            rig.feed(0, sends(1))
            rig.feed(0, sends(1))  # after a change the first one makes its queue known
            return rig.taken > taken

        assert takes()
        keys = rig.feature.context.dedup.keys
        keys.is_on = True
        assert not takes()
        keys.is_on = False
        rig.configure(permission=4)
        assert not takes()
        assert rig.feature.runtime_values()["sendLane"] == "off, the broker accepts no sends"
        rig.configure(permission=6)
        assert takes()
        rig.configure(send_lane=False)
        assert not takes()
        assert rig.feature.runtime_values()["sendLane"] == "off, sendLaneEnable=false"
        rig.configure(send_lane=True)
        assert takes()
        assert rig.feature.runtime_values()["sendLane"] == "on"
        rig.announcing.topics.add("Orders")
        rig.feature.topic_changed()
        assert not takes()
        rig.announcing.topics.clear()
        assert takes()
        await rig.settle()
        rig.writer.end_term("over")
        assert not takes()
        rig.close()

    asyncio.run(run())


@pytest.mark.parametrize("mode", LANES)
def test_a_connection_with_too_many_unanswered_sends_stops_reading(
    tmp_path: Path, mode: str
) -> None:
    async def run() -> None:
        rig = Rig(tmp_path, mode)
        rig.feed(0, sends(1))
        await rig.settle()
        connection, _ = rig.connections[0]
        connection._pending_max = 5
        rig.feed(0, sends(5))
        assert not connection._paused
        rig.feed(0, sends(1))
        assert connection._paused
        await rig.settle()
        assert not connection._paused
        assert connection._unanswered == 0
        rig.close()

    asyncio.run(run())


@pytest.mark.parametrize("mode", LANES)
def test_one_write_for_each_connection_and_turn(tmp_path: Path, mode: str) -> None:
    async def run() -> None:
        rig = Rig(tmp_path, mode)
        rig.feed(0, sends(1))
        await rig.settle()
        _, pipe = rig.connections[0]
        writes: list[int] = []
        write = pipe.write
        pipe.write = lambda data: (writes.append(len(data)), write(data))  # type: ignore[func-returns-value, method-assign]
        for _ in range(4):
            rig.feed(0, sends(10))
        await rig.settle()
        assert len(writes) == 1
        rig.close()

    asyncio.run(run())
