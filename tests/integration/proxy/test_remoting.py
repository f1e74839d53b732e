"""Clients of the remoting protocol behind a proxy, which brokers know one by one."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rocketpost.client import (
    Message,
    Producer,
    ReceivedMessage,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
)
from rocketpost.codec.bodies.client import (
    ConsumerData,
    Heartbeat,
    ProducerData,
    encode_heartbeat,
)
from rocketpost.codec.bodies.route import decode_route
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.headers.message import SendMessageV2
from rocketpost.errors import RocketpostError
from rocketpost.model.topic import TopicChange
from rocketpost.proxy.settings import read_proxy_settings
from rocketpost.server.broker import BrokerServer
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig
from rocketpost.server.proxy.process import ProxyServer
from rocketpost.testing.process import free_port
from rocketpost.testing.waiting import until
from rocketpost.transport.connection import Connection
from rocketpost.transport.connector import Connector

from .calls import SMALL

pytestmark = pytest.mark.slow


@dataclass
class Running:
    """Brokers with a proxy in front of them."""

    brokers: list[BrokerServer]
    proxy: ProxyServer

    @property
    def address(self) -> str:
        """The address at which remoting clients find name servers and brokers."""
        return self.proxy.remoting_address


@contextlib.asynccontextmanager
async def running(directory: Path, *names: str, **settings: str) -> AsyncIterator[Running]:
    async with contextlib.AsyncExitStack() as stack:
        config = NamesrvConfig(
            listen_port=0, bind_address="127.0.0.1", kv_config_path=str(directory / "kv.json")
        )
        name_server = NameServer(config, tls={})
        await name_server.start()
        stack.push_async_callback(name_server.stop)
        address = f"127.0.0.1:{name_server.port}"
        brokers = []
        for name in names:
            values = {
                **SMALL,
                "brokerName": name,
                "listenPort": "0",
                "brokerIP1": "127.0.0.1",
                "bindAddress": "127.0.0.1",
                "namesrvAddr": address,
                "storePathRootDir": str(directory / name),
                **settings,
            }
            broker = BrokerServer(values)
            await broker.start()
            stack.push_async_callback(broker.stop)
            broker._context.tables.topics.update(TopicChange(topic_name="topic"))
            await broker._term.registration.wait_registered()  # type: ignore[attr-defined]
            brokers.append(broker)
        proxy_settings = {
            "grpcServerPort": 0,
            "remotingListenPort": free_port(),
            "bindAddress": "127.0.0.1",
            "namesrvAddr": address,
        }
        proxy = ProxyServer(read_proxy_settings(json.dumps(proxy_settings))[0])
        await proxy.start()
        stack.push_async_callback(proxy.stop)
        yield Running(brokers, proxy)


async def test_messages_pass_in_both_directions(tmp_path: Path) -> None:
    async with running(tmp_path, "broker-a") as cluster:
        (broker,) = cluster.brokers
        async with (
            Producer("producers", name_servers=cluster.address) as producer,
            SimpleConsumer("group", name_servers=cluster.address) as consumer,
        ):
            await consumer.subscribe("topic")
            bodies = [b"%d" % number for number in range(20)]
            for body in bodies:
                await producer.send(Message("topic", body))
            found: list[bytes] = []
            while len(found) < len(bodies):
                for message in await consumer.receive(8, await_seconds=5):
                    found.append(message.body)
                    await consumer.ack(message)
            assert sorted(found) == sorted(bodies)
            members = broker._context.membership.producers
            await until(lambda: "producers" in members)
            (member,) = members["producers"].values()
            assert member.client.language == "PYTHON"
        # A client that is gone is gone at the broker too.
        await until(lambda: "producers" not in members)


async def test_a_broker_asks_a_producer_behind_the_proxy(tmp_path: Path) -> None:
    asked: list[str] = []

    async def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.message_id)
        return TransactionState.COMMIT

    times = {"transactionTimeOut": "500", "transactionCheckInterval": "500"}
    async with (
        running(tmp_path, "broker-a", **times) as cluster,
        TransactionProducer(
            "producers", checker=check, topics=["topic"], name_servers=cluster.address
        ) as producer,
        SimpleConsumer("group", name_servers=cluster.address) as consumer,
    ):
        await consumer.subscribe("topic")
        await producer.send_in_transaction(
            Message("topic", b"half"), lambda message, name: TransactionState.UNKNOWN
        )
        async with asyncio.timeout(30):
            (message,) = await consumer.receive(1, await_seconds=20)
        assert message.body == b"half"
        assert asked == [message.message_id]


class Raw:
    """A client that sends what a test says, and answers requests of brokers."""

    def __init__(self) -> None:
        self.asked: list[Command] = []
        self.connector = Connector(on_request=self._note)

    def _note(self, connection: Connection, command: Command) -> None:
        self.asked.append(command)


async def test_requests_reach_the_broker_that_they_name(tmp_path: Path) -> None:
    async with running(tmp_path, "broker-a", "broker-b") as cluster:
        raw = Raw()
        connection = await raw.connector.connect(cluster.address)

        async def ask(code: int, fields: dict[str, str], body: bytes = b"") -> Command:
            return await connection.request(code, fields=fields, body=body, timeout=10)

        answer = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "topic"})
        route = decode_route(answer.body)
        assert {each.broker_name for each in route.broker_datas} == {"broker-a", "broker-b"}
        assert {each.master for each in route.broker_datas} == {cluster.address}
        answer = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "unknown"})
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        for name in ("broker-a", "broker-b", "broker-b"):
            header = SendMessageV2(
                producer_group="producers",
                topic="topic",
                default_topic="TBW102",
                queue_id=0,
                born_timestamp=1,
                broker_name=name,
            )
            answer = await ask(RequestCode.SEND_MESSAGE_V2, to_fields(header), b"body")
            assert answer.code == ResponseCode.SUCCESS
        ends = []
        for name in ("broker-a", "broker-b"):
            fields = {"topic": "topic", "queueId": "0", "bname": name}
            answer = await ask(RequestCode.GET_MAX_OFFSET, fields)
            ends.append(answer.fields["offset"])
        assert ends == ["1", "2"]
        answer = await ask(RequestCode.GET_MAX_OFFSET, {"topic": "topic", "queueId": "0"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "does not name its broker" in (answer.remark or "")
        fields = {"topic": "topic", "queueId": "0", "bname": "broker-c"}
        answer = await ask(RequestCode.GET_MAX_OFFSET, fields)
        assert "'broker-c' is unknown" in (answer.remark or "")
        await raw.connector.close()


async def test_heartbeats_reach_all_brokers_again_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, "broker-a", "broker-b") as cluster:
        raw = Raw()
        connection = await raw.connector.connect(cluster.address)
        beat = Heartbeat(
            client_id="client",
            consumer_data_set=[ConsumerData(group_name="group")],
            producer_data_set=[ProducerData(group_name="producers")],
        )
        answer = await connection.request(
            RequestCode.HEART_BEAT, body=encode_heartbeat(beat), timeout=10
        )
        assert answer.code == ResponseCode.SUCCESS
        for broker in cluster.brokers:
            members = broker._context.membership
            assert members.consumer("group", "client") is not None
        # Members are told of each other by requests of brokers.
        await until(lambda: raw.asked)
        assert raw.asked[0].code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        answer = await connection.request(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            fields={"consumerGroup": "group"},
            timeout=10,
        )
        assert json.loads(answer.body) == {"consumerIdList": ["client"]}
        first = cluster.brokers[0]
        for served in list(first._listener.connections):
            served.abort()
        await until(lambda: first._context.membership.consumer("group", "client") is None)
        answer = await connection.request(
            RequestCode.GET_MAX_OFFSET,
            fields={"topic": "topic", "queueId": "0", "bname": "broker-a"},
            timeout=10,
        )
        assert answer.code == ResponseCode.SUCCESS
        await until(lambda: first._context.membership.consumer("group", "client"))
        await raw.connector.close()


async def test_a_port_that_is_taken_stops_the_start_if_the_settings_name_it() -> None:
    settings = {"grpcServerPort": 0, "namesrvAddr": "127.0.0.1:1", "bindAddress": "127.0.0.1"}
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as taken:
        port = taken.sockets[0].getsockname()[1]
        text = json.dumps({**settings, "remotingListenPort": port})
        proxy = ProxyServer(read_proxy_settings(text)[0])
        with pytest.raises(RocketpostError, match=str(port)):
            await proxy.start()
