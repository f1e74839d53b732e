from __future__ import annotations

import pytest

from rocketpost.client.consumer.replica_choice import (
    AVOID_SECONDS_MAX,
    AVOID_SECONDS_MIN,
    Chosen,
    ReplicaChoice,
)
from rocketpost.client.route_cache import RouteCache
from rocketpost.codec.bodies.route import encode_route
from rocketpost.codec.command import Command
from rocketpost.errors import RouteNotFound
from rocketpost.model.route import BrokerData, MessageQueue, QueueData, TopicRoute

QUEUE = MessageQueue("a", 0, "T")
MASTER, FIRST, SECOND = "m:1", "s:1", "s:3"


class World:
    def __init__(self) -> None:
        self.addresses = {0: MASTER, 1: FIRST, 3: SECOND}
        self.now = 100.0
        self.connected: set[str] = set()
        self.routes = RouteCache(self._ask)
        self.choice = ReplicaChoice(
            self.routes, is_connected=self.connected.__contains__, clock=lambda: self.now
        )

    async def _ask(self, code: int, fields: dict[str, str]) -> Command:
        route = TopicRoute(
            broker_datas=[BrokerData(broker_name="a", broker_addrs=self.addresses)],
            queue_datas=[QueueData(broker_name="a", read_queue_nums=1)],
        )
        return Command(code=0, body=encode_route(route, standard=True))

    def chosen(self) -> str:
        return self.choice.choose(QUEUE).address


@pytest.fixture
async def world() -> World:
    world = World()
    await world.routes.fetch("T")
    return world


async def test_the_suggested_replica_is_chosen(world: World) -> None:
    choice = world.choice
    assert choice.choose(QUEUE) == Chosen(MASTER, is_slave=False, is_suggested=True)
    choice.suggest(QUEUE, 3)
    assert choice.choose(QUEUE) == Chosen(SECOND, is_slave=True, is_suggested=True)
    choice.suggest(QUEUE, 0)
    assert world.chosen() == MASTER


async def test_a_suggested_replica_that_is_not_listed_is_replaced(world: World) -> None:
    world.choice.suggest(QUEUE, 2)
    assert world.choice.choose(QUEUE) == Chosen(SECOND, is_slave=True, is_suggested=False)
    assert not world.choice.is_listed(QUEUE)
    world.choice.suggest(QUEUE, 7)
    assert world.choice.choose(QUEUE) == Chosen(MASTER, is_slave=False, is_suggested=False)
    world.addresses = {3: SECOND, 1: FIRST}
    await world.routes.fetch("T")
    world.choice.suggest(QUEUE, 0)
    assert world.choice.choose(QUEUE) == Chosen(FIRST, is_slave=True, is_suggested=False)
    assert not world.choice.is_listed(QUEUE)


async def test_an_unknown_broker_is_no_choice(world: World) -> None:
    with pytest.raises(RouteNotFound):
        world.choice.choose(MessageQueue("b", 0, "T"))


async def test_a_replica_that_failed_is_tried_again_by_one_pull_at_a_time(world: World) -> None:
    choice = world.choice
    choice.report_failure(MASTER, is_useless=False)
    assert [world.chosen(), world.chosen()] == [FIRST, FIRST]
    world.now += AVOID_SECONDS_MIN
    assert [world.chosen(), world.chosen()] == [MASTER, FIRST]
    choice.report_failure(MASTER, is_useless=False)
    world.now += AVOID_SECONDS_MIN
    assert world.chosen() == FIRST  # longer than before
    choice.report_success(MASTER)
    assert [world.chosen(), world.chosen()] == [MASTER, MASTER]


async def test_the_time_of_avoidance_is_bounded(world: World) -> None:
    for _ in range(40):
        world.choice.report_failure(MASTER, is_useless=False)
    world.now += AVOID_SECONDS_MAX
    assert world.chosen() == MASTER


async def test_an_open_connection_ends_the_avoidance_of_an_unreachable_replica(
    world: World,
) -> None:
    world.choice.report_failure(MASTER, is_useless=False)
    world.connected.add(MASTER)
    assert world.chosen() == MASTER
    world.choice.report_failure(MASTER, is_useless=True)  # it accepts connections, no more
    assert world.chosen() == FIRST


async def test_the_suggested_one_is_tried_when_all_have_failed(world: World) -> None:
    for address in (MASTER, FIRST, SECOND):
        world.choice.report_failure(address, is_useless=False)
    assert world.chosen() == MASTER
    assert world.choice.choose_other(QUEUE, [MASTER]) is None


async def test_another_replica_is_one_that_was_not_tried(world: World) -> None:
    other = world.choice.choose_other(QUEUE, [MASTER])
    assert other == Chosen(FIRST, is_slave=True, is_suggested=False)
    world.choice.report_failure(FIRST, is_useless=False)
    other = world.choice.choose_other(QUEUE, [MASTER])
    assert other == Chosen(SECOND, is_slave=True, is_suggested=False)
    assert world.choice.choose_other(QUEUE, [MASTER, FIRST, SECOND]) is None
