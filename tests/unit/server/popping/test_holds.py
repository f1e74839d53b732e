"""Waiting pops: offered what arrives in turn, forgotten with their connection, ended in time."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

from rocketpost.broker.pop.requests import PopPlace
from rocketpost.server.popping.holds import Fresh, PopHolds, Waiting
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.testing.waiting import until


class World:
    def __init__(self) -> None:
        self.there = 0
        self.steps = 0
        self.fresh: list[list[tuple[str, int]]] = []
        self.tried: list[str] = []
        self.answered: list[str] = []
        self.expired: list[str] = []
        self.holds = PopHolds[str](retry=self.retry, time_over=self.time_over)

    def retry(self, waiting: Waiting[str], fresh: Fresh) -> Generator[None, None, bool]:
        for _ in range(self.steps):
            yield
        self.tried.append(waiting.payload)
        self.fresh.append(list(fresh))
        if not self.there:
            return False
        self.there -= 1
        self.answered.append(waiting.payload)
        return True

    def time_over(self, waiting: Waiting[str]) -> None:
        self.expired.append(waiting.payload)

    def park(
        self,
        name: str,
        *,
        connection: object = "c",
        topic: str = "T",
        group: str = "g",
        leaves_messages: bool = False,
        seconds: float = 60,
        retry_topics: tuple[str, ...] = ("R",),
    ) -> None:
        waiting = Waiting(
            connection, PopPlace(topic, group, -1), name, leaves_messages=leaves_messages
        )
        self.holds.park(waiting, retry_topics=retry_topics, seconds=seconds)

    async def arrive(self, topic: str, count: int = 1) -> None:
        self.there += count
        self.holds.note_arrivals([Arrival.of_one(topic, 0, 0, (0, 1, 0))] * count)
        await asyncio.sleep(0)


async def test_the_oldest_gets_it_and_the_others_are_left_alone() -> None:
    world = World()
    for name in "abc":
        world.park(name)
    await world.arrive("T")
    assert world.answered == ["a"]
    assert world.tried == ["a", "b"]
    await world.arrive("T", 2)
    assert world.answered == ["a", "b", "c"]
    assert len(world.holds) == 0
    await world.arrive("T")
    assert world.tried == ["a", "b", "b", "c"]


async def test_one_that_wants_little_does_not_speak_for_the_others() -> None:
    world = World()
    world.park("leaves some", leaves_messages=True)
    world.park("greedy")
    world.holds.offer("T", 0)
    await asyncio.sleep(0)
    assert world.tried == ["leaves some", "greedy"]


async def test_redelivered_messages_wake_only_their_group() -> None:
    world = World()
    world.park("mine", group="g", retry_topics=("R",))
    world.park("other", group="h", retry_topics=("S",))
    world.park("none", group="i", retry_topics=())
    await world.arrive("R")
    assert world.answered == ["mine"]
    await world.arrive("R")
    await world.arrive("other topic")
    assert world.answered == ["mine"]


async def test_pops_of_a_lost_connection_are_forgotten() -> None:
    world = World()
    world.park("a", connection="lost")
    world.park("b", connection="kept")
    world.holds.drop("lost")
    world.holds.drop("unknown")
    await world.arrive("T")
    assert world.answered == ["b"]


@in_virtual_time
async def test_every_pop_ends_in_time() -> None:
    world = World()
    world.park("a", seconds=0.001)
    world.park("b")
    place = PopPlace("T", "g", -1)
    assert world.holds.count(place) == 2
    await until(lambda: world.expired)
    assert world.holds.count(place) == 1
    world.holds.close()
    assert world.expired == ["a", "b"]
    assert world.holds.count(place) == len(world.holds) == 0


async def test_the_weight_of_waiting_pops_is_counted() -> None:
    holds = PopHolds[str](retry=lambda waiting: True, time_over=lambda waiting: None)
    place = PopPlace("T", "G", 0)
    for name, weight in (("a", 3), ("b", 5)):
        held = Waiting(name, place, name, leaves_messages=True, weight=weight)
        holds.park(held, retry_topics=(), seconds=60)
    assert holds.weight == 8
    holds.drop("a")
    assert holds.weight == 5
    holds.close()
    assert holds.weight == 0
