"""The gRPC ports of a group that elects: every member's port serves, whoever leads."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from integration.group_brokers import NODES, settings_of
from rocketpost.client.admin import AdminClient
from rocketpost.errors import ConfigError, RocketpostError
from rocketpost.model.topic import TopicConfig
from rocketpost.proxy.settings import read_proxy_settings
from rocketpost.proxy.wire import messages
from rocketpost.proxy.wire.enums import Code, MessageType
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig
from rocketpost.server.proxy.broker import ProxiedBroker
from rocketpost.testing.process import free_port
from rocketpost.testing.waiting import until

from .calls import Client

pytestmark = pytest.mark.slow

PROXY = '{"grpcServerPort": 0, "bindAddress": "127.0.0.1", "tlsServerMode": "disabled"}'


async def test_any_member_serves_clients_and_goes_on_when_the_leader_stops(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        config = NamesrvConfig(
            listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json")
        )
        name_server = NameServer(config, tls={})
        await name_server.start()
        stack.push_async_callback(name_server.stop)
        address = f"127.0.0.1:{name_server.port}"
        ports = {node: free_port() for node in NODES}
        members: list[ProxiedBroker] = []
        for node in NODES:
            values = settings_of(tmp_path, node, ports, namesrvAddr=address)
            member = ProxiedBroker(values, proxy=read_proxy_settings(PROXY)[0])
            await member.start()
            stack.push_async_callback(member.stop)
            members.append(member)
        await until(lambda: any(each.is_leader for each in members))
        leader = next(each for each in members if each.is_leader)
        await _create(address, leader.address)
        for number, member in enumerate(members):
            async with Client(member.grpc_port) as client:
                await client.consume("group", "topic")
                await client.send("topic", b"%d" % number)
                (received,) = await client.receive("topic", "group", broker="broker-g")
                assert received.body == b"%d" % number
                assert await client.ack("group", received) == Code.OK
        follower = next(each for each in members if each is not leader)
        async with Client(follower.grpc_port) as client:
            await client.produce("transaction")
            half = await client.send("transaction", b"half", message_type=MessageType.TRANSACTION)
            await leader.stop()
            request = messages.EndTransactionRequest(
                transaction_id=half.transaction_id, resolution=1
            )
            request.topic.name = "transaction"
            assert await _code(client, request) == Code.OK
            (received,) = await client.receive("transaction", "group", broker="broker-g", poll=20)
            assert received.body == b"half"


async def _create(name_servers: str, broker: str) -> None:
    async with AdminClient(name_servers=name_servers) as admin:
        for name, kind in (("topic", "NORMAL"), ("transaction", "TRANSACTION")):
            made = TopicConfig(topic_name=name, attributes={"+message.type": kind})
            async with asyncio.timeout(30):
                while True:
                    try:
                        await admin.topics.create(broker, made)
                        break
                    except RocketpostError:  # the leader's term has just begun
                        await asyncio.sleep(0.1)


async def _code(client: Client, request: object) -> int:
    """Return the code of an answer once the next leader gives it."""
    for _ in range(10):
        answer = await client.call("EndTransaction", request)
        if answer.status.code == Code.OK:
            break
    code: int = answer.status.code
    return code


async def test_a_member_without_name_servers_cannot_serve(tmp_path: Path) -> None:
    ports = {node: free_port() for node in NODES}
    member = ProxiedBroker(settings_of(tmp_path, "n0", ports), proxy=read_proxy_settings(PROXY)[0])
    with pytest.raises(ConfigError, match="needs namesrvAddr"):
        await member.start()
