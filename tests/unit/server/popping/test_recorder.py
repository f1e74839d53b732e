"""Changes settle in their order, services before those who wait, and none is stored twice."""

from __future__ import annotations

import asyncio

import pytest

from rocketpost.broker.pop.changes import Change, ChangeSteps
from rocketpost.errors import StoreBroken, StoreFull
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.server.popping.recorder import PopRecorder
from rocketpost.store.draft import Appended, Draft

DRAFT = Draft("R", 0, 0, 0, 0, b"", b"", 0, 0, b"", b"")
STORED = Appended(Position(0), 1, QueueOffset(0), 0, "R", 0, 0, (), None)


class Named(Change):
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__([DRAFT])
        self.name = name


class World:
    """A log that a test writes, and a service that notes what it is told."""

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[list[Appended]]] = []
        self.is_full = False
        self.told: list[str] = []
        self.recorder = PopRecorder(self.put)

    def put(self, drafts: list[Draft]) -> asyncio.Future[list[Appended]]:
        if self.is_full:
            raise StoreFull("no room")
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]

    def settle(self, change: Change) -> None:
        assert isinstance(change, Named)
        self.told.append(f"{change.name} {'stored' if change.is_stored else 'failed'}")


@pytest.fixture
async def world() -> World:
    return World()


async def test_changes_settle_in_order_and_the_service_hears_first(world: World) -> None:
    first, second = Named("first"), Named("second")
    for change in (first, second):
        world.recorder.store(world, change)
        world.recorder.when_settled(
            change,
            lambda name=change.name: world.told.append(f"waiter of {name}"),  # type: ignore[misc]
        )
    world.recorder.store(world, first)  # somebody else wants the same
    assert len(world.futures) == 2
    world.futures[1].set_exception(StoreBroken("gone"))
    await asyncio.sleep(0)
    assert world.told == []
    world.futures[0].set_result([STORED])
    world.recorder.settle()
    assert world.told == [
        "first stored", "waiter of first", "second failed", "waiter of second",
    ]  # fmt: skip
    assert second.reason == "gone"
    world.recorder.when_settled(first, lambda: world.told.append("late"))
    assert world.told[-1] == "late"


async def test_a_service_learns_of_settled_changes_before_it_decides(world: World) -> None:
    world.recorder.store(world, Named("first"))
    world.futures[0].set_result([STORED])

    def decide() -> Named:
        assert world.told == ["first stored"]
        return Named("second")

    world.recorder.decide(world, decide)
    assert len(world.futures) == 2
    assert world.recorder.decide(world, lambda: None) is None


async def test_a_change_that_does_not_fit_has_failed(world: World) -> None:
    world.is_full = True
    change = Named("first")
    with pytest.raises(StoreFull):
        world.recorder.store(world, change)
    assert world.told == ["first failed"]
    await world.recorder.wait([change, None])
    assert not change.is_stored


async def test_steps_continue_when_their_change_is_appended(world: World) -> None:
    def steps() -> ChangeSteps[str]:
        yield None
        yield Named("fits")
        world.is_full = True
        try:
            yield Named("does not")
        except StoreFull:
            return "in part"
        return "whole"

    running = world.recorder.run(world, steps())
    assert next(running) is None
    with pytest.raises(StopIteration) as end:
        next(running)
    assert end.value.value == "in part"
    assert world.told == ["does not failed"]
    assert len(world.futures) == 1
