"""Access control in a group: requests that followers pass on, users after a change of leader."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.client.credentials import Credentials
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.testing.secure.certificates import CertificateFolder
from rocketpost.testing.waiting import until
from rocketpost.transport.connection import Connection

from .group_brokers import Group
from .secured import (
    GUARDED,
    INNER,
    ROOT,
    Caller,
    allow,
    caller,
    make_user,
    ok,
    secret_key,
    tls_values,
)

NORM = Credentials("norm", "norm-secret")
DENIED = ResponseCode.NO_PERMISSION


@contextlib.asynccontextmanager
async def guarded_group(root: Path, **more: object) -> AsyncIterator[Group]:
    group = Group(root, **GUARDED, **secret_key(root), **more)
    await group.start()
    try:
        yield group
    finally:
        await group.stop()


class From(Caller):
    """A client at an address of its own."""

    def __init__(self, keys: Credentials, host: str) -> None:
        super().__init__(keys)
        self._keys = keys
        self._host = host

    async def ask(self, port: int, code: int, body: bytes = b"", **fields: object) -> Command:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(on_request=lambda _, command: None, sign=self._keys.sign),
            "127.0.0.1",
            port,
            local_addr=(self._host, 0),
        )
        try:
            texts = {name: str(value) for name, value in fields.items()}
            return await connection.request(code, fields=texts, body=body, timeout=30)
        finally:
            connection.close()
            await connection.wait_closed()


def knows(group: Group, node: str, keys: Credentials, rules: int = 0) -> bool:
    table = group.servers[node]._context.tables.access
    user = table.user(keys.access_key)
    if user is None or user.secret != keys.secret_key:
        return False
    return sum(map(len, table.policies(keys.access_key).values())) >= rules


async def test_followers_pass_on_signed_requests_with_the_address_of_the_client(
    tmp_path: Path,
) -> None:
    async with guarded_group(tmp_path) as group, caller() as root:
        leader = await group.leader()
        follower = next(node for node in group.servers if node != leader)
        port, led = group.servers[follower].port, group.servers[leader].port
        await make_user(root, port, NORM)  # this is passed on, too
        await allow(root, led, NORM, "Topic:T", "Pub", sources=["127.0.0.2"])
        await until(lambda: knows(group, follower, NORM, 1))
        near, far = From(NORM, "127.0.0.1"), From(NORM, "127.0.0.2")
        sent = await far.send(port, b"by way of a follower")
        assert sent.code == ResponseCode.SUCCESS, sent.remark
        refused = await near.send(port, b"from elsewhere")
        assert refused.code == DENIED
        assert "from 127.0.0.1" in (refused.remark or "")
        other = await far.send(port, b"no right", topic="Other")
        assert other.code == DENIED
        wrong = From(Credentials("norm", "guessed"), "127.0.0.2")
        assert (await wrong.send(port, b"wrong signature")).code == DENIED
        assert (await Caller(None).send(port, b"not signed")).code == DENIED
        assert int(group.servers[follower]._group.forwarding.passed_on) >= 4


async def test_nobody_else_can_claim_to_pass_requests_on(tmp_path: Path) -> None:
    """Neither a user, nor a server that has not logged in over this connection."""
    async with guarded_group(tmp_path) as group, caller() as root:
        led = group.servers[await group.leader()].port
        await make_user(root, led, NORM)
        await allow(root, led, NORM, "Topic:T", "Pub", sources=["127.0.0.2"])
        message: dict[str, object] = {
            "producerGroup": "P", "topic": "T", "defaultTopic": "TBW102",
            "defaultTopicQueueNums": 1, "queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0,
        }  # fmt: skip
        claim: dict[str, object] = {"passedOn": "127.0.0.2", "passedOnUser": "root"}
        for keys in (NORM, None):
            async with caller(keys) as client:
                answer = await client.ask(led, Code.SEND_MESSAGE, b"x", **message | claim)
                assert answer.code == DENIED, keys
        async with caller(INNER) as server:
            nonce = await ok(server, led, Code.LOG_IN_MEMBER, nonce="00" * 32)
            assert len(bytes.fromhex(nonce.fields["nonce"])) == 32
            wrong = await server.ask(led, Code.LOG_IN_MEMBER, proof="00" * 32)
            assert (wrong.code, wrong.remark) == (DENIED, "the proof of this member is wrong")
            again = await server.ask(led, Code.LOG_IN_MEMBER, proof="00" * 32)
            assert again.code != ResponseCode.SUCCESS
            assert (await server.ask(led, Code.LOG_IN_MEMBER, nonce="zz")).code != 0
        async with caller(NORM) as client:
            refused = await client.ask(led, Code.LOG_IN_MEMBER, nonce="00" * 32)
            assert refused.code == DENIED


@pytest.mark.slow
async def test_followers_pass_requests_on_over_tls(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = CertificateFolder(tmp_path_factory.mktemp("certificates"))
    async with (
        guarded_group(tmp_path, **tls_values(folder)) as group,
        caller(ROOT, folder.root) as root,
    ):
        leader = await group.leader()
        for node, server in group.servers.items():
            sent = await root.send(server.port, node.encode())
            assert sent.code == ResponseCode.SUCCESS, sent.remark
        followers = [server for node, server in group.servers.items() if node != leader]
        assert all(each._group.forwarding.passed_on for each in followers)


@pytest.mark.slow
async def test_the_next_leader_knows_users_and_rules(tmp_path: Path) -> None:
    """Never more rights than before, and none lost after its answer."""
    async with guarded_group(tmp_path) as group, caller() as root:
        leader = await group.leader()
        port = group.servers[leader].port
        await make_user(root, port, NORM)
        await allow(root, port, NORM, "Topic:T", "Pub")
        gone = Credentials("gone", "gone-secret")
        await make_user(root, port, gone)
        await allow(root, port, gone, "Topic:T", "Pub")
        await ok(root, port, Code.AUTH_DELETE_USER, username="gone")
        await group.stop([leader])
        second = group.servers[await group.leader(but=leader)].port
        async with caller(NORM) as norm, caller(gone) as ghost:
            assert (await norm.send(second, b"allowed")).code == ResponseCode.SUCCESS
            assert (await norm.send(second, b"never", topic="Other")).code == DENIED
            assert (await ghost.send(second, b"deleted")).code == DENIED
        # A member that was away takes over what happened meanwhile.
        await ok(root, second, Code.AUTH_UPDATE_USER, b'{"userStatus":"disable"}', username="norm")
        await group.start([leader])
        table = group.servers[leader]._context.tables.access

        def is_disabled() -> bool:
            user = table.user("norm")
            return user is not None and not user.is_enabled

        await until(is_disabled)
        assert table.user("gone") is None
