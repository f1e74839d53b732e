from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any, cast

import pytest

from rocketpost.broker.timer.moving import Departure, MessageMover
from rocketpost.errors import StoreError, StoreFull
from rocketpost.server.features.timer_removal import TimerRemoval


class FakeMoving:
    """Two slots with three copies each, in batches of two."""

    def __init__(self) -> None:
        self.moved = 0
        self.left = {10: 3, 20: 3}
        self.ended: list[int] = []

    def survey(self, position: int) -> Iterator[dict[int, int]]:
        yield {}
        yield dict(self.left)

    def check(self, found: dict[int, int], *, freed_bytes: int) -> None:
        if sum(found.values()) > freed_bytes:
            raise StoreError("too much")

    def begin(self, slot_ms: int, position: int) -> Departure:
        return Departure(slot_ms, deque(), [])

    def drafts(self, departure: Departure) -> list[Any]:
        return ["draft"] * min(2, self.left[departure.slot_ms])

    def note_stored(self, departure: Departure, count: int) -> None:
        self.left[departure.slot_ms] -= count
        self.moved += count

    def end(self, departure: Departure) -> None:
        self.ended.append(departure.slot_ms)


class Disk:
    """Stores drafts at once, some of them, or when told."""

    def __init__(self, *, room: int = 100, is_slow: bool = False) -> None:
        self.room = room
        self.is_slow = is_slow
        self.under_way: asyncio.Future[list[Any]] | None = None

    def put(self, drafts: list[Any]) -> asyncio.Future[list[Any]]:
        if not self.room:
            raise StoreFull("no room")
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        taken = drafts[: self.room]
        self.room -= len(taken)
        self.under_way = future
        if not self.is_slow:
            future.set_result(taken)
        return future


def removal(moving: FakeMoving, disk: Disk) -> TimerRemoval:
    return TimerRemoval(moving=cast(MessageMover, moving), put=disk.put)


async def test_slots_are_moved_the_furthest_first() -> None:
    moving = FakeMoving()
    assert await removal(moving, Disk()).run(1000, freed_bytes=100) == 6
    assert moving.ended == [20, 10]
    assert moving.left == {10: 0, 20: 0}


async def test_a_removal_that_frees_too_little_is_not_started() -> None:
    moving = FakeMoving()
    with pytest.raises(StoreError, match="too much"):
        await removal(moving, Disk()).run(1000, freed_bytes=5)
    assert not moving.ended


@pytest.mark.parametrize(("room", "left"), [(1, 2), (2, 1)])
async def test_a_slot_is_ended_though_there_was_no_room_for_all(room: int, left: int) -> None:
    moving = FakeMoving()
    with pytest.raises(StoreError, match="room"):
        await removal(moving, Disk(room=room)).run(1000, freed_bytes=100)
    assert moving.ended == [20]
    assert moving.left == {10: 3, 20: left}


@pytest.mark.parametrize("is_stored", [True, False])
async def test_stores_in_progress_at_a_stop_are_settled(is_stored: bool) -> None:
    moving, disk = FakeMoving(), Disk(is_slow=True)
    mover = removal(moving, disk)
    task = asyncio.create_task(mover.run(1000, freed_bytes=100))
    while disk.under_way is None:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not moving.ended
    if is_stored:
        disk.under_way.set_result(["draft", "draft"])
    assert mover.end() is is_stored
    assert moving.ended == [20]
    assert moving.left[20] == (1 if is_stored else 3)
    assert mover.end()
