"""Access control from outside: users and rules by request, held requests, look-ups, strangers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from rocketpost.access.failures import BURST
from rocketpost.client.credentials import Credentials
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.server.broker import BrokerServer
from rocketpost.testing.waiting import until
from rocketpost.transport.connection import Connection

from .state.harness import Peer, broker

ON: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
}
ROOT: Final = Credentials("root", "root-secret")
NORM: Final = Credentials("norm", "norm-secret")
DENIED: Final = ResponseCode.NO_PERMISSION


class Guarded:
    """A broker with access control, and a connection to it."""

    def __init__(self, server: BrokerServer, peer: Peer, root: Path) -> None:
        self.server = server
        self.peer = peer
        self.root = root

    async def ask(
        self, keys: Credentials | None, code: int, body: bytes = b"", **fields: object
    ) -> Command:
        texts = {name: str(value) for name, value in fields.items()}
        signed = texts if keys is None else keys.sign(texts, (body,))
        return await self.peer.connection.request(code, fields=signed, body=body, timeout=30)

    async def ok(
        self, keys: Credentials | None, code: int, body: bytes = b"", **fields: object
    ) -> Command:
        answer = await self.ask(keys, code, body, **fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer

    async def user(self, keys: Credentials, **more: str) -> None:
        info = {"username": keys.access_key, "password": keys.secret_key, **more}
        await self.ok(
            ROOT, Code.AUTH_CREATE_USER, json.dumps(info).encode(), username=keys.access_key
        )

    async def rule(self, keys: Credentials, resource: str, *actions: str, **more: Any) -> None:
        entry = {"resource": resource, "actions": actions, "decision": "Allow", **more}
        subject = f"User:{keys.access_key}"
        body = json.dumps({"subject": subject, "policies": [{"entries": [entry]}]}).encode()
        await self.ok(ROOT, Code.AUTH_CREATE_ACL, body, subject=subject)

    async def send(self, keys: Credentials | None, topic: str = "T") -> Command:
        return await self.ask(
            keys, Code.SEND_MESSAGE, b"body", producerGroup="P", topic=topic,
            defaultTopic="TBW102", defaultTopicQueueNums=1, queueId=0, sysFlag=0, bornTimestamp=1,
            flag=0,
        )  # fmt: skip

    async def pull(self, keys: Credentials | None, offset: int = 0, hold_ms: int = 0) -> Command:
        return await self.ask(
            keys, Code.PULL_MESSAGE, consumerGroup="G", topic="T", queueId=0, queueOffset=offset,
            maxMsgNums=32, sysFlag=6 if hold_ms else 4, commitOffset=0,
            suspendTimeoutMillis=hold_ms, subscription="*", subVersion=0,
        )  # fmt: skip

    def audit(self) -> list[dict[str, Any]]:
        lines = (self.root / "audit.log").read_text().splitlines()
        return [json.loads(line) for line in lines]


@asynccontextmanager
async def guarded(root: Path, **settings: str) -> AsyncIterator[Guarded]:
    async with broker(root, **ON | settings) as server:
        peer = await Peer().connect(server.port)
        yield Guarded(server, peer, root)
        peer.connection.close()


async def test_users_and_rules_by_request(tmp_path: Path) -> None:
    async with guarded(tmp_path) as place:
        await place.user(NORM)
        again = await place.ask(ROOT, Code.AUTH_CREATE_USER, b'{"password":"x"}', username="norm")
        assert (again.code, again.remark) == (DENIED, "The user is existed")
        assert (await place.send(NORM)).code == DENIED
        await place.rule(NORM, "Topic:T", "Pub")
        assert (await place.send(NORM)).code == ResponseCode.SUCCESS
        assert (await place.pull(NORM)).code == DENIED
        await place.rule(NORM, "Topic:T", "Sub")
        await place.rule(NORM, "Group:G", "Sub", sourceIps=["127.0.0.0/8"])
        assert (await place.send(NORM)).code == DENIED, "the rule was replaced"
        assert (await place.pull(NORM)).code == ResponseCode.SUCCESS
        await place.rule(NORM, "Group:G", "Sub", sourceIps=["10.0.0.0/8"])
        assert (await place.pull(NORM)).code == DENIED
        shown = json.loads(
            bytes((await place.ok(ROOT, Code.AUTH_GET_ACL, subject="User:norm")).body)
        )
        assert {entry["resource"] for entry in shown["policies"][0]["entries"]} == {
            "Topic:T",
            "Group:G",
        }
        await place.ok(ROOT, Code.AUTH_DELETE_ACL, subject="User:norm", resource="Topic:T")
        listed = json.loads(bytes((await place.ok(ROOT, Code.AUTH_LIST_ACL)).body))
        assert [entry["resource"] for entry in listed[0]["policies"][0]["entries"]] == ["Group:G"]
        await place.ok(ROOT, Code.AUTH_DELETE_USER, username="norm")
        assert (await place.ok(ROOT, Code.AUTH_GET_USER, username="norm")).body == b""


async def test_changes_act_on_open_connections_and_survive_a_restart(tmp_path: Path) -> None:
    async with guarded(tmp_path) as place:
        await place.user(NORM)
        await place.rule(NORM, "Topic:*", "Pub")
        assert (await place.send(NORM)).code == ResponseCode.SUCCESS
        await place.ok(ROOT, Code.AUTH_UPDATE_USER, b'{"password":"new"}', username="norm")
        assert (await place.send(NORM)).code == DENIED
        fresh = Credentials("norm", "new")
        assert (await place.send(fresh)).code == ResponseCode.SUCCESS
        await place.ok(ROOT, Code.AUTH_UPDATE_USER, b'{"userStatus":"disable"}', username="norm")
        assert (await place.send(fresh)).code == DENIED
    async with guarded(tmp_path) as place:
        assert (await place.send(fresh)).code == DENIED
        await place.ok(ROOT, Code.AUTH_UPDATE_USER, b'{"userStatus":"enable"}', username="norm")
        assert (await place.send(fresh)).code == ResponseCode.SUCCESS


async def test_only_super_users_see_passwords_and_change_rules(tmp_path: Path) -> None:
    async with guarded(tmp_path) as place:
        await place.user(NORM)
        await place.rule(NORM, "Cluster:DefaultCluster", "Get", "Update")
        for code, fields in (
            (Code.AUTH_GET_USER, {"username": "root"}),
            (Code.AUTH_LIST_USER, {}),
            (Code.GET_BROKER_CONFIG, {}),
            (Code.GET_BROKER_RUNTIME_INFO, {}),
            (Code.FOLLOW_TABLES, {"known": "", "holdMillis": 0}),
        ):
            answer = await place.ok(NORM, code, **fields)
            assert answer.body
            assert b"secret" not in answer.body, code
        users = json.loads(bytes((await place.ok(ROOT, Code.AUTH_LIST_USER)).body))
        assert {user["username"]: user["password"] for user in users} == {
            "norm": "norm-secret",
            "root": "root-secret",
        }
        everything = json.dumps(
            {
                "subject": "User:norm",
                "policies": [
                    {"entries": [{"resource": "*", "actions": ["All"], "decision": "Allow"}]}
                ],
            }
        ).encode()
        for code, body, fields in (
            (Code.AUTH_UPDATE_USER, b'{"userType":"Super"}', {"username": "norm"}),
            (Code.AUTH_UPDATE_USER, b'{"password":"x"}', {"username": "root"}),
            (Code.AUTH_CREATE_USER, b'{"password":"x","userType":"Super"}', {"username": "x"}),
            (Code.AUTH_DELETE_USER, b"", {"username": "root"}),
            (Code.AUTH_CREATE_ACL, everything, {"subject": "User:norm"}),
            (Code.AUTH_UPDATE_ACL, everything, {"subject": "User:norm"}),
            (Code.AUTH_DELETE_ACL, b"", {"subject": "User:norm"}),
        ):
            answer = await place.ask(NORM, code, body, **fields)
            assert answer.code in (DENIED, ResponseCode.SYSTEM_ERROR), (code, body)
        assert (await place.send(NORM)).code == DENIED
        last = await place.ask(ROOT, Code.AUTH_DELETE_USER, username="root")
        assert "last super user" in (last.remark or "")


async def test_held_pulls_end_when_their_right_is_taken(tmp_path: Path) -> None:
    async with guarded(tmp_path) as place:
        assert (await place.send(ROOT)).code == ResponseCode.SUCCESS
        other = Credentials("other", "other-secret")
        for keys in (NORM, other):
            await place.user(keys)
            await place.rule(keys, "Topic:T", "Sub")
            await place.rule(keys, "Group:G", "Sub")
        held = [
            asyncio.create_task(place.pull(keys, offset=1, hold_ms=20_000))
            for keys in (NORM, other)
        ]
        await until(lambda: place.server.held_count == 2)
        await place.ok(ROOT, Code.AUTH_DELETE_ACL, subject="User:norm", resource="Topic:T")
        assert (await held[0]).code == DENIED
        assert place.server.held_count == 1
        await place.ok(ROOT, Code.AUTH_UPDATE_USER, b'{"userStatus":"disable"}', username="other")
        assert (await held[1]).code == DENIED


async def test_held_pops_end_when_their_right_is_taken(tmp_path: Path) -> None:
    async with guarded(tmp_path) as place:
        assert (await place.send(ROOT)).code == ResponseCode.SUCCESS
        await place.user(NORM)
        await place.rule(NORM, "Topic:T", "Sub")
        await place.rule(NORM, "Group:G2", "Sub")

        def pop(poll_ms: int) -> Any:
            return place.ask(
                NORM, Code.POP_MESSAGE, consumerGroup="G2", topic="T", queueId=-1, maxMsgNums=8,
                invisibleTime=60_000, pollTime=poll_ms, bornTime=0, initMode=0, expType="TAG",
                exp="*",
            )  # fmt: skip

        assert (await pop(0)).code == ResponseCode.SUCCESS
        held = asyncio.create_task(pop(20_000))
        await until(lambda: place.server.held_count == 1)
        await place.ok(ROOT, Code.AUTH_DELETE_USER, username="norm")
        assert (await held).code == DENIED


async def test_a_look_up_needs_a_right_to_the_stored_messages_topic(tmp_path: Path) -> None:
    async with guarded(tmp_path) as place:
        sent = await place.send(ROOT, "Secret")
        position = int(sent.fields["msgId"][16:], 16)
        await place.user(NORM)
        await place.rule(NORM, "Topic:T", "Get")
        for claim in ("T", "Secret"):
            view = await place.ask(NORM, Code.VIEW_MESSAGE_BY_ID, offset=position, topic=claim)
            assert view.code == DENIED, claim
        missing = await place.ask(NORM, Code.VIEW_MESSAGE_BY_ID, offset=position + 1, topic="T")
        assert missing.code == DENIED, "a position without a message tells nothing"
        await place.rule(NORM, "Topic:Secret", "Get")
        assert (await place.ok(NORM, Code.VIEW_MESSAGE_BY_ID, offset=position)).body


async def test_strangers_get_one_answer_and_are_slowed_down(tmp_path: Path) -> None:
    async with guarded(tmp_path) as place:
        await place.user(Credentials("off", "off-secret"), userStatus="disable")
        remarks = set()
        for keys in (
            Credentials("ghost", "root-secret"),
            Credentials("root", "wrong"),
            Credentials("off", "off-secret"),
            Credentials("off", "wrong"),
        ):
            answer = await place.send(keys)
            assert answer.code == DENIED
            remarks.add(answer.remark)
        assert len(remarks) == 1
        for _ in range(BURST):
            await place.send(None)
        late = asyncio.create_task(place.send(None))
        gate = place.server._dispatcher.gate
        assert gate is not None
        await until(lambda: gate.failures.total == 4 + BURST + 1)
        assert (await place.send(ROOT)).code == ResponseCode.SUCCESS
        assert not late.done(), "a user with the right secret does not wait for strangers"
        assert (await late).code == DENIED


async def test_what_a_stranger_sends_is_not_kept_while_its_answer_waits(tmp_path: Path) -> None:
    kept: list[Command] = []
    async with guarded(tmp_path) as place:
        gate = place.server._dispatcher.gate
        assert gate is not None
        admit = gate.admit

        def note(connection: Connection, command: Command) -> None:
            kept.append(command)
            admit(connection, command)

        gate.admit = note  # type: ignore[method-assign]
        for _ in range(BURST):
            await place.send(None)
        late = asyncio.create_task(place.ask(None, Code.SEND_MESSAGE, bytes(1_000_000), topic="T"))
        await until(lambda: len(kept) == BURST + 1)
        assert kept[-1].body == b""
        assert (await late).code == DENIED


async def test_strangers_who_hold_all_connections_do_not_keep_users_out(tmp_path: Path) -> None:
    async with guarded(tmp_path) as place:
        assert (await place.send(ROOT)).code == ResponseCode.SUCCESS
        place.server._room.connections_max = 10
        strangers = [
            await asyncio.open_connection("127.0.0.1", place.server.port) for _ in range(20)
        ]
        another = await Peer().connect(place.server.port)
        fields = ROOT.sign({}, ())
        answer = await another.connection.request(Code.GET_BROKER_CONFIG, fields=fields, timeout=30)
        assert answer.code == ResponseCode.SUCCESS
        assert (await place.send(ROOT)).code == ResponseCode.SUCCESS, "who was there stays"
        another.connection.close()
        for _, writer in strangers:
            writer.close()


async def test_the_audit_log_names_who_did_what(tmp_path: Path) -> None:
    async with guarded(tmp_path) as place:
        await place.user(NORM)
        await place.rule(NORM, "Topic:T", "Pub")
        await place.ask(ROOT, Code.AUTH_UPDATE_USER, b'{"password":"x"}', username="ghost")
        await place.pull(NORM)
        await place.send(Credentials("ghost", "x"))
    events = place.audit()
    assert [event["event"] for event in events] == [
        "userCreated", "rulesChanged", "userChanged", "denied", "loginFailed",
    ]  # fmt: skip
    created, changed, refused, denied, failed = events
    assert (created["user"], created["target"], created["result"]) == ("root", "norm", "ok")
    assert changed["change"] == "Allow Pub on Topic:T"
    assert refused["result"] == "The user is not exist"
    assert (denied["user"], denied["code"]) == ("norm", Code.PULL_MESSAGE)
    assert failed["user"] == "ghost"
    assert all(event["source"].startswith("127.0.0.1:") for event in events)
    assert "secret" not in (tmp_path / "audit.log").read_text()


async def test_with_access_control_off_nobody_prepares_an_account(tmp_path: Path) -> None:
    async with broker(tmp_path) as server:
        peer = await Peer().connect(server.port)
        body = b'{"password":"x","userType":"Super"}'
        answer = await peer.call(Code.AUTH_CREATE_USER, body, username="evil")
        assert answer.code == DENIED
        assert "access control is off" in (answer.remark or "")
        assert (await peer.succeed(Code.AUTH_LIST_USER)).body == b""
        answer = await peer.call(Code.GET_AUDIT_LOG, count="1")
        assert (answer.remark or "").startswith("access control is off on this server, so it keeps")
        peer.connection.close()


def files_with(root: Path, text: bytes) -> list[str]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return [path.name for path in files if text in path.read_bytes()]


async def test_secrets_are_in_no_log_file_or_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with guarded(tmp_path) as place:
        await place.user(NORM)
        for keys in (NORM, None, Credentials("norm", "bad-secret")):
            await place.send(keys)
        context = place.server._context
        shown = f"{context.tables.access!r} {context.access!r} {context.broker_config!r}"
    for secret in ("root-secret", "norm-secret", "bad-secret"):
        assert secret not in shown
        assert secret not in caplog.text
    with_secret = files_with(tmp_path, b"norm-secret")
    assert set(with_secret) <= {"auth.json", "auth.json.bak"}
