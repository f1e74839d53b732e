from __future__ import annotations

import asyncio

import pytest

from rocketpost.client.producer.in_flight import InFlight


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_senders_beyond_the_count_wait_in_line() -> None:
    room = InFlight(count_max=2, bytes_max=100)
    await room.enter(1)
    await room.enter(1)
    order: list[str] = []

    async def enter(name: str) -> None:
        await room.enter(1)
        order.append(name)

    tasks = [asyncio.create_task(enter(name)) for name in "ab"]
    await turns()
    assert order == []
    assert not room.try_enter(1)
    room.leave(1)
    await turns()
    assert order == ["a"]
    room.leave(1)
    await asyncio.gather(*tasks)
    assert order == ["a", "b"]


async def test_bytes_are_bounded_but_one_giant_passes_alone() -> None:
    room = InFlight(count_max=10, bytes_max=100)
    assert room.try_enter(500)
    assert not room.try_enter(1)
    room.leave(500)
    assert room.try_enter(60)
    assert not room.try_enter(41)
    assert room.try_enter(40)


async def test_a_batch_takes_the_room_of_its_messages() -> None:
    room = InFlight(count_max=10, bytes_max=100)
    assert room.try_enter(1, 50)  # alone
    assert not room.try_enter(1)
    room.leave(1, 50)
    assert room.try_enter(1, 6)
    assert not room.try_enter(1, 5)
    assert room.try_enter(1, 4)


async def test_who_gives_up_waiting_leaves_no_trace() -> None:
    room = InFlight(count_max=1, bytes_max=100)
    await room.enter(1)
    waiting = asyncio.create_task(room.enter(1))
    await turns()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    room.leave(1)
    assert room.count == 0
    assert room.try_enter(1)


async def test_who_gives_up_just_when_admitted_returns_the_room() -> None:
    room = InFlight(count_max=1, bytes_max=100)
    await room.enter(1)
    waiting = asyncio.create_task(room.enter(1))
    await turns()
    room.leave(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (room.count, room.bytes_held) == (0, 0)


async def test_idle_means_that_all_have_left() -> None:
    room = InFlight(count_max=5, bytes_max=100)
    await room.enter(1)
    idle = asyncio.create_task(room.wait_idle())
    await turns()
    assert not idle.done()
    room.leave(1)
    await idle


async def test_who_gives_up_just_before_being_admitted_leaves_no_trace() -> None:
    room = InFlight(count_max=1, bytes_max=100)
    await room.enter(1)
    waiting = asyncio.create_task(room.enter(1))
    behind = asyncio.create_task(room.enter(1))
    await turns()
    waiting.cancel()
    room.leave(1)  # before the cancelled one has resumed
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await behind
    assert room.count == 1
    room.leave(1)
    assert room.try_enter(1)
