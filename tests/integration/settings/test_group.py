"""Settings of groups whose smallest slave acts for a lost master."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import msgspec
import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.errors import ConfigError, RocketpostError
from rocketpost.server.broker import BrokerServer
from rocketpost.server.namesrv.process import NameServer
from rocketpost.server.peers import Peers
from rocketpost.server.replication.acting_members import Members
from rocketpost.server.settings.broker import BrokerConfig, broker_settings
from rocketpost.server.settings.namesrv import NamesrvConfig
from rocketpost.server.tables.broker_tables import Identity
from rocketpost.transport.connection import Connection
from rocketpost.transport.listener import Listener

from .harness import Peer, broker, until


class Context:
    """The part of a broker's state that the members of its group are asked with."""

    def __init__(self, name_server: str, **settings: object) -> None:
        values = {key: str(value) for key, value in settings.items()}
        self.broker_config, _ = broker_settings({"storePathRootDir": "/none", **values})
        self.identity = Identity("C", "broker-a", "127.0.0.1", 10911)
        self.tables = self
        self.topics = self
        self.version = None
        self.peers = Peers()
        self._name_server = name_server

    def name_servers(self) -> list[str]:
        return [self._name_server]


@pytest.mark.parametrize(
    ("is_old", "codes"),
    [
        (True, [Code.QUERY_DATA_VERSION, Code.GET_ROUTEINFO_BY_TOPIC]),
        (False, [Code.BROKER_HEARTBEAT, Code.GET_BROKER_MEMBER_GROUP]),
    ],
)
async def test_compatibleWithOldNameSrv(is_old: bool, codes: list[Code]) -> None:
    heard: asyncio.Queue[int] = asyncio.Queue()

    def take(connection: Connection, command: Command) -> None:
        connection.end_turn()
        heard.put_nowait(command.code)

    listener = Listener(on_request=take)
    await listener.start("127.0.0.1", 0)
    context = Context(f"127.0.0.1:{listener.port}", compatibleWithOldNameSrv=str(is_old).lower())
    members = Members.of(context, broker_id=1)  # type: ignore[arg-type]
    await members.send_heartbeats()
    first = await heard.get()
    asking = asyncio.create_task(members.fetch())
    assert [first, await heard.get()] == codes
    await members.close()
    with pytest.raises(RocketpostError):
        await asking
    await listener.stop()


async def test_sendHeartbeatTimeoutMillis() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        with socket.create_connection(address):  # fills the line of connections to accept
            context = Context(f"127.0.0.1:{address[1]}", sendHeartbeatTimeoutMillis=40)
            members = Members.of(context, broker_id=1)  # type: ignore[arg-type]
            with pytest.raises(RocketpostError, match=r"in 0\.04 s"):
                await members.fetch()
            await members.close()


class Group:
    """A name server and the brokers that know it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = NameServer(
            NamesrvConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=None)
        )

    async def __aenter__(self) -> Group:
        await self.names.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.names.stop()

    def member(
        self, broker_id: int, **settings: object
    ) -> contextlib.AbstractAsyncContextManager[Peer]:
        values: dict[str, object] = {
            "namesrvAddr": self.names.address, "brokerId": broker_id,
            "brokerRole": "SLAVE" if broker_id else "ASYNC_MASTER",
            "enableSlaveActingMaster": "true", "syncBrokerMemberGroupPeriod": 50,
        }  # fmt: skip
        return broker(self.root / str(broker_id), **values | settings)


async def known_timeout(group: Group, server: BrokerServer) -> int:
    live = group.names._table._live
    await until(lambda: _is(server.address in live))
    return live[server.address].timeout_ms


async def _is(value: bool) -> bool:
    return value


async def test_brokerNotActiveTimeoutMillis(tmp_path: Path) -> None:
    async with Group(tmp_path) as group, group.member(0, brokerNotActiveTimeoutMillis=7000) as peer:
        assert await known_timeout(group, peer.server) == 7000


@pytest.mark.parametrize("enabled", ["true", "false"])
async def test_enableSlaveActingMaster(tmp_path: Path, enabled: str) -> None:
    async with Group(tmp_path) as group, group.member(1, enableSlaveActingMaster=enabled) as slave:
        if enabled == "true":
            expected = ResponseCode.SERVICE_NOT_AVAILABLE
        else:
            expected = ResponseCode.SYSTEM_BUSY
        assert (await slave.send("T")).code == expected
        timeout_ms = await known_timeout(group, slave.server)
        assert timeout_ms == (10_000 if enabled == "true" else 120_000)


async def lock(peer: Peer, client_id: str, queue_ids: range, *, alone: bool = False) -> list[int]:
    queues = [{"brokerName": "broker-a", "queueId": key, "topic": "TBW102"} for key in queue_ids]
    body = {
        "clientId": client_id, "consumerGroup": "G", "mqSet": queues, "onlyThisBroker": alone
    }  # fmt: skip
    answer = await peer.ok(Code.LOCK_BATCH_MQ, msgspec.json.encode(body))
    return [queue["queueId"] for queue in msgspec.json.decode(answer.body)["lockOKMQSet"]]


async def unlock(peer: Peer, client_id: str, queue_id: int) -> None:
    queue = {"brokerName": "broker-a", "queueId": queue_id, "topic": "TBW102"}
    body = {"clientId": client_id, "consumerGroup": "G", "mqSet": [queue]}
    await peer.ok(Code.UNLOCK_BATCH_MQ, msgspec.json.encode(body))


async def test_lockInStrictMode(tmp_path: Path) -> None:
    strict = {"lockInStrictMode": "true", "totalReplicas": 3, "skipPreOnline": "true"}
    async with Group(tmp_path) as group, group.member(0, **strict) as master:
        assert await lock(master, "a", range(2)) == [], "one of three is too few"
        assert await lock(master, "a", range(2), alone=True) == [0, 1]
        async with group.member(1, **strict) as slave:
            await until(lambda: _is(_others(master) == 1))
            assert await lock(slave, "b", range(1), alone=True) == [0]
            assert await lock(master, "a", range(2)) == [1], "the slave has another holder of 0"
            await unlock(slave, "b", 0)
            assert await lock(master, "a", range(2)) == [0, 1]
            assert await lock(slave, "b", range(2), alone=True) == [], "locks were passed on"
            await unlock(master, "a", 0)
            assert await lock(slave, "b", range(2), alone=True) == [0]


def _others(peer: Peer) -> int:
    group = peer.server._term.group  # type: ignore[attr-defined]
    return len(group.others)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"lockInStrictMode": "true"}, "needs enableSlaveActingMaster"),
        ({"enableRemoteEscape": "true"}, "stores nothing"),
        (
            {"enableSlaveActingMaster": "true", "brokerHeartbeatInterval": "10000"},
            "between two heartbeats",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        broker_settings({"storePathRootDir": "/none", **settings})
    assert not BrokerConfig().acting_master
