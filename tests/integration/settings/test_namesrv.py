"""Settings of the name server: what a running one does with each."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rocketpost.codec.bodies.registration import (
    RegisteredTopics,
    RegistrationBody,
    body_crc,
    encode_registration,
)
from rocketpost.codec.bodies.route import decode_route
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.command import Command
from rocketpost.model.topic import DataVersion, TopicConfig
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig
from rocketpost.settings import build

from .harness import Peer, peer_at


@contextlib.asynccontextmanager
async def namesrv(host: str = "127.0.0.1", **settings: object) -> AsyncIterator[Peer]:
    """Run a name server with these settings, and a client of it."""
    values = {"listenPort": 0, "bindAddress": host, "kvConfigPath": ""} | settings
    server = NameServer(build(NamesrvConfig, {key: str(values[key]) for key in values}))
    await server.start()
    try:
        async with peer_at(host, server.port) as peer:
            yield peer
    finally:
        await server.stop()


async def register(
    peer: Peer, *topics: str, version: int = 1, broker_id: int = 0, **more: Any
) -> Command:
    # One topic alone would be taken for a change of a broker that is known already.
    configs = {name: TopicConfig(topic_name=name) for name in ("Base", *topics)}
    table = RegisteredTopics(
        data_version=DataVersion(version, 0, version), topic_config_table=configs
    )
    body = encode_registration(RegistrationBody(topic_config_serialize_wrapper=table))
    fields: dict[str, object] = {
        "brokerName": "broker-a", "brokerAddr": f"10.0.0.1:{10911 + broker_id}",
        "clusterName": "C", "haServerAddr": "", "brokerId": broker_id,
        "bodyCrc32": body_crc(body), "enableActingMaster": "true",
    }  # fmt: skip
    return await peer.call(Code.REGISTER_BROKER, body, **fields | more)


async def has_route(peer: Peer, topic: str) -> bool:
    return (await peer.call(Code.GET_ROUTEINFO_BY_TOPIC, topic=topic)).code == 0


async def test_listenPort_and_bindAddress() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with namesrv("127.0.0.2", listenPort=port):
        _, writer = await asyncio.open_connection("127.0.0.2", port)
        writer.close()
        await writer.wait_closed()
        with pytest.raises(OSError, match="failed"):
            await asyncio.open_connection("127.0.0.1", port)


async def test_kvConfigPath(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    async with namesrv(kvConfigPath=path) as peer:
        await peer.ok(Code.PUT_KV_CONFIG, namespace="N", key="k", value="v")
    assert '"k"' in await asyncio.to_thread(path.read_text)


async def test_scanNotActiveBrokerInterval() -> None:
    async with namesrv(scanNotActiveBrokerInterval=60_000) as slow:
        await register(slow, "T", heartbeatTimeoutMillis=1)
        slow_closed = asyncio.ensure_future(slow.connection.wait_closed())
        for _ in range(2):
            async with namesrv(scanNotActiveBrokerInterval=30) as quick, asyncio.timeout(30):
                await register(quick, "T", heartbeatTimeoutMillis=1)
                await quick.connection.wait_closed()
        assert not slow_closed.done()
        slow_closed.cancel()


@pytest.mark.parametrize("acting", ["true", "false"])
async def test_supportActingMaster(acting: str) -> None:
    async with namesrv(supportActingMaster=acting) as peer:
        await register(peer, "T")
        await register(peer, "T", broker_id=1)
        await peer.ok(
            Code.UNREGISTER_BROKER, brokerName="broker-a", brokerAddr="10.0.0.1:10911",
            clusterName="C", brokerId=0,
        )  # fmt: skip
        answer = await peer.ok(Code.GET_ROUTEINFO_BY_TOPIC, topic="T")
        [broker] = decode_route(answer.body).broker_datas
        assert set(broker.broker_addrs) == ({0} if acting == "true" else {1})


@pytest.mark.parametrize("deletes", ["true", "false"])
async def test_deleteTopicWithBrokerRegistration(deletes: str) -> None:
    async with namesrv(deleteTopicWithBrokerRegistration=deletes) as peer:
        await register(peer, "T", "Gone")
        await register(peer, "T", version=2)
        assert await has_route(peer, "T")
        assert await has_route(peer, "Gone") == (deletes == "false")


async def test_serverChannelMaxIdleTimeSeconds() -> None:
    async with namesrv(serverChannelMaxIdleTimeSeconds=1) as peer:
        await has_route(peer, "T")
        async with asyncio.timeout(60):
            await peer.connection.wait_closed()  # by default after two minutes


@pytest.mark.parametrize("key", ["brokerCountMax", "brokerCountPerHostMax"])
async def test_how_many_brokers_are_known(key: str) -> None:
    async with namesrv(**{key: 1}) as peer:
        assert (await register(peer, "T")).code == 0
        assert (await register(peer, "T", broker_id=1)).code != 0


async def test_routeEntryCountMax() -> None:
    async with namesrv(routeEntryCountMax=3) as peer:
        assert (await register(peer, "A", "B")).code == 0
        refused = await register(peer, "A", "B", "C", version=2)
        assert refused.code != 0 or not await has_route(peer, "C")


async def test_waitSecondsForService() -> None:
    async with namesrv(needWaitForService="true", waitSecondsForService=0) as peer:
        await register(peer, "T")
        assert await has_route(peer, "T")  # by default after three quarters of a minute
