"""Every request code of a name server, answered without a socket."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping

import msgspec
import pytest

from rocketpost.codec.bodies.registration import (
    RegisteredTopics,
    RegistrationBody,
    body_crc,
    encode_registration,
)
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import ONEWAY, Command, decode_command
from rocketpost.codec.frames import FrameDecoder
from rocketpost.model.topic import DataVersion, TopicConfig
from rocketpost.namesrv.report import BrokerIdentity
from rocketpost.namesrv.route_table import RouteTable
from rocketpost.server.namesrv import handlers as module
from rocketpost.server.namesrv.handlers import NamesrvHandlers
from rocketpost.server.namesrv.kv_file import KvFile
from rocketpost.server.routes.dispatch import Dispatcher
from rocketpost.server.settings.namesrv import NamesrvConfig
from rocketpost.testing.clock import FakeClock

CODE = RequestCode
BROKER = {
    "brokerName": "broker-a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "C",
    "brokerId": "0",
}
VERSION_BODY = b'{"counter":1,"stateVersion":0,"timestamp":7}'


def registration(*names: str, **changes: int) -> bytes:
    topics = {name: TopicConfig(topic_name=name, **changes) for name in names}
    table = RegisteredTopics(data_version=DataVersion(1, 0, 7), topic_config_table=topics)
    return encode_registration(RegistrationBody(topic_config_serialize_wrapper=table))


class FakeConnection:
    """Remembers the bytes that it is told to send."""

    peer_text = "10.0.0.9:40000"

    def __init__(self, host: str = "10.0.0.9") -> None:
        self.peer = host, 40000
        self.sent = b""

    def end_turn(self) -> None:
        """Serve whatever comes next."""

    def answer(self, *buffers: bytes) -> None:
        self.sent += b"".join(buffers)


class Server:
    """The handlers with everything they need, and a way to ask them."""

    def __init__(self, **settings: object) -> None:
        self.clock = FakeClock()
        self.table = RouteTable()
        self.kv = KvFile(None)
        self.registered: list[BrokerIdentity] = []
        self.config_changes = 0
        self.handlers = NamesrvHandlers(
            config=NamesrvConfig(**settings),  # type: ignore[arg-type]
            table=self.table,
            kv=self.kv,
            clock=self.clock,
            on_registered=self.registered.append,
            on_config=self._count,
        )
        self.dispatcher = Dispatcher(self.handlers.routes())

    def _count(self) -> None:
        self.config_changes += 1

    def ask(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        version: int = 479,
        host: str = "10.0.0.9",
    ) -> Command:
        """Return the answer, which must come at once."""
        connection = FakeConnection(host)
        command = Command(
            code, opaque=5, version=version, text_fields=dict(fields or {}), body=body
        )
        self.dispatcher.handle(connection, command)  # type: ignore[arg-type]
        (frame,) = FrameDecoder().feed(connection.sent)
        return decode_command(frame)

    def tell(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> bytes:
        """Send a oneway request; return the bytes that are answered all the same."""
        connection = FakeConnection()
        command = Command(code, opaque=5, flag=ONEWAY, text_fields=dict(fields), body=body)
        self.dispatcher.handle(connection, command)  # type: ignore[arg-type]
        return connection.sent

    async def ask_slowly(self, code: int, fields: Mapping[str, str]) -> Command:
        """Return an answer that waits for the disk."""
        connection = FakeConnection()
        command = Command(code, opaque=5, text_fields=dict(fields))
        self.dispatcher.handle(connection, command)  # type: ignore[arg-type]
        while not connection.sent:
            await asyncio.sleep(0)
        (frame,) = FrameDecoder().feed(connection.sent)
        return decode_command(frame)

    def register(self, *names: str, **header: str) -> Command:
        body = registration(*(names or ("TopicA", "TopicB")))
        return self.ask(CODE.REGISTER_BROKER, {**BROKER, **header}, body)


@pytest.fixture
def server() -> Server:
    """A name server that knows one broker."""
    server = Server()
    assert server.register().code == 0
    return server


def names_in(answer: Command) -> list[str]:
    names: list[str] = msgspec.json.decode(answer.body)["topicList"]
    return names


def test_every_code_of_the_protocol_is_served() -> None:
    served = Server().dispatcher.routes.keys()
    codes = (100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312)
    assert served == {*codes, 313, 318, 319, 322, 327, 901, 904}


# RegistrationBody.


def test_a_new_broker_is_reported_once(server: Server) -> None:
    server.register()
    assert server.registered == [BrokerIdentity("C", "broker-a", 0, "10.0.0.1:10911")]


def test_a_slave_gets_the_address_of_its_master(server: Server) -> None:
    server.register(haServerAddr="10.0.0.1:10912")
    answer = server.register(brokerId="1", brokerAddr="10.0.0.2:10911")
    assert answer.fields == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}


def test_the_crc_is_checked(server: Server) -> None:
    body = registration("X", "Y")
    good = {**BROKER, "bodyCrc32": str(body_crc(body))}
    bad = {**BROKER, "bodyCrc32": str(body_crc(body) ^ 1)}
    refused = server.ask(CODE.REGISTER_BROKER, bad, body)
    assert (refused.code, refused.remark) == (1, "crc32 not match")
    assert names_in(server.ask(CODE.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == ["TopicA", "TopicB"]
    assert server.ask(CODE.REGISTER_BROKER, good, body).code == 0


def test_a_compressed_registration() -> None:
    server = Server()
    topics = {"X": TopicConfig(topic_name="X"), "Y": TopicConfig(topic_name="Y")}
    body = encode_registration(
        RegistrationBody(
            topic_config_serialize_wrapper=RegisteredTopics(topic_config_table=topics)
        ),
        compressed=True,
    )
    assert server.ask(CODE.REGISTER_BROKER, {**BROKER, "compressed": "true"}, body).code == 0
    assert names_in(server.ask(CODE.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == ["X", "Y"]


@pytest.mark.parametrize(
    ("header", "body", "code"),
    [
        ({"brokerName": "a/b"}, registration("X", "Y"), ResponseCode.INVALID_PARAMETER),
        ({"brokerAddr": "nowhere"}, registration("X", "Y"), ResponseCode.INVALID_PARAMETER),
        ({"brokerId": "-1"}, registration("X", "Y"), ResponseCode.INVALID_PARAMETER),
        ({"brokerId": "first"}, registration("X", "Y"), ResponseCode.INVALID_PARAMETER),
        ({}, registration("X", "../Y"), ResponseCode.INVALID_PARAMETER),
        ({}, registration("X", "Y", perm=-1), ResponseCode.INVALID_PARAMETER),
        ({}, b"{", ResponseCode.SYSTEM_ERROR),
        ({}, b'{"topicConfigSerializeWrapper":[]}', ResponseCode.SYSTEM_ERROR),
        ({"compressed": "true"}, b"{}", ResponseCode.SYSTEM_ERROR),
        ({"compressed": "true"}, zlib.compress(bytes(10**6)), ResponseCode.SYSTEM_ERROR),
        ({"brokerAddr": "10.0.0.9:1"}, b"[" * 100_000, ResponseCode.SYSTEM_ERROR),
        (
            {"brokerName": "new", "brokerAddr": "h:1"},
            registration("X"),
            ResponseCode.SYSTEM_ERROR,
        ),
    ],
)
def test_hostile_registrations_change_nothing(
    server: Server, header: dict[str, str], body: bytes, code: int
) -> None:
    before = server.table.edition, server.table.topics()
    answer = server.ask(CODE.REGISTER_BROKER, {**BROKER, **header}, body)
    assert answer.code == code
    assert answer.remark
    assert (server.table.edition, server.table.topics()) == before
    assert len(server.registered) == 1


def test_a_missing_header_field_is_named(server: Server) -> None:
    answer = server.ask(CODE.REGISTER_BROKER, {"brokerName": "b"})
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "brokerAddr" in str(answer.remark)


def test_unregistering(server: Server) -> None:
    assert server.ask(CODE.UNREGISTER_BROKER, {**BROKER, "brokerName": "x"}).code == 0
    assert server.ask(CODE.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"}).code == 0
    assert server.ask(CODE.UNREGISTER_BROKER, {**BROKER, "brokerName": "a b"}).code == 29
    assert server.ask(CODE.UNREGISTER_BROKER, BROKER).code == 0
    assert server.ask(CODE.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"}).code == 17


def test_data_versions(server: Server) -> None:
    server.clock.advance(100_000)
    same = server.ask(CODE.QUERY_DATA_VERSION, BROKER, VERSION_BODY)
    assert (same.fields, same.body) == ({"changed": "false"}, VERSION_BODY)
    server.clock.advance(100_000)
    assert server.table.expire(server.clock.now_ms()) == []
    other = server.ask(CODE.QUERY_DATA_VERSION, BROKER, VERSION_BODY.replace(b"1", b"2"))
    assert other.fields == {"changed": "true"}
    server.clock.advance(100_000)
    assert server.table.expire(server.clock.now_ms()) == []
    stranger = {**BROKER, "brokerAddr": "10.0.0.9:1"}
    unknown = server.ask(CODE.QUERY_DATA_VERSION, stranger, VERSION_BODY)
    assert (unknown.fields, unknown.body) == ({"changed": "true"}, b"")
    assert server.ask(CODE.QUERY_DATA_VERSION, BROKER, b"?").code == 1


def test_data_versions_are_heartbeats_of_brokers_that_want_no_answer(server: Server) -> None:
    server.clock.advance(120_000)
    assert server.tell(CODE.QUERY_DATA_VERSION, BROKER, VERSION_BODY) == b""
    server.clock.advance(120_000)
    assert server.table.expire(server.clock.now_ms()) == []


def test_heartbeats_keep_a_broker_alive(server: Server) -> None:
    server.clock.advance(120_000)
    assert server.ask(CODE.BROKER_HEARTBEAT, BROKER).code == 0
    server.clock.advance(120_000)
    assert server.table.expire(server.clock.now_ms()) == []
    assert server.ask(CODE.BROKER_HEARTBEAT, {**BROKER, "brokerAddr": "?"}).code == 29


# Routes.


@pytest.mark.parametrize(
    ("version", "fields", "text"),
    [
        (317, {}, b'"brokerAddrs":{0:"10.0.0.1:10911"}'),
        (400, {"acceptStandardJsonOnly": "false"}, b'"brokerAddrs":{0:"10.0.0.1:10911"}'),
        (317, {"acceptStandardJsonOnly": "true"}, b'"brokerAddrs":{"0":"10.0.0.1:10911"}'),
        (401, {}, b'"brokerAddrs":{"0":"10.0.0.1:10911"}'),
        (479, {}, b'"brokerAddrs":{"0":"10.0.0.1:10911"}'),
    ],
)
def test_old_clients_get_bare_keys_and_new_ones_quoted(
    server: Server, version: int, fields: dict[str, str], text: bytes
) -> None:
    for _ in range(2):  # the second answer comes from the cache
        answer = server.ask(
            CODE.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA", **fields}, version=version
        )
        assert answer.code == 0
        assert text in bytes(answer.body)


def test_a_change_is_seen_in_the_next_answer(server: Server) -> None:
    def perm() -> int:
        answer = server.ask(CODE.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"})
        value: int = msgspec.json.decode(answer.body)["queueDatas"][0]["perm"]
        return value

    assert perm() == 6
    wiped = server.ask(CODE.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert wiped.fields == {"wipeTopicCount": "2"}
    assert perm() == 4
    added = server.ask(CODE.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert added.fields == {"addTopicCount": "2"}
    assert perm() == 6
    assert server.ask(CODE.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": ""}).code == 29


def test_an_unknown_topic_is_named(server: Server) -> None:
    answer = server.ask(CODE.GET_ROUTEINFO_BY_TOPIC, {"topic": "Nowhere"})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "Nowhere" in str(answer.remark)
    assert server.ask(CODE.GET_ROUTEINFO_BY_TOPIC, {"topic": "a b"}).code == 29


async def test_ordered_topics_when_enabled() -> None:
    server = Server(order_messages=True)
    server.register()
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicA", "value": "broker-a:4"}
    route = {"topic": "TopicA"}
    assert b"orderTopicConf" not in server.ask(CODE.GET_ROUTEINFO_BY_TOPIC, route).body
    await server.ask_slowly(CODE.PUT_KV_CONFIG, order)
    answer = server.ask(CODE.GET_ROUTEINFO_BY_TOPIC, route)
    assert msgspec.json.decode(answer.body)["orderTopicConf"] == "broker-a:4"
    answer = server.ask(CODE.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicB"})
    assert "orderTopicConf" not in msgspec.json.decode(answer.body)


async def test_ordered_topics_are_not_shown_by_default(server: Server) -> None:
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicA", "value": "broker-a:4"}
    await server.ask_slowly(CODE.PUT_KV_CONFIG, order)
    answer = server.ask(CODE.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"})
    assert b"orderTopicConf" not in answer.body


def test_routes_can_be_withheld_after_the_start() -> None:
    server = Server(wait_for_service=True)
    server.register()
    server.handlers.note_start()
    server.clock.advance(44_999)
    early = server.ask(CODE.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"})
    assert (early.code, early.remark) == (1, "name server not ready")
    server.clock.advance(1)
    assert server.ask(CODE.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"}).code == 0


def test_zones(server: Server) -> None:
    far = {"brokerName": "far", "brokerAddr": "10.0.0.8:1", "__ZONE_NAME": "z2"}
    server.register(**far)
    server.register(__ZONE_NAME="z1")
    asked = {"topic": "TopicA", "__ZONE_MODE": "true", "__ZONE_NAME": "z1"}
    near = server.ask(CODE.GET_ROUTEINFO_BY_TOPIC, asked)
    assert b'"brokerAddrs":{0:' in near.body
    assert b"far" not in near.body
    everywhere = server.ask(CODE.GET_ROUTEINFO_BY_TOPIC, {**asked, "__ZONE_NAME": " "})
    assert b'"zoneName":"z2"' in everywhere.body


def test_the_cache_of_routes_is_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_BYTES_MAX", 300)
    for topic in ("TopicA", "TopicB", "TopicA"):
        assert server.ask(CODE.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code == 0
    assert len(server.handlers._cache._bodies) == 1


def test_clusters_and_members(server: Server) -> None:
    assert server.ask(CODE.GET_BROKER_CLUSTER_INFO).body == (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911"},'
        b'"brokerName":"broker-a","cluster":"C","enableActingMaster":false}},'
        b'"clusterAddrTable":{"C":["broker-a"]}}'
    )
    members = server.ask(
        CODE.GET_BROKER_MEMBER_GROUP, {"clusterName": "C", "brokerName": "broker-a"}
    )
    assert members.body == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-a",'
        b'"cluster":"C"}}'
    )


# Topics.


def test_lists_of_topics(server: Server) -> None:
    assert server.ask(CODE.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body == (
        b'{"topicList":["TopicA","TopicB"]}'
    )
    in_cluster = server.ask(CODE.GET_TOPICS_BY_CLUSTER, {"cluster": "C"})
    assert names_in(in_cluster) == ["TopicA", "TopicB"]
    assert server.ask(CODE.GET_SYSTEM_TOPIC_LIST_FROM_NS).body == (
        b'{"brokerAddr":"10.0.0.1:10911","topicList":["C","broker-a"]}'
    )


def test_topics_of_units() -> None:
    server = Server()
    topics = {
        f"T{flag}": TopicConfig(topic_name=f"T{flag}", topic_sys_flag=flag) for flag in range(4)
    }
    table = RegisteredTopics(topic_config_table=topics)
    body = encode_registration(RegistrationBody(topic_config_serialize_wrapper=table))
    server.ask(CODE.REGISTER_BROKER, BROKER, body)
    assert names_in(server.ask(CODE.GET_UNIT_TOPIC_LIST)) == ["T1", "T3"]
    assert names_in(server.ask(CODE.GET_HAS_UNIT_SUB_TOPIC_LIST)) == ["T2", "T3"]
    assert names_in(server.ask(CODE.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)) == ["T2"]


def test_lists_can_be_switched_off() -> None:
    server = Server(all_topic_list=False, topic_list=False)
    for code in (206, 304, 311):
        assert server.ask(code).code == 1
    assert server.ask(CODE.GET_TOPICS_BY_CLUSTER, {"cluster": "C"}).code == 1


def test_a_topic_is_deleted(server: Server) -> None:
    server.ask(CODE.DELETE_TOPIC_IN_NAMESRV, {"topic": "TopicA", "clusterName": "D"})
    assert server.ask(CODE.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"}).code == 0
    assert server.ask(CODE.DELETE_TOPIC_IN_NAMESRV, {"topic": "TopicA"}).code == 0
    assert server.ask(CODE.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"}).code == 17
    assert server.ask(CODE.DELETE_TOPIC_IN_NAMESRV, {"topic": "?"}).code == 29


def test_a_topic_is_registered_alone(server: Server) -> None:
    body = b'{"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":1}]}'
    assert server.ask(CODE.REGISTER_TOPIC_IN_NAMESRV, {"topic": "New"}, body).code == 0
    assert server.ask(CODE.GET_ROUTEINFO_BY_TOPIC, {"topic": "New"}).code == 0
    ghost = body.replace(b"broker-a", b"ghost")
    assert server.ask(CODE.REGISTER_TOPIC_IN_NAMESRV, {"topic": "X"}, ghost).code == 1


# Keys and values.


async def test_keys_and_values(server: Server) -> None:
    key = {"namespace": "space", "key": "name"}
    assert server.ask(CODE.GET_KV_CONFIG, key).code == ResponseCode.QUERY_NOT_FOUND
    assert server.ask(CODE.GET_KVLIST_BY_NAMESPACE, key).code == ResponseCode.QUERY_NOT_FOUND
    assert (await server.ask_slowly(CODE.PUT_KV_CONFIG, {**key, "value": "v"})).code == 0
    assert server.ask(CODE.GET_KV_CONFIG, key).fields == {"value": "v"}
    listed = server.ask(CODE.GET_KVLIST_BY_NAMESPACE, key)
    assert listed.body == b'{"table":{"name":"v"}}'
    assert (await server.ask_slowly(CODE.DELETE_KV_CONFIG, key)).code == 0
    assert server.ask(CODE.GET_KV_CONFIG, key).code == ResponseCode.QUERY_NOT_FOUND
    assert (await server.ask_slowly(CODE.PUT_KV_CONFIG, key)).code == 29


async def test_brokers_get_the_ordered_topics(server: Server) -> None:
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicA", "value": "broker-a:4"}
    assert server.register().body == b""
    await server.ask_slowly(CODE.PUT_KV_CONFIG, order)
    assert server.register().body == b'{"table":{"TopicA":"broker-a:4"}}'
    server.ask(CODE.UPDATE_NAMESRV_CONFIG, body=b"returnOrderTopicConfigToBroker=false")
    assert server.register().body == b""


# Settings.


def test_settings_are_shown_and_changed(server: Server) -> None:
    shown = bytes(server.ask(CODE.GET_NAMESRV_CONFIG).body)
    assert b"listenPort=9876\n" in shown
    assert b"scanNotActiveBrokerInterval=5000\n" in shown
    body = b"scanNotActiveBrokerInterval=1000\norderMessageEnable=true\n"
    assert server.ask(CODE.UPDATE_NAMESRV_CONFIG, body=body).code == 0
    assert (server.handlers.config.scan_interval_ms, server.config_changes) == (1000, 1)


@pytest.mark.parametrize(
    ("body", "code", "named"),
    [
        (b"kvConfigPath=/etc/passwd", ResponseCode.NO_PERMISSION, "kvConfigPath"),
        (b"listenPort=1", ResponseCode.NO_PERMISSION, "listenPort"),
        (b"brokerCountMax=9999999", ResponseCode.NO_PERMISSION, "brokerCountMax"),
        (b"rocketmqHome=$(reboot)", ResponseCode.INVALID_PARAMETER, "rocketmqHome"),
        (b"orderMessageEnable=1", ResponseCode.INVALID_PARAMETER, "orderMessageEnable"),
        (b"scanNotActiveBrokerInterval=0", ResponseCode.INVALID_PARAMETER, "scanNotActive"),
        (b"orderMessageEnable=true\nlistenPort=1", ResponseCode.NO_PERMISSION, "listenPort"),
        (b"a=\\uzzzz", ResponseCode.INVALID_PARAMETER, "escape"),
        (b"", ResponseCode.INVALID_PARAMETER, "names no setting"),
    ],
)
def test_settings_that_may_not_be_changed(
    server: Server, body: bytes, code: int, named: str
) -> None:
    before = server.handlers.config
    answer = server.ask(CODE.UPDATE_NAMESRV_CONFIG, body=body)
    assert answer.code == code
    assert named in str(answer.remark)
    assert server.handlers.config is before
    assert server.config_changes == 0
