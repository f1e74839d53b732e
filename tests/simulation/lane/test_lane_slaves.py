"""The answers of a SYNC_MASTER are the same in the lane and the ordinary way, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, decode_commands, encode_command
from rocketpost.codec.frames import FrameDecoder
from rocketpost.store.config import FlushMode

from .rig import MODES, OFF, Rig
from .test_lane_rules import sends

SYNC, ASYNC = FlushMode.SYNC_FLUSH, FlushMode.ASYNC_FLUSH
LANES = [mode for mode in MODES if mode != OFF]
Act = Callable[[Rig, "Slave"], Awaitable[None]]


class Slave:
    """The reports of at most one slave."""

    def __init__(self) -> None:
        self.position: int | None = None

    def position_of(self, replicas: int) -> int:
        return 0 if self.position is None or replicas > 1 else self.position

    def in_sync(self, end: int, gap_bytes: int) -> int:
        return int(self.position is not None and end - self.position < gap_bytes)


def report(rig: Rig, slave: Slave, *, position: int | None = None) -> None:
    """Report everything written, or a position."""
    slave.position = rig.store.written_position if position is None else position
    rig.writer.slaves_changed()


def answers(rig: Rig) -> list[Command]:
    """Return the answers to the first connection, without those that made the queue known."""
    written = bytes(rig.connections[0][1].written)
    return list(decode_commands(FrameDecoder().feed(written)))[1:]


def outcomes(root: Path, act: Act, *, is_taken: bool = True, **more: Any) -> list[Command]:
    """Let the same happen in every mode; all outcomes must be equal. Return the answers."""

    async def run(mode: str) -> tuple[dict[str, Any], list[Command]]:
        slave = Slave()
        slave.position = 0
        rig = Rig(root / mode, mode, slaves=slave, **more)
        rig.feed(0, sends(1))  # the lane learns the queue
        await rig.settle()
        report(rig, slave)
        taken = rig.taken
        await act(rig, slave)
        await rig.settle()
        assert (rig.taken > taken) == (is_taken and mode != OFF)
        found = answers(rig)
        rig.close()
        return rig.outcome(), found

    found = [asyncio.run(run(mode)) for mode in [OFF, *LANES]]
    for other, _ in found[1:]:
        assert other == found[0][0]
    return found[0][1]


@pytest.mark.parametrize("flush_mode", [ASYNC, SYNC])
def test_many_sends_wait_for_one_report_and_are_answered_in_order(
    tmp_path: Path, flush_mode: FlushMode
) -> None:
    async def act(rig: Rig, slave: Slave) -> None:
        for _ in range(4):
            rig.feed(0, sends(5) + sends(1, oneway=True))
            await rig.settle()
        assert answers(rig) == []
        assert rig.stats.put_count == 25, "messages are visible before slaves have them"
        report(rig, slave, position=slave.position)
        assert answers(rig) == []
        report(rig, slave)
        offsets = [int(answer.fields["queueOffset"]) for answer in answers(rig)]
        assert offsets == sorted(offsets)

    found = outcomes(tmp_path, act, flush_mode=flush_mode)
    assert [answer.code for answer in found] == [ResponseCode.SUCCESS] * 20


@pytest.mark.parametrize("flush_mode", [ASYNC, SYNC])
def test_a_silent_slave(tmp_path: Path, flush_mode: FlushMode) -> None:
    async def act(rig: Rig, slave: Slave) -> None:
        rig.feed(0, sends(3))
        while len(answers(rig)) < 3:
            await asyncio.sleep(0.005)
        report(rig, slave)

    found = outcomes(tmp_path, act, flush_mode=flush_mode, slave_timeout_ms=20)
    _check(found, ResponseCode.FLUSH_SLAVE_TIMEOUT)


@pytest.mark.parametrize("flush_mode", [ASYNC, SYNC])
def test_no_slave(tmp_path: Path, flush_mode: FlushMode) -> None:
    async def act(rig: Rig, slave: Slave) -> None:
        slave.position = None
        rig.writer.slaves_changed()
        rig.feed(0, sends(3))

    found = outcomes(tmp_path, act, flush_mode=flush_mode)
    _check(found, ResponseCode.SLAVE_NOT_AVAILABLE)


def test_a_slow_disk(tmp_path: Path) -> None:
    async def act(rig: Rig, slave: Slave) -> None:
        rig.store.request_flush = lambda: None
        rig.writer._waiting.set_timeout(20)
        rig.feed(0, sends(3))
        await rig.turn()
        report(rig, slave)
        while len(answers(rig)) < 3:
            await asyncio.sleep(0.005)
        rig.store.flush_blocking()

    found = outcomes(tmp_path, act, flush_mode=SYNC)
    _check(found, ResponseCode.FLUSH_DISK_TIMEOUT)


def test_a_slow_slave_stops_a_connection_with_too_many_unanswered_sends(tmp_path: Path) -> None:
    async def act(rig: Rig, slave: Slave) -> None:
        connection, _ = rig.connections[0]
        connection._pending_max = 5
        for _ in range(6):
            rig.feed(0, sends(1))
            await rig.turn()
        assert connection._paused
        rig.feed(1, sends(1))
        await rig.turn()
        assert rig.stats.put_count == 8, "others go on"
        report(rig, slave)
        await rig.turn()
        assert not connection._paused

    found = outcomes(tmp_path, act)
    assert [answer.code for answer in found] == [ResponseCode.SUCCESS] * 6


def test_too_few_replicas_of_a_group_with_an_acting_master(tmp_path: Path) -> None:
    def one(properties: str) -> bytes:
        fields = {
            "producerGroup": "p",
            "topic": "Orders",
            "queueId": "0",
            "properties": f"UNIQ_KEY\x01k\x02{properties}",
        }
        return (
            encode_command(RequestCode.SEND_MESSAGE, opaque=77, fields=fields, body_bytes=4)
            + b"body"
        )

    async def act(rig: Rig, slave: Slave) -> None:
        rig.feature.note_living_replicas(1)
        rig.feed(0, sends(2) + one("WAIT\x01false\x02"))
        await rig.turn()
        rig.feature.note_living_replicas(2)
        rig.feed(0, sends(1) + sends(1))
        await rig.turn()
        report(rig, slave)

    found = outcomes(tmp_path, act, acting_master=True)
    assert [(answer.code, answer.remark) for answer in found] == [
        (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough"),
        (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough"),
        (ResponseCode.SUCCESS, None),
        (ResponseCode.SUCCESS, None),
        (ResponseCode.SUCCESS, None),
    ]


def test_settings_act_at_once(tmp_path: Path) -> None:
    async def act(rig: Rig, slave: Slave) -> None:
        rig.feed(0, sends(1))
        await rig.turn()
        assert rig.feature.runtime_values()["sendsAwaitingSlaves"] == "1"
        rig.configure(in_sync_replicas=1)
        rig.feed(0, sends(1) + sends(1))
        await rig.turn()
        assert len(answers(rig)) == 2
        rig.configure(in_sync_replicas=2, slave_timeout_ms=1)
        rig.feed(0, sends(1) + sends(1))
        while len(answers(rig)) < 5:
            await asyncio.sleep(0.005)

    found = outcomes(tmp_path, act)
    late = ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert [answer.code for answer in found] == [0, 0, late, late, late]


def _check(found: list[Command], code: ResponseCode) -> None:
    """Check that three sends got this answer, with what a producer needs to know."""
    assert [answer.code for answer in found] == [code] * 3
    assert [answer.fields["queueOffset"] for answer in found] == ["1", "2", "3"]
    assert all(len(answer.fields["msgId"]) == 32 for answer in found)
    assert len({answer.fields["msgId"] for answer in found}) == 3
