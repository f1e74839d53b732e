"""Every request code, sent by five kinds of senders: only those with the right reach a handler.

The table of routes is the only source: a new code is tested as soon as it has a route. Everything
is tried over plain connections and over TLS.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from rocketpost.access.info import AclInfo, EntryInfo, PolicyInfo, UserInfo
from rocketpost.access.table import AccessTable
from rocketpost.client.credentials import Credentials
from rocketpost.codec.codes import ANSWER_ONLY, ResponseCode
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.command import Command
from rocketpost.codec.record import pack_host
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig
from rocketpost.server.routes.access import OWN, Need, ResourceKind
from rocketpost.server.routes.dispatch import Dispatcher
from rocketpost.server.routes.route import NO_HEADER, Reply, Route
from rocketpost.testing.secure.certificates import CertificateFolder
from rocketpost.transport.connection import Connection
from rocketpost.transport.connector import Connector
from rocketpost.transport.tls_contexts import ClientContext, ClientTls

from .route_requests import BODIES, NAMES
from .secured import tls_values
from .state.harness import Peer, broker, guarded_member

ROOT: Final = Credentials("root", "root-secret")
EXACT: Final = Credentials("exact", "exact-secret")
NONE: Final = Credentials("none", "none-secret")
OFF: Final = Credentials("off", "off-secret")
ON: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
}
ACTING: Final = {"enableSlaveActingMaster": "true"}
CLUSTER: Final = "DefaultCluster"
STRANGERS: Final = {
    "anonymous": None,
    "wrong signature": Credentials("root", "another"),
    "unknown user": Credentials("ghost", "root-secret"),
    "disabled user": OFF,
}


class Sent(NamedTuple):
    """A request of one code."""

    route: Route
    fields: dict[str, str]
    body: bytes

    @property
    def needs(self) -> list[Need]:
        command = Command(self.route.code, text_fields=self.fields, body=self.body)
        header: Any = None
        if self.route.header is not NO_HEADER:
            header = command.read(self.route.header)
        return self.route.access.needs(command, header)


def request(route: Route, **fields: str) -> Sent:
    body = msgspec.json.encode(BODIES[route.code]) if route.code in BODIES else b""
    return Sent(route, NAMES | fields, body)


async def ask(peer: Peer, sent: Sent, keys: Credentials | None) -> Command:
    fields: Mapping[str, str] = sent.fields
    if keys is not None:
        fields = keys.sign(fields, (sent.body,))
    return await peer.connection.request(sent.route.code, fields=fields, body=sent.body, timeout=20)


def add_users(table: AccessTable) -> None:
    for keys, status in ((EXACT, "enable"), (NONE, "enable"), (OFF, "disable")):
        info = UserInfo(username=keys.access_key, password=keys.secret_key, user_status=status)
        table.create_user(info, caller=None)


def grant(table: AccessTable, needs: list[Need], *, left_out: int | None = None) -> None:
    """Give the user ``exact`` one action for each need, and nothing else."""
    if table.rules("User:exact") is not None:
        table.delete_rules("User:exact", caller=None)
    entries = []
    for number, need in enumerate(needs):
        if number != left_out:
            kind, name = need.resource.value, need.name
            if need.resource is ResourceKind.MESSAGE:
                kind, name = "Topic", "T"
            if need == Need(ResourceKind.CLUSTER, OWN, need.actions):
                name = CLUSTER
            entries.append(
                EntryInfo(
                    resource=f"{kind}:{name}", actions=[need.actions[-1].value], decision="Allow"
                )
            )
    if entries:
        info = AclInfo(subject="User:exact", policies=[PolicyInfo(entries=entries)])
        table.put_rules(info, caller=None)


class Reached:
    """Replaces the handlers of a dispatcher, and counts the requests that reach them."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.codes: list[int] = []
        dispatcher._entries = {
            code: (header, self._note, access)
            for code, (header, _, access) in dispatcher._entries.items()
        }

    def _note(self, connection: Connection, command: Command, header: object) -> Reply:
        self.codes.append(command.code)
        return Reply()


@asynccontextmanager
async def connected(port: int, trusted: str) -> AsyncIterator[Peer]:
    """Return a connection, over TLS if it trusts an authority."""
    if not trusted:
        peer = await Peer().connect(port)
        yield peer
        peer.connection.close()
        return
    tls = ClientContext(ClientTls(trusted=trusted))
    connector = Connector(on_request=lambda connection, command: None, tls=tls)
    peer = Peer()
    peer.connection = await connector.connect(f"127.0.0.1:{port}")
    assert peer.connection.is_encrypted
    yield peer
    await connector.close()


def tls_settings(tmp_path: Path, *, is_on: bool) -> tuple[dict[str, str], str]:
    """Return the settings of a server, and the authority that its clients trust."""
    if not is_on:
        return {}, ""
    folder = CertificateFolder(tmp_path / "certificates")
    return tls_values(folder), folder.root


@asynccontextmanager
async def guarded_broker(
    tmp_path: Path, *, vip: bool = False, tls: bool = False, **more: str
) -> AsyncIterator[tuple[Peer, Dispatcher, AccessTable, dict[str, str]]]:
    settings, trusted = tls_settings(tmp_path, is_on=tls)
    async with (
        broker(tmp_path / "store", **ON | settings | more) as server,
        connected(server._vip.port if vip else server.port, trusted) as peer,
    ):
        add_users(server._context.tables.access)
        sent = ROOT.sign(
            {
                "producerGroup": "P", "topic": "T", "defaultTopic": "TBW102", "queueId": "0",
                "defaultTopicQueueNums": "1", "sysFlag": "0", "bornTimestamp": "1", "flag": "0",
            },
            (b"body",),
        )  # fmt: skip
        answer = await peer.connection.request(
            Code.SEND_MESSAGE, fields=sent, body=b"body", timeout=20
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        position = int(answer.fields["msgId"][16:], 16)
        message = f"{pack_host('127.0.0.1', server.port).hex()}{position:016x}".upper()
        names = {"offset": str(position), "commitLogOffset": str(position), "msgId": message}
        yield peer, server._dispatcher, server._context.tables.access, names


@asynccontextmanager
async def guarded_name_server(
    tmp_path: Path, *, tls: bool = False
) -> AsyncIterator[tuple[Peer, Dispatcher, AccessTable, dict[str, str]]]:
    config = NamesrvConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path=str(tmp_path / "kv.json"),
        auth_path=str(tmp_path),
        authentication_enabled=True,
        authorization_enabled=True,
        init_user=ON["initAuthenticationUser"],
    )
    settings, trusted = tls_settings(tmp_path, is_on=tls)
    server = NameServer(config, tls=settings)
    await server.start()
    try:
        add_users(server._access.control.table)
        async with connected(server.port, trusted) as peer:
            yield peer, server._dispatcher, server._access.control.table, {}
    finally:
        await server.stop()


def guarded(place: str, tmp_path: Path) -> Any:
    name, _, tls = place.partition(" by ")
    if name == "name server":
        return guarded_name_server(tmp_path, tls=bool(tls))
    more = ACTING if name == "acting" else {}
    if name == "member":
        more = guarded_member(tmp_path)
    return guarded_broker(tmp_path, vip=name == "VIP port", tls=bool(tls), **more)


NAMES_OF_PLACES: Final = ["broker", "VIP port", "acting", "member", "name server"]
PLACES: Final = [f"{name}{way}" for way in ("", " by TLS") for name in NAMES_OF_PLACES]


@pytest.mark.parametrize("place", PLACES)
async def test_only_users_with_the_right_reach_a_handler(place: str, tmp_path: Path) -> None:
    async with guarded(place, tmp_path) as (peer, dispatcher, table, names):
        reached = Reached(dispatcher)
        for route in list(dispatcher.routes.values()):
            sent = request(route, **names)
            needs = sent.needs
            for keys in STRANGERS.values():
                answer = await ask(peer, sent, keys)
                assert answer.code == ResponseCode.NO_PERMISSION, (route.code, keys)
                dispatcher.gate.failures._records.clear()  # type: ignore[union-attr]
            assert not reached.codes, route.code
            if needs:
                answer = await ask(peer, sent, NONE)
                assert answer.code == ResponseCode.NO_PERMISSION, route.code
                assert "has no permission" in (answer.remark or "")
            for left_out in range(len(needs)):
                grant(table, needs, left_out=left_out)
                answer = await ask(peer, sent, EXACT)
                assert answer.code == ResponseCode.NO_PERMISSION, (route.code, needs[left_out])
            assert not reached.codes, route.code
            grant(table, needs)
            for keys in (EXACT, ROOT):
                answer = await ask(peer, sent, keys)
                assert answer.code == ResponseCode.SUCCESS, (route.code, keys, answer.remark)
            assert reached.codes == [route.code] * 2
            reached.codes.clear()


@pytest.mark.parametrize("place", PLACES)
async def test_refused_requests_change_nothing(place: str, tmp_path: Path) -> None:
    async with guarded(place, tmp_path) as (peer, dispatcher, table, names):
        before = (kept(table), await state(peer, place))
        for route in list(dispatcher.routes.values()):
            sent = request(route, **names)
            senders = [*STRANGERS.values(), *([NONE] if sent.needs else [])]
            for keys in senders:
                answer = await ask(peer, sent, keys)
                assert answer.code == ResponseCode.NO_PERMISSION, (route.code, keys)
                dispatcher.gate.failures._records.clear()  # type: ignore[union-attr]
        assert (kept(table), await state(peer, place)) == before


def kept(table: AccessTable) -> dict[str, Any]:
    """Return users, rules and the number of changes; passwords are encrypted anew each time."""
    content: dict[str, Any] = msgspec.json.decode(table.to_json())
    for user in content["users"].values():
        user.pop("sealed", None)
    return content


async def state(peer: Peer, place: str) -> list[bytes]:
    """Return what a super user sees of a server."""
    codes = [Code.GET_BROKER_CLUSTER_INFO, Code.GET_NAMESRV_CONFIG]
    if not place.startswith("name server"):
        codes = [
            Code.GET_ALL_TOPIC_CONFIG,
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            Code.GET_ALL_CONSUMER_OFFSET,
            Code.GET_BROKER_CONFIG,
            Code.GET_ALL_MESSAGE_REQUEST_MODE,
            Code.GET_NAMED_FILTERS,
        ]
    seen = []
    for code in codes:
        answer = await peer.connection.request(code, fields=ROOT.sign({}, ()), timeout=20)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        seen.append(bytes(answer.body))
    return seen


@pytest.mark.parametrize("place", PLACES)
async def test_a_stranger_does_not_learn_which_codes_exist(place: str, tmp_path: Path) -> None:
    async with guarded(place, tmp_path) as (peer, _, _, _):
        for keys, expected in (
            (None, ResponseCode.NO_PERMISSION),
            (NONE, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        ):
            fields = {} if keys is None else keys.sign({}, ())
            answer = await peer.connection.request(31_999, fields=fields, timeout=20)
            assert answer.code == expected


async def test_oneway_requests_of_strangers_do_nothing(tmp_path: Path) -> None:
    async with guarded_broker(tmp_path) as (peer, dispatcher, _, names):
        reached = Reached(dispatcher)
        for route in dispatcher.routes.values():
            if route.code in ANSWER_ONLY:
                continue
            sent = request(route, **names)
            for keys in (None, NONE) if sent.needs else (None,):
                fields = sent.fields if keys is None else keys.sign(sent.fields, (sent.body,))
                peer.connection.send_oneway(route.code, fields=fields, body=sent.body)
            dispatcher.gate.failures._records.clear()  # type: ignore[union-attr]
            # An answer shows that the requests before it were served.
            answer = await ask(peer, request(dispatcher.routes[Code.GET_BROKER_CONFIG]), ROOT)
            assert answer.code == ResponseCode.SUCCESS
            assert reached.codes == [Code.GET_BROKER_CONFIG], route.code
            reached.codes.clear()
            await asyncio.sleep(0)


def test_a_route_without_a_rule_cannot_be_registered() -> None:
    from rocketpost.server.routes.access import Access

    route = Route(Code.HEART_BEAT, NO_HEADER, Access(()), lambda *_: Reply())
    with pytest.raises(AssertionError, match="no access rule"):
        Dispatcher([route])
