"""Users and rules of a master at its slave: they follow, and outlive a promotion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocketpost.client.credentials import Credentials
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.server.broker import BrokerServer
from rocketpost.server.follower_term import FollowerTerm
from rocketpost.testing.waiting import until

from .secured import (
    GUARDED,
    INNER,
    Caller,
    allow,
    broker_values,
    caller,
    make_user,
    name_server,
    ok,
    running,
    secret_key,
)
from .settings.harness import until as until_true

pytestmark = pytest.mark.slow

READER = Credentials("reader", "reader-secret")
OTHER = Credentials("other", "other-secret")
OWN = {"slaveReadEnable": "true"}


def slave_values(root: Path, names: str, **more: str) -> dict[str, str]:
    roles = {"brokerRole": "SLAVE", "brokerId": "1"}
    return broker_values(root / "slave", namesrvAddr=names, **GUARDED | OWN | roles | more)


async def pull(client: Caller, port: int) -> Command:
    return await client.ask(
        port, Code.PULL_MESSAGE, consumerGroup="G", topic="T", queueId=0, queueOffset=0,
        maxMsgNums=32, sysFlag=4, commitOffset=0, suspendTimeoutMillis=0, subscription="*",
        subVersion=0,
    )  # fmt: skip


def names_of(server: BrokerServer) -> set[str]:
    return {user.name for user in server._context.tables.access.users}


def problem_of(slave: BrokerServer) -> str:
    term = slave._term
    assert isinstance(term, FollowerTerm)
    return term.tables.runtime_values()["tablesFollowProblem"]


@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "clear"])
async def test_users_and_rules_follow_and_outlive_a_promotion(
    tmp_path: Path, is_sealed: bool
) -> None:
    more = secret_key(tmp_path) if is_sealed else {}
    async with (
        name_server(tmp_path, GUARDED) as names,
        caller() as root,
        caller(READER) as reader,
        caller(OTHER) as other,
    ):
        master = BrokerServer(
            broker_values(tmp_path / "master", namesrvAddr=names, **GUARDED | OWN | more)
        )
        slave = BrokerServer(slave_values(tmp_path, names, **more))
        async with running(master, slave):
            await root.send(master.port, b"body")
            await make_user(root, master.port, READER)
            await make_user(root, master.port, OTHER)
            await allow(root, master.port, READER, "Topic:T", "Sub")
            await allow(root, master.port, READER, "Group:G", "Sub")
            theirs, ours = master._context.tables.access, slave._context.tables.access
            await until(lambda: ours.users == theirs.users)
            await until(lambda: list(ours.all_rules()) == list(theirs.all_rules()))
            await until(lambda: slave._context.store.confirmed_position > 0)

            async def is_served() -> bool:
                return (await pull(reader, slave.port)).code == ResponseCode.SUCCESS

            await until_true(is_served)
            assert (await pull(other, slave.port)).code == ResponseCode.NO_PERMISSION
            # A slave takes no changes: its master would not know of them.
            info = json.dumps({"username": "new", "password": "new-secret"}).encode()
            refused = await root.ask(slave.port, Code.AUTH_CREATE_USER, info, username="new")
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "send it to the leader" in (refused.remark or "")
            await ok(root, master.port, Code.AUTH_DELETE_USER, username=OTHER.access_key)
            await until(lambda: OTHER.access_key not in names_of(slave))
        saved = (tmp_path / "slave" / "store" / "config" / "auth.json").read_bytes()
        assert (READER.secret_key.encode() in saved) is not is_sealed
        promoted = slave_values(tmp_path, names, **more) | {
            "brokerRole": "ASYNC_MASTER",
            "brokerId": "0",
        }
        del promoted["initAuthenticationUser"]
        new = BrokerServer(promoted)
        async with running(new):
            assert names_of(new) == {"root", INNER.access_key, READER.access_key}
            assert (await pull(reader, new.port)).code == ResponseCode.SUCCESS
            assert (await reader.send(new.port, b"x")).code == ResponseCode.NO_PERMISSION
            assert (await root.send(new.port, b"x")).code == ResponseCode.SUCCESS


async def test_a_slave_says_why_it_gets_no_users(tmp_path: Path) -> None:
    """Secrets are for super users: the user of the brokers has become a normal one."""

    def kind(name: str) -> bytes:
        return json.dumps({"username": INNER.access_key, "userType": name}).encode()

    async with name_server(tmp_path, GUARDED) as names, caller() as root:
        master = BrokerServer(broker_values(tmp_path / "master", namesrvAddr=names, **GUARDED))
        slave = BrokerServer(slave_values(tmp_path, names))
        async with running(master):
            await allow(root, master.port, INNER, "Cluster:*", "Get", "Update")
            await allow(root, master.port, INNER, "Topic:*", "Get", "List")
            user = {"username": INNER.access_key}
            await ok(root, master.port, Code.AUTH_UPDATE_USER, kind("Normal"), **user)
            async with running(slave):
                await until(lambda: "sends no users and rules" in problem_of(slave))
                await make_user(root, master.port, READER)
                await root.send(master.port, b"body")
                await until(
                    lambda: (
                        slave._context.store.confirmed_position
                        == master._context.store.confirmed_position
                    )
                )
                assert READER.access_key not in names_of(slave)
                await ok(root, master.port, Code.AUTH_UPDATE_USER, kind("Super"), **user)
                await until(lambda: READER.access_key in names_of(slave), seconds=20)
                await until(lambda: not problem_of(slave))
