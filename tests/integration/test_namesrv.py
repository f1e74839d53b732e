"""Name servers and registration over real sockets, in this process, on free ports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from rocketpost.codec.bodies.cluster import decode_member_group
from rocketpost.codec.bodies.registration import (
    RegisteredTopics,
    RegistrationBody,
    encode_registration,
)
from rocketpost.codec.bodies.route import decode_route
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, decode_command
from rocketpost.codec.frames import FrameDecoder, encode_frame
from rocketpost.codec.headers.namesrv import RegisterBrokerResponse
from rocketpost.errors import ConfigError, ConnectionLost, StoreError
from rocketpost.model.clock import Clock
from rocketpost.model.topic import DataVersion, TopicConfig
from rocketpost.server.name_servers.registration import Announcement, Registration
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig
from rocketpost.testing.clock import FakeClock
from rocketpost.transport.connection import Connection
from rocketpost.transport.connector import Connector
from rocketpost.transport.listener import Listener

CODE = RequestCode


class Broker:
    """The part of a broker that registers."""

    def __init__(
        self, *name_servers: NameServer | str, name: str = "broker-a", port: int = 10911
    ) -> None:
        self.name = name
        self.address = f"127.0.0.1:{port}"
        self.topics: dict[str, TopicConfig] = {}
        self.version = DataVersion()
        self.orders: list[Mapping[str, str]] = []
        self.announced = 0
        for topic in ("TBW102", "TopicA"):
            self.add(topic)
        self.registration = Registration(
            name_servers=[each if isinstance(each, str) else at(each) for each in name_servers],
            announce=self.announce,
            timeout_ms=5000,
            on_order_topics=lambda _, table: self.orders.append(table),
            retry_seconds=0.02,
        )

    def add(self, topic: str) -> None:
        self.topics[topic] = TopicConfig(topic_name=topic)
        self.version = self.version.next(self.version.timestamp + 1)

    def announce(self) -> Announcement:
        self.announced += 1
        return Announcement(
            cluster="C",
            name=self.name,
            address=self.address,
            ha_address="127.0.0.1:10912",
            data_version=self.version,
            topics=self.topics,
        )

    async def __aenter__(self) -> Broker:
        await self.registration.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.registration.stop()


def at(server: NameServer) -> str:
    return f"127.0.0.1:{server.port}"


@asynccontextmanager
async def name_server(
    *, clock: Clock | None = None, port: int = 0, path: Path | None = None
) -> AsyncIterator[NameServer]:
    config = NamesrvConfig(
        listen_port=port,
        bind_address="127.0.0.1",
        kv_config_path=str(path) if path else None,
    )
    server = NameServer(config, clock=clock)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def client(server: NameServer) -> AsyncIterator[Connection]:
    connector = Connector(on_request=lambda *_: None)
    try:
        yield await connector.connect(at(server))
    finally:
        await connector.close()


async def ask(
    server: NameServer, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
) -> Command:
    async with client(server) as connection:
        return await connection.request(code, fields=fields, body=body, timeout=5)


async def knows(server: NameServer, topic: str = "TopicA") -> bool:
    answer = await ask(server, CODE.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    assert answer.code in (0, 17)
    return answer.code == 0


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not happened():
            await asyncio.sleep(0.005)


async def until_known(server: NameServer, topic: str = "TopicA", *, known: bool = True) -> None:
    async with asyncio.timeout(5):
        while await knows(server, topic) != known:
            await asyncio.sleep(0.005)


async def test_a_broker_registers_and_unregisters() -> None:
    async with name_server() as server:
        async with Broker(server) as broker:
            assert broker.registration.registered == {at(server)}
            answer = await ask(server, CODE.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"})
            route = decode_route(answer.body)
            assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911"}
            assert route.queue_datas[0].write_queue_nums == 16
        assert not await knows(server)
        assert broker.registration.registered == frozenset()


async def test_a_change_is_announced_at_once_and_a_burst_together() -> None:
    async with name_server() as server, Broker(server) as broker:
        for number in range(50):
            broker.add(f"New{number}")
            broker.registration.note_change()
        await until_known(server, "New49")
        assert await knows(server, "New0")
        assert broker.announced <= 3


async def test_a_broker_that_vanishes_is_gone_at_once() -> None:
    async with name_server() as server, Broker(server) as broker:
        connection = broker.registration._connector.peek(at(server))
        assert connection is not None
        broker.registration._task.cancel()  # type: ignore[union-attr]
        connection.abort()
        await until_known(server, known=False)


async def test_a_lost_connection_is_restored_immediately() -> None:
    async with name_server() as server, Broker(server) as broker:
        (connection,) = server._listener.connections
        connection.abort()
        await until(lambda: broker.announced >= 2)
        await until_known(server)


async def test_silence_is_noticed_by_the_clock() -> None:
    clock = FakeClock()
    async with name_server(clock=clock) as server, Broker(server):
        broker_connection = next(iter(server._listener.connections))
        clock.advance(120_000)
        server.scan()
        assert await knows(server)
        clock.advance(1)
        server.scan()
        assert not await knows(server)
        await asyncio.wait_for(broker_connection.wait_closed(), 5)
        await until_known(server)  # the broker was alive after all and came back


async def test_the_scan_runs_by_itself_and_its_interval_can_be_changed() -> None:
    clock = FakeClock()
    async with name_server(clock=clock) as server, client(server) as connection:
        fields = {
            "brokerName": "b",
            "brokerAddr": "h:1",
            "clusterName": "C",
            "brokerId": "0",
            "heartbeatTimeoutMillis": "10",
        }
        answer = await connection.request(CODE.REGISTER_BROKER, fields=fields, timeout=5)
        assert answer.code == 0
        clock.advance(11)
        body = b"scanNotActiveBrokerInterval=5"
        answer = await connection.request(CODE.UPDATE_NAMESRV_CONFIG, body=body, timeout=5)
        assert answer.code == 0
        await asyncio.wait_for(connection.wait_closed(), 5)
        info = msgspec.json.decode((await ask(server, CODE.GET_BROKER_CLUSTER_INFO)).body)
        assert info == {"brokerAddrTable": {}, "clusterAddrTable": {}}


async def test_one_of_two_name_servers_dies_and_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "rocketpost.server.name_servers.registration")
    async with name_server() as steady:
        async with name_server() as other:
            port = other.port
            broker = Broker(steady, other)
            await broker.registration.start()
            assert await knows(steady)
            assert await knows(other)
        # The other one is dead now: news still reach the steady one, without noise.
        tries = broker.announced
        broker.add("News")
        broker.registration.note_change()
        await until_known(steady, "News")
        assert broker.registration.registered == {at(steady)}
        await until(lambda: broker.registration._links[f"127.0.0.1:{port}"].failures >= 3)
        async with name_server(port=port) as again:
            await until_known(again, "News")
            await until(lambda: len(broker.registration.registered) == 2)
            await broker.registration.stop()
            assert not await knows(again)
            assert not await knows(steady)
    lines = [record.message.split(":")[0] for record in caplog.records]
    assert lines.count("not registered") == 1
    assert lines.count("registered") == 3
    assert broker.announced > tries


async def test_a_dead_name_server_delays_nobody() -> None:
    async with name_server() as dead:
        nowhere = at(dead)
    async with name_server() as server, Broker(nowhere, server) as broker:
        assert broker.registration.registered == {at(server)}
        assert await knows(server)


async def test_an_announcement_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async with name_server() as server:
        broker = Broker(server)
        good = broker.registration._announce

        def fail_once() -> Announcement:
            broker.registration._announce = good
            raise KeyError("a mistake of ours")

        broker.registration._announce = fail_once
        async with broker:
            await until_known(server)
        assert "a mistake of ours" in caplog.text


async def test_ordered_topics_reach_the_broker_and_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicA", "value": "broker-a:4"}
    async with name_server(path=path) as server:
        assert (await ask(server, CODE.PUT_KV_CONFIG, order)).code == 0
    async with name_server(path=path) as server, Broker(server) as broker:
        assert broker.orders == [{"TopicA": "broker-a:4"}]


async def test_a_change_that_was_accepted_is_on_disk_after_stop(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    async with name_server(path=path) as server, client(server) as connection:
        waits = [
            connection.request(
                CODE.PUT_KV_CONFIG,
                fields={"namespace": "n", "key": str(number), "value": "v"},
                timeout=5,
            )
            for number in range(10)
        ]
        answers = asyncio.gather(*waits, return_exceptions=True)
        await until(lambda: server._kv._waiting > 0)
        await server.stop()
        done = [str(n) for n, a in enumerate(await answers) if isinstance(a, Command)]
    saved = msgspec.json.decode(path.read_bytes())["configTable"]["n"]
    assert set(done) <= set(saved)


async def test_a_damaged_file_or_a_taken_port_prevents_the_start(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text("not json")
    config = NamesrvConfig(listen_port=0, kv_config_path=str(path))
    with pytest.raises(StoreError, match="kvConfig"):
        await NameServer(config).start()
    async with name_server() as server:
        taken = NamesrvConfig(
            listen_port=server.port, bind_address="127.0.0.1", kv_config_path=None
        )
        with pytest.raises(ConfigError, match=str(server.port)):
            await NameServer(taken).start()


async def test_run_serves_until_stopped() -> None:
    server = NameServer(NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=None))
    running = asyncio.ensure_future(server.run())
    await until(lambda: server._next_scan is not None)
    assert not await knows(server)
    address = at(server)
    await server.stop()
    await asyncio.wait_for(running, 5)
    with pytest.raises(ConnectionLost):
        await Connector(on_request=lambda *_: None).connect(address)


@pytest.mark.parametrize(
    ("version", "text"), [(317, b'{0:"127.0.0.1:10911"}'), (401, b'{"0":"127.0.0.1:10911"}')]
)
async def test_routes_for_old_and_new_clients(version: int, text: bytes) -> None:
    async with name_server() as server, Broker(server):
        header = msgspec.json.encode(
            {
                "code": 105,
                "language": "GO",
                "version": version,
                "opaque": 1,
                "flag": 0,
                "extFields": {"topic": "TopicA"},
            }
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(encode_frame(0, header, 0))
        decoder = FrameDecoder()
        while not (frames := decoder.feed(await reader.read(65536))):
            pass
        writer.close()
        await writer.wait_closed()
        answer = decode_command(frames[0])
        assert b'"brokerAddrs":' + text in bytes(answer.body)


async def test_hostile_input_gets_an_answer_and_changes_nothing() -> None:
    broker = {"brokerName": "b", "brokerAddr": "h:1", "clusterName": "C", "brokerId": "0"}
    async with name_server() as server, Broker(server), client(server) as connection:
        before = (await ask(server, CODE.GET_BROKER_CLUSTER_INFO)).body
        for fields, body in (
            ({}, b""),
            (broker, b"{"),
            (broker, b"\xff" * 1000),
            (broker, b"{" * 1_000_000),
            ({**broker, "bodyCrc32": "1"}, b"{}"),
            ({**broker, "compressed": "true"}, b"{}"),
            ({**broker, "brokerName": "../../etc"}, b""),
            ({**broker, "brokerName": "x" * 10_000}, b""),
            ({**broker, "brokerAddr": "h:1\nh:2"}, b""),
            ({**broker, "clusterName": ""}, b""),
        ):
            answer = await connection.request(
                CODE.REGISTER_BROKER, fields=fields, body=body, timeout=5
            )
            assert answer.code in (1, 29)
            assert answer.remark
            assert len(answer.remark) < 1000
        unknown = await connection.request(9999, timeout=5)
        assert unknown.code == 3
        assert (await ask(server, CODE.GET_BROKER_CLUSTER_INFO)).body == before
        assert await knows(server)


async def test_a_client_that_leaves_does_not_unregister_a_broker() -> None:
    async with name_server() as server, Broker(server):
        async with client(server) as connection:
            await connection.request(
                CODE.GET_ROUTEINFO_BY_TOPIC, fields={"topic": "TopicA"}, timeout=5
            )
        assert await knows(server)


async def address_of(server: NameServer, name: str = "broker-a") -> str | None:
    fields = {"clusterName": "C", "brokerName": name}
    answer = await ask(server, CODE.GET_BROKER_MEMBER_GROUP, fields)
    return decode_member_group(answer.body).broker_addrs.get(0)


async def test_no_other_broker_takes_or_unregisters_a_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with name_server() as server, Broker(server) as broker:
        stranger = Broker(server, port=6666)
        stranger.version = DataVersion(1, 1000, 2**62)
        async with stranger:
            assert await address_of(server) == broker.address
            assert stranger.registration.registered == frozenset()
            [problem] = stranger.registration.problems.values()
            assert "id 0 of broker-a is taken by 127.0.0.1:10911, which is alive" in problem
            assert broker.registration.problems == {}
        assert await address_of(server) == broker.address
    assert "registration refused: peer=127.0.0.1" in caplog.text


async def test_a_broker_gets_its_name_as_soon_as_the_other_one_is_gone() -> None:
    async with name_server() as server:
        async with Broker(server, port=6666):
            broker = Broker(server)
            await broker.registration.start()
            assert broker.registration.problems
        await until(lambda: broker.registration.registered)
        assert broker.registration.problems == {}
        assert await address_of(server) == broker.address
        await broker.registration.stop()


async def test_a_broker_that_was_displaced_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Other name servers say yes to every registration and send clients to another broker."""
    async with name_server() as server, Broker(server) as broker:
        members = server._table._brokers["broker-a"].addresses
        members[0] = "10.6.6.6:10911"
        answer = RegisterBrokerResponse()
        server._table.register = lambda *_, **__: answer  # type: ignore[method-assign]
        broker.registration.note_change()
        await until(lambda: broker.registration.problems)
        [problem] = broker.registration.problems.values()
        assert problem == "clients of broker-a are sent to 10.6.6.6:10911"
        assert broker.registration.registered
        assert "displaced: " in caplog.text
        members[0] = broker.address
        broker.registration.note_change()
        await until(lambda: not broker.registration.problems)
    assert "no longer displaced" in caplog.text


async def test_a_host_cannot_fill_the_name_server_with_made_up_brokers() -> None:
    async with name_server() as server, Broker(server) as broker, client(server) as connection:
        data = encode_registration(
            RegistrationBody(
                topic_config_serialize_wrapper=RegisteredTopics(topic_config_table=broker.topics)
            )
        )
        codes = []
        for number in range(200):
            fields = {"brokerName": f"fake-{number}", "brokerAddr": f"10.6.6.6:{number + 1}",
                      "clusterName": "C", "brokerId": "0", "haServerAddr": ""}  # fmt: skip
            sent = await connection.request(
                CODE.REGISTER_BROKER, fields=fields, body=data, timeout=5
            )
            codes.append(sent.code)
        assert codes.count(0) == 127
        assert set(codes) == {0, ResponseCode.SYSTEM_BUSY}
        connection.close()
        await connection.wait_closed()
        await until(lambda: len(server._table._live) == 1)
        assert await knows(server)


@pytest.mark.parametrize(
    "setting", ["waitSecondsForService=2000000000", "scanNotActiveBrokerInterval=2000000000"]
)
async def test_no_request_withholds_routes_or_keeps_dead_brokers(setting: str) -> None:
    async with name_server() as server, Broker(server):
        wait = await ask(server, CODE.UPDATE_NAMESRV_CONFIG, body=b"needWaitForService=false")
        assert wait.code == 0
        refused = await ask(server, CODE.UPDATE_NAMESRV_CONFIG, body=setting.encode())
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert "must be between" in (refused.remark or "")
        assert await knows(server)


@asynccontextmanager
async def a_member(server: NameServer, broker_id: int) -> AsyncIterator[asyncio.Queue[Command]]:
    """Register a member of a group whose slaves act; yield the notices that reach its port."""
    told: asyncio.Queue[Command] = asyncio.Queue()
    listener = Listener(on_request=lambda _, command: told.put_nowait(command))
    await listener.start("127.0.0.1", 0)
    fields = {
        "brokerName": "broker-a",
        "brokerAddr": f"127.0.0.1:{listener.port}",
        "clusterName": "C",
        "brokerId": str(broker_id),
        "haServerAddr": "127.0.0.1:10912",
        "enableActingMaster": "true",
        "heartbeatTimeoutMillis": "10000",
    }
    topics = {topic: TopicConfig(topic_name=topic) for topic in ("TBW102", "TopicA")}
    table = RegisteredTopics(data_version=DataVersion(), topic_config_table=topics)
    body = encode_registration(RegistrationBody(topic_config_serialize_wrapper=table))
    try:
        async with client(server) as connection:
            answer = await connection.request(
                CODE.REGISTER_BROKER, fields=fields, body=body, timeout=5
            )
            assert answer.code == 0
            yield told
    finally:
        await listener.stop()


@pytest.mark.parametrize("notifies", [True, False])
async def test_a_slave_is_told_that_its_master_is_gone_or_back(notifies: bool) -> None:
    config = NamesrvConfig(
        listen_port=0, bind_address="127.0.0.1", kv_config_path=None,
        acting_master=True, notify_min_broker=notifies,
    )  # fmt: skip
    server = NameServer(config)
    await server.start()
    try:
        async with a_member(server, 1) as told:
            seen = []
            for _ in range(2):
                async with a_member(server, 0):
                    await until(lambda: knows_master(server))
                    if notifies:
                        seen.append((await asyncio.wait_for(told.get(), 5)).fields)
                await until(lambda: not knows_master(server))
                if notifies:
                    seen.append((await asyncio.wait_for(told.get(), 5)).fields)
        ids = [fields["minBrokerId"] for fields in seen]
        assert ids == (["0", "1", "0", "1"] if notifies else [])
        if notifies:
            assert seen[0]["haBrokerAddr"] == "127.0.0.1:10912"
            assert seen[1]["offlineBrokerAddr"] == seen[0]["minBrokerAddr"]
        assert told.empty()
    finally:
        await server.stop()


def knows_master(server: NameServer) -> bool:
    return 0 in server._table.member_group("C", "broker-a").broker_addrs
