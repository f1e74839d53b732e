"""Members of a group and heartbeats, with name servers of ours, in both forms."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rocketpost.codec.bodies.registration import RegisteredTopics, RegistrationBody
from rocketpost.errors import RocketpostError
from rocketpost.model.topic import DataVersion, TopicConfig
from rocketpost.namesrv.report import BrokerIdentity, BrokerReport
from rocketpost.server.namesrv.process import NameServer
from rocketpost.server.replication.acting_members import Members
from rocketpost.server.settings.namesrv import NamesrvConfig
from rocketpost.server.tables.broker_tables import Identity
from rocketpost.testing.clock import FakeClock
from rocketpost.testing.waiting import until

SELF = Identity("C", "broker-a", "10.0.0.1", 10911)
TOPICS = {
    name: TopicConfig(topic_name=name) for name in ("T", "rmq_sys_SYNC_BROKER_MEMBER_broker-a")
}


def members(*name_servers: str, is_old: bool = True) -> Members:
    return Members(
        identity=SELF,
        broker_id=1,
        name_servers=name_servers,
        version=lambda: DataVersion(1, 0, 7),
        is_old=is_old,
        heartbeat_ms=1000,
    )


@asynccontextmanager
async def name_server() -> AsyncIterator[tuple[NameServer, str, FakeClock]]:
    clock = FakeClock()
    config = NamesrvConfig(
        listen_port=0, bind_address="127.0.0.1", kv_config_path=None, acting_master=True
    )
    server = NameServer(config, clock=clock)
    await server.start()
    try:
        yield server, f"127.0.0.1:{server.port}", clock
    finally:
        await server.stop()


def register(server: NameServer, clock: FakeClock, *ids: int) -> None:
    for key in ids:
        who = BrokerIdentity("C", "broker-a", key, f"10.0.0.1:{10910 + key}")
        table = RegisteredTopics(topic_config_table=TOPICS)
        sent = BrokerReport(
            identity=who,
            acting_master=True,
            timeout_ms=10_000,
            registration=RegistrationBody(topic_config_serialize_wrapper=table),
        )
        server._table.register(sent, owner="x", source="127.0.0.1", now_ms=clock.now_ms())


@pytest.mark.parametrize("is_old", [True, False])
async def test_members_are_shown_as_they_are(is_old: bool) -> None:
    async with name_server() as (server, address, clock):
        known = members(address, is_old=is_old)
        assert await known.fetch() == {}
        register(server, clock, 1, 2)
        assert await known.fetch() == {1: "10.0.0.1:10911", 2: "10.0.0.1:10912"}
        await known.close()


@pytest.mark.parametrize("is_old", [True, False])
async def test_heartbeats_keep_a_broker_known(is_old: bool) -> None:
    async with name_server() as (server, address, clock):
        register(server, clock, 1, 2)
        known = members(address, "127.0.0.1:1", is_old=is_old)
        clock.advance(8_000)
        await known.send_heartbeats()
        await until(lambda: server._table._live["10.0.0.1:10911"].last_ms == clock.now_ms())
        clock.advance(8_000)
        server.scan()
        assert await known.fetch() == {1: "10.0.0.1:10911"}
        await known.close()


async def test_the_next_name_server_is_asked_if_one_is_gone() -> None:
    async with name_server() as (server, address, clock):
        register(server, clock, 1)
        known = members("127.0.0.1:1", address)
        assert list(await known.fetch()) == [1]
        assert known._name_servers == [address, "127.0.0.1:1"]
        known.use(["127.0.0.1:1"])
        with pytest.raises(RocketpostError, match=r"127\.0\.0\.1:1"):
            await known.fetch()
        await known.close()


async def test_a_broker_without_name_servers_is_alone() -> None:
    known = members()
    assert await known.fetch() == {}
    await known.close()
