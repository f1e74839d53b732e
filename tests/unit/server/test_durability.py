"""The durability gate: nothing leaves before its bytes are on disk."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rocketpost.model.ids import Position
from rocketpost.server.durability import DurabilityGate


class Seen:
    def __init__(self) -> None:
        self.durable: list[str] = []
        self.late: list[str] = []
        self.positions: list[int] = []

    def gate(self, timeout_ms: int = 60_000) -> DurabilityGate[str]:
        return DurabilityGate(
            on_durable=self.durable.extend,
            on_timeout=self.late.extend,
            on_position=self.positions.append,
            timeout_ms=timeout_ms,
        )


@pytest.fixture
def seen() -> Seen:
    return Seen()


async def test_tickets_leave_in_order_and_not_early(seen: Seen) -> None:
    gate = seen.gate()
    for position in (10, 20, 30):
        gate.park(Position(position), str(position))
    gate.advance(Position(9))
    assert seen.durable == []
    gate.advance(Position(20))
    assert seen.durable == ["10", "20"]
    gate.advance(Position(15))
    assert seen.positions == [9, 20]
    assert len(gate) == 1
    assert gate.drain() == ["30"]
    gate.close()
    gate.close()


async def test_a_slow_disk_times_tickets_out(seen: Seen) -> None:
    gate = seen.gate(timeout_ms=1)
    gate.park(Position(10), "a")
    async with asyncio.timeout(5):
        while not seen.late:
            await asyncio.sleep(0.001)
    gate.advance(Position(10))
    assert seen.late == ["a"]
    assert seen.durable == []
    gate.park(Position(20), "b")
    gate.advance(Position(20))
    assert seen.durable == ["b"]
    gate.close()


async def test_the_flusher_thread_comes_in_by_its_own_door(seen: Seen) -> None:
    gate = seen.gate()
    gate.park(Position(5), "x")
    thread = threading.Thread(target=gate.advance_from_thread, args=(Position(5),))
    thread.start()
    thread.join()
    assert seen.durable == []
    async with asyncio.timeout(5):
        while not seen.durable:
            await asyncio.sleep(0)
    assert seen.durable == ["x"]
    gate.close()


async def test_a_closed_gate_leaves_the_store_alone(seen: Seen) -> None:
    gate = seen.gate()
    gate.park(Position(5), "x")
    gate.close()
    gate.advance(Position(5))
    assert seen.positions == seen.durable == []


def test_a_closed_loop_does_not_hurt_the_flusher(seen: Seen) -> None:
    async def make() -> DurabilityGate[str]:
        return seen.gate()

    gate = asyncio.run(make())
    gate.advance_from_thread(Position(1))
    assert seen.positions == []
