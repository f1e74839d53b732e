"""Settings of access control, on a broker and on a name server."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from rocketpost.access.info import UserInfo
from rocketpost.access.table import AccessTable
from rocketpost.client.credentials import Credentials
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import ConfigError
from rocketpost.server.broker import BrokerServer
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig
from rocketpost.server.settings.foreign_keys import NAMESRV_REFUSED_WHEN, refuse
from rocketpost.settings import build

from .harness import Peer, broker, peer_at

ROOT: Final = Credentials("root", "root-secret")
FIRST: Final = {"initAuthenticationUser": '{"username":"root","password":"root-secret"}'}
INNER: Final = {
    "innerClientAuthenticationCredentials": '{"accessKey":"peer","secretKey":"peer-secret"}'
}
ON: Final = {"authenticationEnabled": "true", **FIRST}
BOTH: Final = {"authorizationEnabled": "true", **ON}
PLACES: Final = pytest.mark.parametrize("place", ["broker", "namesrv"])


@asynccontextmanager
async def name_server(root: Path, **settings: str) -> AsyncIterator[NameServer]:
    base = {
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "kvConfigPath": str(root / "kv.json"),
        "authConfigPath": str(root),
    }
    server = NameServer(build(NamesrvConfig, base | settings))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def table_of(server: BrokerServer | NameServer) -> AccessTable:
    if isinstance(server, BrokerServer):
        return server._context.tables.access
    return server._access.control.table


@asynccontextmanager
async def serve(place: str, root: Path, **settings: str) -> AsyncIterator[tuple[Any, Peer]]:
    if place == "broker":
        async with broker(root, **settings) as peer:
            yield peer.server, peer
        return
    async with (
        name_server(root, **settings) as server,
        peer_at("127.0.0.1", server.port) as peer,
    ):
        yield server, peer


async def asks(peer: Peer, place: str, keys: Credentials | None) -> bool:
    """Ask for the settings; return whether that was permitted."""
    code = Code.GET_BROKER_CONFIG if place == "broker" else Code.GET_NAMESRV_CONFIG
    fields = {} if keys is None else keys.sign({}, ())
    answer = await peer.connection.request(code, fields=fields, timeout=20)
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION), answer.remark
    assert b"secret" not in answer.body
    return answer.code == ResponseCode.SUCCESS


def add_normal_user(server: BrokerServer | NameServer) -> Credentials:
    table_of(server).create_user(UserInfo(username="norm", password="norm-secret"), caller=None)
    return Credentials("norm", "norm-secret")


@PLACES
async def test_authenticationEnabled(place: str, tmp_path: Path) -> None:
    async with serve(place, tmp_path / "off") as (_, peer):
        assert await asks(peer, place, None)
    async with serve(place, tmp_path / "on", **ON) as (_, peer):
        assert not await asks(peer, place, None)


@PLACES
async def test_initAuthenticationUser(place: str, tmp_path: Path) -> None:
    async with serve(place, tmp_path, **ON) as (_, peer):
        assert await asks(peer, place, ROOT)
        assert not await asks(peer, place, Credentials("root", "x"))
    changed = {"initAuthenticationUser": '{"username":"root","password":"new"}'}
    async with serve(place, tmp_path, **ON | changed) as (_, peer):
        assert await asks(peer, place, ROOT), "an existing user stays as it is"


@PLACES
async def test_authorizationEnabled(place: str, tmp_path: Path) -> None:
    async with serve(place, tmp_path / "off", **ON) as (server, peer):
        assert await asks(peer, place, add_normal_user(server))
    async with serve(place, tmp_path / "on", **BOTH) as (server, peer):
        assert not await asks(peer, place, add_normal_user(server))


@PLACES
async def test_authenticationWhitelist(place: str, tmp_path: Path) -> None:
    listed = {"authenticationWhitelist": "26, 319"}
    async with serve(place, tmp_path / "open", **ON | listed) as (_, peer):
        assert await asks(peer, place, None)
    async with serve(place, tmp_path / "checked", **BOTH | listed) as (_, peer):
        assert not await asks(peer, place, None), "nobody has no rights"


@PLACES
async def test_authorizationWhitelist(place: str, tmp_path: Path) -> None:
    listed = {"authorizationWhitelist": "26,319"}
    async with serve(place, tmp_path, **BOTH | listed) as (server, peer):
        assert await asks(peer, place, add_normal_user(server))
        assert not await asks(peer, place, None)


@PLACES
async def test_authSecretKeyFile(place: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    sealed = {"authSecretKeyFile": str(key)}
    directory = tmp_path / "data"
    async with serve(place, directory, **ON | sealed):
        pass
    [path] = (path for path in directory.rglob("auth.json") if path.parent.name != "known")
    assert b"root-secret" not in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    async with serve(place, directory, **ON | sealed) as (_, peer):
        assert await asks(peer, place, ROOT)


@PLACES
async def test_migrateAuthFromV1Enabled_and_plainAclPath(place: str, tmp_path: Path) -> None:
    old = tmp_path / "plain_acl.yml"
    old.write_text(
        "accounts:\n- {accessKey: old-user, secretKey: old-secret, topicPerms: ['T=PUB']}\n"
    )
    settings = {"migrateAuthFromV1Enabled": "true", "plainAclPath": str(old)}
    async with serve(place, tmp_path / "data", **BOTH | settings) as (server, _):
        assert table_of(server).user("old-user") is not None
        [rules] = table_of(server).policies("old-user").values()
        assert [str(rule) for rule in rules] == ["Allow Pub on Topic:T"]


async def test_innerClientAuthenticationCredentials(tmp_path: Path) -> None:
    async with (
        name_server(tmp_path / "ns", **BOTH | INNER) as server,
        broker(tmp_path / "a", namesrvAddr=server.address, **BOTH | INNER) as known,
        broker(tmp_path / "b", namesrvAddr=server.address, brokerName="b", **BOTH) as unknown,
    ):
        assert known.server.unregistered == []
        assert unknown.server.unregistered == [server.address]


@PLACES
async def test_the_user_of_servers_does_not_replace_the_last_super_user(
    place: str, tmp_path: Path
) -> None:
    fields = {"username": "root"}
    async with serve(place, tmp_path, **BOTH | INNER) as (server, peer):
        signed = ROOT.sign(fields, ())
        answer = await peer.connection.request(Code.AUTH_DELETE_USER, fields=signed, timeout=20)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "besides peer" in (answer.remark or "")
        assert table_of(server).user("root") is not None
        signed = Credentials("peer", "peer-secret").sign(fields, ())
        answer = await peer.connection.request(Code.AUTH_DELETE_USER, fields=signed, timeout=20)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def test_authConfigPath_and_clusterName(tmp_path: Path) -> None:
    settings = {"authConfigPath": str(tmp_path / "auth"), "clusterName": "C1"}
    async with name_server(tmp_path, **BOTH | settings) as server:
        assert (tmp_path / "auth" / "auth.json").exists()
        gate = server._dispatcher.gate
        assert gate is not None
        assert gate.cluster == "C1"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"authorizationEnabled": "true"}, "needs authenticationEnabled"),
        ({"authenticationEnabled": "true"}, "no enabled super user"),
        (ON | {"initAuthenticationUser": '{"username":"u"}'}, "initAuthenticationUser must be"),
        (ON | {"initAuthenticationUser": "secret"}, "initAuthenticationUser must be"),
        (ON | {"authenticationWhitelist": "x"}, "is not a request code"),
        (ON | {"authSecretKeyFile": "/nowhere"}, "cannot be read"),
        (ON | {"authenticationProvider": "com.example.P"}, "classes cannot be loaded"),
        (
            ON
            | {
                "authorizationStrategy": "org.apache.rocketmq.auth.authorization.strategy."
                "StatefulAuthorizationStrategy"
            },
            "stateful",
        ),
        (ON | {"aclEnable": "true"}, "access control 1.0 is gone"),
        (ON | {"migrateAuthFromV1Enabled": "true", "plainAclPath": "/nowhere"}, "no plain_acl"),
    ],
)
async def test_a_broker_that_would_be_open_does_not_start(
    settings: dict[str, str], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)) as raised:
        async with broker(tmp_path, **settings):
            pass
    assert "secret" not in str(raised.value).replace("secretKey", "")


async def test_a_name_server_refuses_classes_too() -> None:
    with pytest.raises(ConfigError, match="classes cannot be loaded"):
        refuse({"authenticationProvider": "com.example.P"}, NAMESRV_REFUSED_WHEN)
