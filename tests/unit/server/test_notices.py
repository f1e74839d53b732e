"""Notices to groups: at once for small ones, one per pause for large ones."""

from __future__ import annotations

import asyncio

import pytest

from rocketpost.broker.group.membership import Client, Membership
from rocketpost.broker.group.table import GroupTable
from rocketpost.codec.codes import RequestCode
from rocketpost.server import notices as notices_module
from rocketpost.server.notices import AT_ONCE_MAX, Notices
from rocketpost.testing.clock import FakeClock
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.testing.waiting import until
from rocketpost.transport.turns import Turns

from .handlers.fakes import FakeConnection


class World:
    def __init__(self) -> None:
        clock = FakeClock()
        self.membership = Membership(clock=clock)
        self.turns = Turns()
        self.connections: list[FakeConnection] = []
        self.notices = Notices(
            membership=self.membership,
            groups=GroupTable(clock=clock, auto_create=True),
            notifies=lambda: True,
            turns=self.turns,
        )

    def join(self) -> None:
        connection = FakeConnection()
        self.connections.append(connection)
        self.membership.join_consumer(
            "G",
            Client(connection, f"c{len(self.connections)}", "", "JAVA", 400),
            consume_type="",
            message_model="CLUSTERING",
            consume_from_where="",
            subscriptions=(),
        )
        self.notices.notify(["G"])

    @property
    def told(self) -> list[int]:
        return [len(connection.oneways) for connection in self.connections]

    async def settle(self) -> None:
        while len(self.turns):
            await asyncio.sleep(0)


async def test_a_small_group_is_notified_of_every_change_immediately() -> None:
    world = World()
    for _ in range(AT_ONCE_MAX):
        world.join()
    assert world.told == list(range(AT_ONCE_MAX, 0, -1))
    assert world.connections[0].oneways[0] == (
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        {"consumerGroup": "G"},
    )


@in_virtual_time
async def test_a_growing_group_is_notified_in_proportion_to_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notices_module, "PAUSE_SECONDS_PER_MEMBER", 10.0)
    monkeypatch.setattr(notices_module, "PAUSE_SECONDS_MAX", 0.05)
    world = World()
    for _ in range(AT_ONCE_MAX):
        world.join()
    before = sum(world.told)
    for _ in range(1000):
        world.join()
    await world.settle()
    assert sum(world.told) - before == AT_ONCE_MAX + 1  # a thousand changes, one notice so far
    assert world.told[-1] == 0
    await until(lambda: world.told[-1])
    await world.settle()
    assert world.told[AT_ONCE_MAX + 1 :] == [1] * 999  # and everybody hears of the last one
    count = sum(world.told)
    await asyncio.sleep(1)
    assert sum(world.told) == count  # nothing changed since


async def test_those_who_went_meanwhile_are_left_out() -> None:
    world = World()
    for _ in range(AT_ONCE_MAX + 1):
        world.join()
    gone = world.connections[-1]
    gone.is_open = False
    await world.settle()
    assert gone.oneways == []
