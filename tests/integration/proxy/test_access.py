"""Access control of the gRPC port: signatures and rights, in the broker and in front of it."""

from __future__ import annotations

import contextlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from rocketpost.access.info import AclInfo, EntryInfo, PolicyInfo, UserInfo
from rocketpost.access.table import AccessTable
from rocketpost.errors import ConfigError
from rocketpost.model.topic import TopicChange
from rocketpost.proxy.settings import read_proxy_settings
from rocketpost.proxy.wire import messages
from rocketpost.proxy.wire.enums import Code
from rocketpost.server.broker import BrokerServer
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig
from rocketpost.server.proxy.process import ProxyServer
from rocketpost.server.settings.access import Login

from .calls import SMALL, Client, proxied_broker

pytestmark = pytest.mark.slow

ROOT = Login("root", "root-secret")
GUARDED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
}
DATE = "20261118T101112Z"
SERVER_HEADERS = (
    ("x-mq-authorization-ak", "root"),
    ("x-mq-channel-id", "another"),
    ("rpc-remote-address", "10.9.8.7:1"),
)


def signed(user: str, secret: str, *, form: Callable[[str], str] = str) -> Any:
    """Return the headers of calls that a user has signed."""
    signature = form(hmac.new(secret.encode(), DATE.encode(), "sha1").hexdigest())
    text = f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return (("x-mq-date-time", DATE), ("authorization", text))


def add_users(table: AccessTable) -> None:
    """Add users: one who may send and receive, one who may only send, one who is disabled."""
    rules = {
        "both": [("Topic:normal", ["Pub", "Sub"]), ("Group:group", ["Sub"])],
        "sender": [("Topic:normal", ["Pub"])],
    }
    for name in ("both", "sender", "disabled"):
        status = "disable" if name == "disabled" else "enable"
        table.create_user(
            UserInfo(username=name, password=f"{name}-secret", user_status=status), caller=None
        )
        entries = [
            EntryInfo(resource=resource, actions=actions, decision="Allow")
            for resource, actions in rules.get(name, ())
        ]
        if entries:
            policies = [PolicyInfo(policy_type="Custom", entries=entries)]
            table.put_rules(AclInfo(subject=f"User:{name}", policies=policies), caller=None)


@contextlib.asynccontextmanager
async def local(directory: Path) -> AsyncIterator[int]:
    topics = {"normal": "NORMAL", "other": "NORMAL"}
    async with proxied_broker(directory / "store", topics=topics, **GUARDED) as broker:
        add_users(broker._context.access.table)
        yield broker.grpc_port


@contextlib.asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[int]:
    kv = str(directory / "kv.json")
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=kv)
    name_server = NameServer(config, tls={})
    await name_server.start()
    address = f"127.0.0.1:{name_server.port}"
    values = {
        **SMALL,
        **GUARDED,
        "brokerName": "broker-a",
        "listenPort": "0",
        "brokerIP1": "127.0.0.1",
        "namesrvAddr": address,
        "storePathRootDir": str(directory / "store"),
    }
    broker = BrokerServer(values)
    await broker.start()
    for name in ("normal", "other"):
        broker._context.tables.topics.update(TopicChange(topic_name=name))
    add_users(broker._context.access.table)
    await broker._term.registration.wait_registered()  # type: ignore[attr-defined]
    settings = {
        "grpcServerPort": 0,
        "remotingListenPort": 0,
        "bindAddress": "127.0.0.1",
        "namesrvAddr": address,
        "tlsServerMode": "disabled",
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "innerClientAuthenticationCredentials": json.dumps(
            {"accessKey": ROOT.name, "secretKey": ROOT.secret}
        ),
    }
    proxy = ProxyServer(read_proxy_settings(json.dumps(settings))[0], login=ROOT)
    await proxy.start()
    assert proxy._proxy is not None
    yield proxy._proxy.port
    await proxy.stop()
    await broker.stop()
    await name_server.stop()


@pytest.fixture(params=[local, cluster])
async def port(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[int]:
    async with request.param(tmp_path) as running:
        yield running


async def route_code(port: int, headers: Any, topic: str = "normal") -> int:
    request = messages.QueryRouteRequest()
    request.topic.name = topic
    request.endpoints.addresses.add(host="127.0.0.1", port=port)
    async with Client(port, headers=headers) as client:
        answer = await client.call("QueryRoute", request)
    code: int = answer.status.code
    return code


async def test_signatures_of_all_clients_are_understood_and_others_refused(port: int) -> None:
    for headers in (
        signed("both", "both-secret"),
        signed("both", "both-secret", form=str.upper),  # Java, Node.js, C#
        signed("both//Rocketmq", "both-secret"),  # Go
    ):
        assert await route_code(port, headers) == Code.OK
    right = signed("both", "both-secret")
    for headers in (
        (),
        SERVER_HEADERS,
        right[:1],
        right[1:],
        signed("both", "another"),
        signed("nobody", "both-secret"),
        signed("disabled", "disabled-secret"),
        (("x-mq-date-time", "20261118T101113Z"), right[1]),
        (right[0], ("authorization", "MQv2-HMAC-SHA1 Credential=both")),
        (right[0], ("authorization", "nonsense")),
    ):
        assert await route_code(port, headers) == Code.UNAUTHORIZED, headers


async def test_calls_need_the_rights_of_their_topics_and_groups(port: int) -> None:
    async with Client(port, headers=signed("both", "both-secret")) as client:
        await client.consume("group", "normal")
        await client.send("normal", b"x")
        (received,) = await client.receive("normal", "group")
        assert await client.ack("group", received) == Code.OK
        assert (await client.receive_raw("normal", "another"))[0] == Code.UNAUTHORIZED
    assert await route_code(port, signed("both", "both-secret"), "other") == Code.UNAUTHORIZED
    headers = (*signed("sender", "sender-secret"), *SERVER_HEADERS)
    async with Client(port, headers=headers) as client:
        await client.produce("normal")
        await client.send("normal", b"y")
        assert await client.ack("group", received) == Code.UNAUTHORIZED
        assert (await client.receive_raw("normal", "group"))[0] == Code.UNAUTHORIZED
        answer = await client.consume("group", "normal")
        assert answer.status.code == Code.UNAUTHORIZED
        assert "sender" in answer.status.message


async def test_a_proxy_logs_whom_it_refuses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path) as port:
        await route_code(port, signed("both", "wrong"))
        await route_code(port, signed("both", "both-secret"), "other")
    lines = [each.getMessage() for each in caplog.records if "access refused" in each.getMessage()]
    assert "event=loginFailed user=both code=QueryRoute" in lines[0]
    assert "event=denied user=both code=QueryRoute" in lines[1]
    assert "peer=127.0.0.1 " in lines[0]


def test_settings_that_would_let_everybody_in_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs authenticationEnabled"):
        read_proxy_settings('{"authorizationEnabled": true}')


async def test_a_proxy_needs_a_user_to_ask_for_users() -> None:
    settings = (
        '{"authenticationEnabled": true, "namesrvAddr": "127.0.0.1:1", "grpcServerPort": 0, '
        '"remotingListenPort": 0}'
    )
    proxy = ProxyServer(read_proxy_settings(settings)[0])
    with pytest.raises(ConfigError, match="innerClientAuthenticationCredentials"):
        await proxy.start()
