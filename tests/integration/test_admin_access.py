"""The commands of mqadmin about users and rules, on a broker and a name server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from rocketpost.admin.main import mqadmin
from rocketpost.server.broker import BrokerServer
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig
from rocketpost.settings import build

from .state.harness import broker

ACCESS: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "innerClientAuthenticationCredentials": '{"accessKey":"root","secretKey":"root-secret"}',
}
KEYS: Final = {"ROCKETMQ_ACCESS_KEY": "root", "ROCKETMQ_SECRET_KEY": "root-secret"}


class Tool:
    """Runs commands as the super user."""

    def __init__(self, name_server: str, server: BrokerServer) -> None:
        self.name_server = name_server
        self.broker = server.address

    async def fails(self, *args: str, **environment: str) -> str:
        done = await self._run(args, KEYS | environment)
        assert done[0] == 1, done
        return done[1]

    async def __call__(self, *args: str, stdin: str | None = None) -> str:
        code, output = await self._run(args, KEYS, stdin)
        assert code == 0, output
        return output

    async def _run(
        self, args: tuple[str, ...], environment: dict[str, str], stdin: str | None = None
    ) -> tuple[int, str]:
        runner = CliRunner(env=environment)
        full = [args[0], "-n", self.name_server, *args[1:]]
        done = await asyncio.to_thread(runner.invoke, mqadmin, full, input=stdin)
        return done.exit_code, done.output


@pytest.fixture
async def tool(tmp_path: Path) -> AsyncIterator[Tool]:
    async with cluster(tmp_path) as tool:
        yield tool


@asynccontextmanager
async def cluster(root: Path, **settings: str) -> AsyncIterator[Tool]:
    access = ACCESS | settings
    own = {"listenPort": "0", "bindAddress": "127.0.0.1", "authConfigPath": str(root / "ns")}
    namesrv = NameServer(build(NamesrvConfig, own | {"kvConfigPath": ""} | access))
    await namesrv.start()
    try:
        async with broker(root / "store", namesrvAddr=namesrv.address, **access) as server:
            assert server.unregistered == []
            yield Tool(namesrv.address, server)
    finally:
        await namesrv.stop()


async def test_users(tool: Tool) -> None:
    everywhere = ("-c", "DefaultCluster")
    created = await tool("createUser", *everywhere, "-u", "norm", "-p", "-", stdin="norm-secret\n")
    assert created.splitlines() == [
        f"create user to {tool.broker} success.",
        f"create user to {tool.name_server} success.",
    ]
    for address in (tool.broker, tool.name_server):
        shown = await tool("getUser", "-b", address, "-u", "norm")
        assert shown.splitlines()[1].split() == ["norm", "norm-secret", "Normal", "enable"]
    await tool("updateUser", *everywhere, "-u", "norm", "-s", "disable")
    assert "disable" in await tool("listUser", *everywhere, "-f", "nor")
    assert "refused with code 16" in await tool.fails(
        "createUser", *everywhere, "-u", "norm", "-p", "x"
    )
    await tool("deleteUser", *everywhere, "-u", "norm")
    for command in ("getUser", "deleteUser"):
        said = await tool.fails(command, *everywhere, "-u", "norm")
        assert "DefaultCluster has no user norm" in said
    assert "check signature failed" in await tool.fails(
        "listUser", "-b", tool.broker, ROCKETMQ_SECRET_KEY="wrong"
    )


async def test_rules(tool: Tool) -> None:
    here = ("-b", tool.broker)
    await tool("createUser", *here, "-u", "norm", "-p", "norm-secret")
    rule = ("-s", "User:norm", "-r", "Topic:T,Topic:pre*", "-a", "Pub,Sub", "-d", "Allow")
    assert await tool("createAcl", *here, *rule) == f"create acl to {tool.broker} success.\n"
    shown = (await tool("getAcl", *here, "-s", "User:norm")).splitlines()
    assert shown[0].split()[:3] == ["#Subject", "#PolicyType", "#Resource"]
    assert "[Pub, Sub]" in shown[1]
    assert "null" in shown[1]

    async def verdict(action: str, resource: str, *more: str) -> str:
        return (await tool("access", "norm", action, resource, *here, *more)).strip()

    assert await verdict("Pub", "Topic:prefix") == (
        f"{tool.broker}: allowed, Custom rule: Allow Pub,Sub on Topic:pre*"
    )
    assert await verdict("Get", "Topic:T") == f"{tool.broker}: denied, no rule matches"
    limited = ("-s", "User:norm", "-r", "Topic:T", "-a", "Get", "-d", "Allow", "-i", "10.0.0.0/8")
    await tool("updateAcl", *here, *limited)
    assert "denied" in await verdict("Get", "Topic:T", "-i", "11.0.0.1")
    assert "allowed" in await verdict("Get", "Topic:T", "-i", "10.0.0.1")
    assert "pre*" not in await tool("listAcl", *here, "-r", "Topic:T")
    await tool("deleteAcl", *here, "-s", "User:norm", "-r", "Topic:T")
    for resource in ("Topic:T", "Group:ghost"):
        said = await tool.fails("deleteAcl", *here, "-s", "User:norm", "-r", resource)
        assert f"User:norm has no rule for {resource} at {tool.broker}" in said
    assert "denied" in await verdict("Get", "Topic:T", "-i", "10.0.0.1")
    await tool("deleteAcl", *here, "-s", "User:norm")
    assert await tool("listAcl", *here) == ""
    assert "acl is not exist" in await tool.fails("deleteAcl", *here, "-s", "User:norm")
    assert "no user ghost" in await tool("access", "ghost", "Pub", "Topic:T", *here)


@pytest.mark.parametrize(
    ("authentication", "user", "verdict"),
    [
        ("false", "ghost", "allowed, access control is off: everybody may do everything"),
        ("true", "ghost", "denied, there is no user ghost"),
        ("true", "norm", "allowed, authorizationEnabled is false: every user may do everything"),
    ],
)
async def test_a_server_that_checks_no_rights_says_so(
    tmp_path: Path, authentication: str, user: str, verdict: str
) -> None:
    switches = {"authenticationEnabled": authentication, "authorizationEnabled": "false"}
    async with cluster(tmp_path, **switches) as tool:
        here = ("-b", tool.broker)
        if authentication == "true":
            await tool("createUser", *here, "-u", "norm", "-p", "norm-secret")
        told = await tool("access", user, "Pub", "Topic:T", *here)
        assert told.strip() == f"{tool.broker}: {verdict}"


async def test_copies(tool: Tool) -> None:
    here, there = tool.broker, tool.name_server
    await tool("createUser", "-b", here, "-u", "norm", "-p", "norm-secret")
    rule = ("-s", "User:norm", "-r", "Topic:T", "-a", "Pub", "-d", "Deny")
    await tool("createAcl", "-b", here, *rule)
    copied = await tool("copyUser", "-f", here, "-t", there, "-u", "norm")
    assert copied == f"copy user of norm from {here} to {there} success.\n"
    missing = await tool.fails("copyUser", "-f", here, "-t", there, "-u", "ghost,norm")
    assert f"{here} has no user ghost; nothing was copied" in missing
    await tool("copyUser", "-f", here, "-t", there)
    await tool("copyAcl", "-f", here, "-t", there)
    assert "norm-secret" in await tool("getUser", "-b", there, "-u", "norm")
    assert "Deny" in await tool("getAcl", "-b", there, "-s", "User:norm")


async def test_the_audit_log(tool: Tool) -> None:
    for address in (tool.broker, tool.name_server):
        await tool("createUser", "-b", address, "-u", "norm", "-p", "norm-secret")
        await tool.fails("listUser", "-b", address, ROCKETMQ_SECRET_KEY="wrong")
        norm = {"ROCKETMQ_ACCESS_KEY": "norm", "ROCKETMQ_SECRET_KEY": "norm-secret"}
        await tool.fails("listUser", "-b", address, **norm)
        head, *lines = (await tool("auditLog", "-b", address)).splitlines()
        assert head.split()[:4] == ["#Time", "#Event", "#User", "#Source"]
        found = [line.split()[1:3] for line in lines]
        assert found[0] == ["userCreated", "root"]
        assert ["denied", "norm"] in found
        assert ["loginFailed", "root"] in found
        only = await tool("auditLog", "-b", address, "-e", "denied", "-u", "norm", "-l", "1")
        assert len(only.splitlines()) == 2
        assert "request 3005" in only
        assert "norm-secret" not in await tool("auditLog", "-b", address, "--json")
        assert "no permission" in await tool.fails("auditLog", "-b", address, **norm)
    await tool(
        "createAcl", "-b", tool.broker, "-s", "User:norm", "-r", "Cluster:DefaultCluster",
        "-a", "Get", "-d", "Allow",
    )  # fmt: skip
    assert "only super users" in await tool.fails("auditLog", "-b", tool.broker, **norm)
