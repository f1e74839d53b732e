"""Levels deliver when something is due, sleep when nothing is, and try again what failed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from rocketpost.broker.delay.progress import DelayProgress
from rocketpost.broker.delay.service import DueBatch
from rocketpost.broker.delivery import Wait
from rocketpost.errors import StoreFull
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.model.names import SCHEDULE_TOPIC
from rocketpost.server import due_loop
from rocketpost.server.features.delay_delivery import Delivery
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.store.draft import Appended, Draft
from rocketpost.testing.clock import FakeClock
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.testing.waiting import settle, until

DRAFT = Draft("T", 0, 0, 0, 0, b"", b"", 0, 0, b"", b"")


def appended(topic: str = SCHEDULE_TOPIC, queue_id: int = 0, position: int = 0) -> Appended:
    return Appended(Position(position), 10, QueueOffset(0), 0, topic, queue_id, 0, (), None)


def arrival(topic: str, queue_id: int) -> Arrival:
    return Arrival.of_one(topic, queue_id, 0, (0, 10, 0))


class Service:
    """Stands for the decisions: what each level is to do next, then nothing."""

    def __init__(self) -> None:
        self.steps: dict[int, list[DueBatch | Wait]] = {}
        self.asked: list[int] = []
        self.delivered_before = 0
        self.failures = 0

    def next(self, level: int) -> DueBatch | Wait:
        self.asked.append(level)
        steps = self.steps.get(level)
        return steps.pop(0) if steps else Wait(None)

    def skip_delivered(self, level: int) -> bool:
        if self.failures:
            self.failures -= 1
            raise OSError("too many open files")
        self.delivered_before -= 1
        return self.delivered_before >= 0

    def state(self, level: int) -> tuple[int, int]:
        return (3, 5) if level == 2 else (0, 0)


class World:
    def __init__(self) -> None:
        self.service = Service()
        self.progress = DelayProgress(clock=FakeClock())
        self.puts: list[list[Draft]] = []
        self.answers: list[list[Appended] | Exception] = []
        self.delivery = Delivery(
            service=self.service,  # type: ignore[arg-type]
            progress=self.progress,
            put=self.put,
            level_count=2,
        )

    def put(self, drafts: list[Draft]) -> asyncio.Future[list[Appended]]:
        self.puts.append(drafts)
        answer = self.answers.pop(0) if self.answers else [appended()] * len(drafts)
        future: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
        if isinstance(answer, Exception):
            raise answer
        future.set_result(answer)
        return future

    async def until_reached(self, level: int, offset: int) -> None:
        await until(lambda: self.progress.next_offset(level) == offset)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.delivery.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))


@pytest.fixture
def world() -> World:
    return World()


@in_virtual_time
async def test_a_due_message_is_stored_and_then_counted(world: World) -> None:
    world.service.steps[1] = [Wait(1), DueBatch([DRAFT, DRAFT], [0, 1], 2), DueBatch([], [], 3)]
    async with world.running():
        await world.until_reached(1, 3)
    assert world.puts == [[DRAFT, DRAFT]]
    assert world.delivery.delivered == 2


@in_virtual_time
async def test_a_level_sleeps_until_a_message_arrives_in_it(world: World) -> None:
    async with world.running():
        await settle()
        assert sorted(world.service.asked) == [1, 2]
        world.delivery.note_arrivals([arrival("T", 1), arrival(SCHEDULE_TOPIC, 77)])
        await settle()
        assert sorted(world.service.asked) == [1, 2]
        world.service.steps[2] = [DueBatch([DRAFT], [0], 1)]
        world.delivery.note_arrivals([arrival(SCHEDULE_TOPIC, 1)])
        await world.until_reached(2, 1)
    assert sorted(world.service.asked) == [1, 2, 2, 2]


@in_virtual_time
async def test_a_message_that_cannot_be_stored_is_kept_and_retried(world: World) -> None:
    due = DueBatch([DRAFT], [0], 1)
    world.service.steps[1] = [due, due]
    world.service.steps[2] = [DueBatch([], [], 4)]
    world.answers = [StoreFull("no room")]
    async with world.running():
        await world.until_reached(2, 4)
        await world.until_reached(1, 1)
    assert len(world.puts) == 2


@in_virtual_time
async def test_progress_follows_what_was_stored_in_part(world: World) -> None:
    world.service.steps[1] = [DueBatch([DRAFT, DRAFT], [4, 6], 9)]
    world.answers = [[appended()]]
    async with world.running():
        await world.until_reached(1, 6)


@in_virtual_time
async def test_messages_delivered_before_a_crash_are_skipped_first(world: World) -> None:
    world.service.delivered_before = 200
    async with world.running():
        await settle()
    assert world.service.delivered_before < 0


@in_virtual_time
async def test_a_long_wait_is_cut_to_look_at_the_clock(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_loop, "CLOCK_LOOK_SECONDS", 0.001)
    world.service.steps[1] = [Wait(3_600_000), DueBatch([], [], 1)]
    async with world.running():
        await world.until_reached(1, 1)


@in_virtual_time
async def test_states_for_tools(world: World) -> None:
    assert world.delivery.runtime_values() == {
        "delayedMessages": "2",
        "scheduleMessageOffset_2": "3,5",
    }


@in_virtual_time
async def test_messages_that_cannot_be_looked_up_for_a_moment_are_delivered_later(
    world: World,
) -> None:
    world.service.failures = 3
    world.service.steps[1] = [DueBatch([DRAFT], [0], 1)]
    async with world.running():
        await world.until_reached(1, 1)
    assert world.puts == [[DRAFT]]
