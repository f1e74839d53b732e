"""A broker's place in its group: preparation, members, heartbeats and notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.namesrv import NotifyMinBrokerIdChange
from rocketpost.errors import ClientError
from rocketpost.replication.acting import Act, Ask, AwaitLink, Duty, FollowMaster, StandBack, Step
from rocketpost.server.replication.acting import GroupFeature
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.settings.replication import BrokerRole
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.testing.waiting import until

from ..contexts import broker_context

MASTER, SELF = "10.0.0.9:10911", "10.0.0.1:10911"


class Group:
    """Members as a name server knows them; None while it does not answer."""

    def __init__(self, known: dict[int, str] | None = None) -> None:
        self.known = known
        self.fetches = 0
        self.heartbeats = 0
        self.is_closed = False
        self.used: list[str] = []

    def use(self, name_servers: Any) -> None:
        self.used = list(name_servers)

    async def fetch(self) -> dict[int, str]:
        self.fetches += 1
        if self.known is None:
            raise ClientError("no name server answers")
        return dict(self.known)

    async def send_heartbeats(self) -> None:
        self.heartbeats += 1

    async def close(self) -> None:
        self.is_closed = True


class Steps:
    """Performs nothing, and fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.performed: list[tuple[Step, int]] = []
        self.is_closed = False

    async def perform(self, step: Step, member: int) -> None:
        self.performed.append((step, member))
        if self.failures:
            self.failures -= 1
            raise ClientError("it does not follow")

    async def close(self) -> None:
        self.is_closed = True


class Broker:
    """A slave with the id 1 and its feature."""

    def __init__(self, group: Group, *, failures: int = 0, **settings: Any) -> None:
        self.group = group
        self.steps = Steps(failures)
        self.registered = 0
        self.duties: list[Duty] = []
        config = {"broker_id": 1, "broker_role": BrokerRole.SLAVE, "acting_master": True}
        self.feature = GroupFeature(
            broker_context(broker=BrokerConfig(**{**config, **settings})),
            broker_id=1,
            members=group,
            preparation=self.steps,
            register=self._register,
            on_duty=self.duties.append,
        )

    async def _register(self) -> None:
        self.registered += 1

    def notify(self, **fields: Any) -> None:
        (route,) = self.feature.routes()
        header = NotifyMinBrokerIdChange(**fields)
        assert route.code == RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE
        route.handler(None, Command(route.code), header)


@asynccontextmanager
async def running(broker: Broker) -> AsyncIterator[Broker]:
    await broker.feature.begin()
    task = asyncio.create_task(broker.feature.run())
    try:
        yield broker
    finally:
        task.cancel()
        await asyncio.wait((task,))
        assert broker.group.is_closed
        assert broker.steps.is_closed


@in_virtual_time
async def test_without_preparation_it_registers_at_once() -> None:
    group = Group({0: MASTER, 1: SELF})
    broker = Broker(group, total_replicas=2, skip_pre_online=True)
    await broker.feature.begin()
    assert broker.registered == 1
    alone = Broker(group, total_replicas=1)
    await alone.feature.begin()
    assert alone.registered == 1


@in_virtual_time
async def test_it_prepares_before_it_registers() -> None:
    async with running(Broker(Group({0: MASTER}), total_replicas=2, failures=2)) as broker:
        assert not broker.registered
        await until(lambda: broker.registered)
        ask = Ask(MASTER)
        assert broker.steps.performed == [
            (ask, 0), (ask, 0), (ask, 0), (AwaitLink(MASTER, 10_000), 0)
        ]  # fmt: skip
        assert broker.feature.runtime_values()["preOnline"] == "done"


@in_virtual_time
async def test_it_does_not_register_while_no_name_server_answers() -> None:
    group = Group(None)
    async with running(Broker(group, total_replicas=2)) as broker:
        await until(lambda: group.fetches == 5)
        assert not broker.registered
        assert "no name server answers" in broker.feature.runtime_values()["preOnline"]
        assert not group.heartbeats
        group.known = {}
        await until(lambda: broker.registered)


@in_virtual_time
async def test_it_goes_online_without_a_master_that_it_cannot_follow() -> None:
    async with running(Broker(Group({0: MASTER}), total_replicas=2, failures=99)) as broker:
        await until(lambda: broker.registered)
        assert broker.feature.runtime_values()["preOnline"] == "0: it does not follow"


@in_virtual_time
async def test_a_term_that_ends_registers_no_more() -> None:
    group = Group(None)
    async with running(Broker(group, total_replicas=2)) as broker:
        await until(lambda: group.fetches)
        broker.feature.end()
        group.known = {}
        before = group.heartbeats
        await until(lambda: group.heartbeats > before)
        assert not broker.registered


@in_virtual_time
async def test_it_acts_while_it_has_the_smallest_id() -> None:
    group = Group({0: MASTER, 1: SELF})
    async with running(Broker(group, member_poll_ms=200)) as broker:
        await until(lambda: broker.duties)
        assert broker.feature.alive == 2
        group.known = {1: SELF}
        await until(lambda: broker.feature.is_acting)
        assert broker.feature.runtime_values() == {
            "actingMaster": "true", "aliveReplicas": "1", "minBrokerId": "1", "preOnline": "done"
        }  # fmt: skip
        group.known = None  # a name server that is gone changes nothing
        fetches = group.fetches
        await until(lambda: group.fetches > fetches + 2)
        assert broker.feature.is_acting
        group.known = {0: MASTER, 1: SELF}
        await until(lambda: not broker.feature.is_acting)
        follow = FollowMaster(MASTER, "")
        assert broker.duties == [follow, Act(), StandBack(), follow]


@in_virtual_time
async def test_the_settings_say_how_often_it_asks_and_tells() -> None:
    group = Group({0: MASTER})
    async with running(Broker(group, member_poll_ms=3000, broker_heartbeat_ms=500)):
        await until(lambda: group.heartbeats == 10)
        assert group.fetches == 2


@in_virtual_time
async def test_notices_come_sooner() -> None:
    group = Group({0: MASTER, 1: SELF})
    async with running(Broker(group, member_poll_ms=60_000)) as broker:
        await until(lambda: broker.duties)
        broker.notify(min_broker_id=1, min_broker_addr=SELF, offline_broker_addr=MASTER)
        assert broker.feature.is_acting
        broker.notify(broker_name="other", min_broker_id=0, min_broker_addr=MASTER)
        broker.notify(min_broker_id=0)
        assert broker.feature.is_acting
        broker.notify(min_broker_id=0, min_broker_addr=MASTER, ha_broker_addr="10.0.0.9:10912")
        assert broker.duties[1:] == [Act(), StandBack(), FollowMaster(MASTER, "10.0.0.9:10912")]
        assert broker.feature.has_master


@in_virtual_time
async def test_notices_before_it_is_online_are_ignored() -> None:
    async with running(Broker(Group(None), total_replicas=2)) as broker:
        await until(lambda: broker.group.fetches)
        broker.notify(min_broker_id=1, min_broker_addr=SELF)
        assert not broker.feature.is_acting


async def test_other_name_servers_are_asked() -> None:
    broker = Broker(Group({}))
    await broker.feature.name_servers_changed(["ns:1"])
    assert broker.group.used == ["ns:1"]
