"""A proxy in front of a cluster: name server, broker and proxy, each on its own port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.model.topic import TopicChange
from rocketpost.proxy.settings import read_proxy_settings
from rocketpost.proxy.wire import messages
from rocketpost.proxy.wire.enums import ClientType, Code, MessageType
from rocketpost.server.broker import BrokerServer
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig
from rocketpost.server.proxy.process import ProxyServer

from .calls import SMALL, Client

pytestmark = pytest.mark.slow


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerServer]:
    config = NamesrvConfig(
        listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json")
    )
    name_server = NameServer(config, tls={})
    await name_server.start()
    values = {
        **SMALL,
        "brokerName": "broker-a",
        "listenPort": "0",
        "brokerIP1": "127.0.0.1",
        "namesrvAddr": f"127.0.0.1:{name_server.port}",
        "storePathRootDir": str(tmp_path / "store"),
        "transactionTimeOut": "500",
        "transactionCheckInterval": "500",
    }
    broker = BrokerServer(values)
    await broker.start()
    for name, kind in (("normal", "NORMAL"), ("fifo", "FIFO"), ("transaction", "TRANSACTION")):
        broker._context.tables.topics.update(
            TopicChange(topic_name=name, attributes={"+message.type": kind})
        )
    await broker._term.registration.wait_registered()  # type: ignore[attr-defined]
    yield broker
    await broker.stop()
    await name_server.stop()


async def _proxy(broker: BrokerServer) -> ProxyServer:
    settings = {
        "grpcServerPort": 0,
        "bindAddress": "127.0.0.1",
        "namesrvAddr": broker.name_servers,
        "remotingListenPort": 0,
    }
    proxy = ProxyServer(read_proxy_settings(json.dumps(settings))[0])
    await proxy.start()
    return proxy


def _port(proxy: ProxyServer) -> int:
    return int(proxy.address.rpartition(":")[2])


async def test_messages_handles_and_transactions_outlive_a_proxy(broker: BrokerServer) -> None:
    proxy = await _proxy(broker)
    async with Client(_port(proxy)) as client:
        await client.produce("normal", "transaction")
        await client.consume("group", "normal")
        sent = await client.send("normal", b"first")
        half = await client.send("transaction", b"half", message_type=MessageType.TRANSACTION)
        (received,) = await client.receive("normal", "group")
        assert received.system_properties.message_id == sent.message_id
    await proxy.stop()
    proxy = await _proxy(broker)
    async with Client(_port(proxy)) as client:
        # The new proxy has been asked for no route, and finds the broker of the handle.
        assert await client.ack("group", received) == Code.OK
        await client.consume("group", "normal")
        request = messages.EndTransactionRequest(transaction_id=half.transaction_id, resolution=1)
        request.topic.name = "transaction"
        assert (await client.call("EndTransaction", request)).status.code == Code.OK
        (received,) = await client.receive("transaction", "group")
        assert received.body == b"half"
        assert await client.receive("normal", "group") == []
    await proxy.stop()


async def test_a_broker_asks_about_a_transaction_through_the_proxy(broker: BrokerServer) -> None:
    proxy = await _proxy(broker)
    async with Client(_port(proxy)) as client:
        await client.produce("transaction")
        await client.send("transaction", b"half", message_type=MessageType.TRANSACTION)
        async with asyncio.timeout(20):
            question = (await client.hear()).recover_orphaned_transaction_command
        assert question.message.body == b"half"
        request = messages.EndTransactionRequest(
            transaction_id=question.transaction_id, resolution=1, source=2
        )
        request.topic.name = "transaction"
        assert (await client.call("EndTransaction", request)).status.code == Code.OK
    await proxy.stop()


async def test_order_and_refusals_come_from_the_broker(broker: BrokerServer) -> None:
    proxy = await _proxy(broker)
    async with Client(_port(proxy)) as client:
        answer = await client.consume("group", "fifo", kind=ClientType.PUSH_CONSUMER)
        assert answer.status.code == Code.OK
        for number in range(4):
            await client.send("fifo", b"%d" % number, message_group="group")
        received = await client.receive("fifo", "group", auto_renew=True)
        assert [each.body for each in received] == [b"0", b"1", b"2", b"3"]
        request = messages.QueryRouteRequest()
        request.topic.name = "unknown"
        answer = await client.call("QueryRoute", request)
        assert answer.status.code == Code.TOPIC_NOT_FOUND
        code, _ = await client.receive_raw("unknown", "group")
        assert code == Code.TOPIC_NOT_FOUND
    await proxy.stop()
