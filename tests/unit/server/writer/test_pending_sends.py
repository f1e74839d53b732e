"""Sends that wait: none leaves before its end is confirmed, and none waits for ever."""

from __future__ import annotations

import asyncio

import pytest

from rocketpost.model.ids import Position, QueueOffset
from rocketpost.server.writer.internal_sends import InternalSend
from rocketpost.server.writer.pending_sends import PendingSend, WaitingSends
from rocketpost.store.draft import Appended
from rocketpost.testing.waiting import until


class Seen:
    def __init__(self) -> None:
        self.late: list[int] = []

    def queue(self, timeout_ms: int = 60_000) -> WaitingSends:
        return WaitingSends(on_timeout=self._time_out, timeout_ms=timeout_ms)

    def _time_out(self, sends: list[PendingSend]) -> None:
        self.late += ends(sends)


def stored(end: int) -> list[Appended]:
    return [Appended(Position(end - 10), 10, QueueOffset(0), 0, "T", 0, 0, ("U",), None)]


def send(end: int) -> PendingSend:
    return PendingSend(None, stored(end), 1, False)  # type: ignore[arg-type]


def internal(end: int) -> InternalSend:
    done = asyncio.get_running_loop().create_future()
    return InternalSend(None, stored(end), 1, False, done)  # type: ignore[arg-type]


def ends(sends: list[PendingSend]) -> list[int]:
    return [each.end for each in sends]


@pytest.fixture
def seen() -> Seen:
    return Seen()


async def test_sends_leave_in_order_and_not_early(seen: Seen) -> None:
    waiting = seen.queue()
    waiting.add([send(10), send(20), send(30)], Position(30))
    waiting.add([send(40)], Position(40))
    assert waiting.release(Position(9)) == []
    assert ends(waiting.release(Position(20))) == [10, 20]
    assert waiting.release(Position(29)) == []
    assert len(waiting) == 2
    assert ends(waiting.release(Position(40))) == [30, 40]
    assert len(waiting) == 0
    waiting.close()
    waiting.close()


async def test_originals_at_any_position_keep_the_order(seen: Seen) -> None:
    waiting = seen.queue()
    waiting.add([send(30), send(10)], Position(30))
    waiting.add([send(20)], Position(20))
    assert waiting.release(Position(20)) == []
    assert ends(waiting.release(Position(30))) == [30, 10, 20]
    waiting.close()


async def test_drained_sends_wait_no_longer(seen: Seen) -> None:
    waiting = seen.queue()
    waiting.add([send(10)], Position(10))
    waiting.add([send(20)], Position(20))
    assert ends(waiting.drain()) == [10, 20]
    assert waiting.drain() == []
    waiting.close()


async def test_a_slow_disk_times_clients_out_but_not_the_brokers_own(seen: Seen) -> None:
    waiting = seen.queue(timeout_ms=1)
    waiting.add([internal(10), send(20)], Position(20))
    waiting.add([internal(30)], Position(30))
    waiting.add([send(40)], Position(40))
    assert (len(waiting), waiting.client_count) == (4, 2)
    await until(lambda: len(seen.late) == 2)
    assert seen.late == [20, 40]
    assert (len(waiting), waiting.client_count) == (2, 0)
    waiting.add([send(50)], Position(50))
    assert ends(waiting.release(Position(10))) == [10]
    assert ends(waiting.release(Position(50))) == [30, 50]
    waiting.close()


async def test_a_new_timeout_concerns_the_waiting_sends_too(seen: Seen) -> None:
    waiting = seen.queue()
    waiting.add([send(10)], Position(10))
    waiting.set_timeout(1)
    waiting.add([send(20)], Position(20))
    await until(lambda: len(seen.late) == 2)
    assert seen.late == [10, 20]
    waiting.set_timeout(60_000)
    waiting.add([send(30)], Position(30))
    assert ends(waiting.release(Position(30))) == [30]
    waiting.close()
