"""Tools for a group: ``rocketpost group``, and the commands of ``mqadmin`` for controllers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rocketpost.admin.main import mqadmin
from rocketpost.cli import rocketpost
from rocketpost.testing.waiting import until

from .group_brokers import NODES, TOPIC, Group, group_of_three
from .replicas import name_server


class Tools:
    """Runs commands against the name server of a group."""

    def __init__(self, group: Group, name_server: str) -> None:
        self.group = group
        self.name_server = name_server

    async def run(self, *words: str, fails: bool = False) -> str:
        """Run a command of ``rocketpost`` or ``mqadmin``; returns its output."""
        command = rocketpost if words[0] == "group" else mqadmin
        environment = {"NAMESRV_ADDR": self.name_server}
        result = await asyncio.to_thread(CliRunner().invoke, command, words, env=environment)
        assert (result.exit_code != 0) is fails, result.output
        return result.output

    async def json(self, *words: str) -> Any:
        return json.loads(await self.run(*words, "--json"))

    def address(self, node: str) -> str:
        """Return the address of a member for clients."""
        return f"127.0.0.1:{self.group.servers[node].port}"


@pytest.fixture
async def tools(tmp_path: Path) -> AsyncIterator[Tools]:
    async with (
        name_server(tmp_path) as address,
        group_of_three(tmp_path, namesrvAddr=address) as group,
    ):
        leader = await group.leader()
        await group.send(leader, 5)
        await group.until_registered(address, leader)
        yield Tools(group, address)


async def test_status_shows_every_member(tools: Tools) -> None:
    leader = await tools.group.leader()
    await tools.group.check()
    text = await tools.run("group", "status")
    assert f"group g, term 1, leader {leader}, committed up to" in text
    rows = [line.split() for line in text.splitlines() if line[:3].strip() in NODES]
    assert [(row[0], row[1], row[6]) for row in rows] == [
        (node, "LEADER" if node == leader else "FOLLOWER", "ok") for node in NODES
    ]
    found = await tools.json("group", "status")
    assert {each["member"] for each in found.values()} == set(NODES)


@pytest.mark.parametrize(
    ("is_stopped", "problem"), [(True, "Connection refused"), (False, "it does not answer")]
)
async def test_a_lost_member_is_not_in_sync(
    tools: Tools, *, is_stopped: bool, problem: str
) -> None:
    leader = await tools.group.leader()
    lost = next(node for node in NODES if node != leader)
    if is_stopped:
        await tools.group.stop([lost])
    else:
        tools.group.isolate(lost)
    member = tools.group.member(leader)
    await until(lambda: problem in str(member.member_status()))
    state = "no answer" if is_stopped else "not reached"
    assert f"{state}: {problem}" in await tools.run("group", "status", fails=True)
    address = tools.address(leader)
    status = await tools.json("haStatus", "-b", address)
    assert status[address]["inSyncSlaveNums"] == 1
    states = await tools.json("getSyncStateSet", "-a", address, "-b", "broker-g")
    far = states["broker-g"]["notInSyncReplicas"]
    assert [(each["brokerId"], each["alive"]) for each in far] == [(int(lost[1:]) + 1, False)]


async def test_leadership_is_handed_over(tools: Tools) -> None:
    old = await tools.group.leader()
    to = next(node for node in NODES if node != old)
    assert f"{to} leads the group g in term" in await tools.run("group", "transfer", to)
    assert await tools.group.leader() == to
    await tools.group.send(to, 5)
    await tools.group.until_registered(tools.name_server, to)
    text = await tools.run("group", "transfer", "n7", fails=True)
    assert "n7 is no voter of the group" in text


async def test_a_drained_leader_hands_over_and_is_needed_by_nobody(tools: Tools) -> None:
    old = await tools.group.leader()
    text = await tools.run("group", "drain", old, "--routes", "0")
    assert f"no client takes {old} for the leader; stop it now" in text
    assert await tools.group.leader() != old
    text = await tools.run("group", "drain", "n7", fails=True)
    assert "n7 is no member of the group" in text


async def test_a_member_that_clients_use_is_not_drained(tools: Tools) -> None:
    old = await tools.group.leader()
    await tools.run("group", "transfer")
    async with asyncio.TaskGroup() as tasks:
        clients = tasks.create_task(_send_always(tools.group, old))
        text = await tools.run("group", "drain", old, "--wait", "4", fails=True)
        clients.cancel()
    assert f"clients still send requests for the leader to {old} after 4 s" in text


async def _send_always(group: Group, node: str) -> None:
    while True:
        await group.send(node, 1)
        await asyncio.sleep(0.2)


async def test_a_member_is_added_and_another_removed(tools: Tools) -> None:
    group = tools.group
    address = group.new_member("n3")
    await group.start(["n3"])
    text = await tools.run("group", "add", "n3", address)
    assert text.splitlines()[-1] == "n3 votes"
    leader = await group.leader()
    gone = next(node for node in NODES if node != leader)
    assert f"{gone} is removed" in await tools.run("group", "remove", gone)
    await group.stop([gone])
    status = await tools.json("group", "status")
    members = {each["name"] for view in status.values() for each in view["members"]}
    assert members == {*NODES, "n3"} - {gone}
    await group.send(await group.leader(), 5)
    await group.check()
    leader = await group.leader()
    text = await tools.run("group", "remove", leader)
    places = [text.index(each) for each in ("leads the group", f"{leader} is removed", "2 voters")]
    assert places == sorted(places), "it hands over first"
    await group.send(await group.leader(), 5)
    for words, reason in [
        (("remove", "n9"), "n9 is no member"),
        (("add", "x", "127.0.0.1:1"), "use a letter and a number"),
        (("add", "n3", "127.0.0.1:1"), "remove it first"),
    ]:
        assert reason in await tools.run("group", *words, fails=True)


async def test_commands_for_controllers_work_for_a_group(tools: Tools) -> None:
    leader = await tools.group.leader()
    other = next(node for node in NODES if node != leader)
    at = ("-a", tools.address(other))
    await tools.group.check()
    meta = await tools.json("getControllerMetaData", *at)
    assert meta["controllerLeaderId"] == leader
    state = (await tools.json("getSyncStateSet", *at, "-b", "broker-g"))["broker-g"]
    assert state["masterBrokerId"] == int(leader[1:]) + 1
    assert sorted(each["brokerId"] for each in state["inSyncReplicas"]) == [1, 2, 3]
    assert "#SyncStateSetNums\t3" in await tools.run("getSyncStateSet", *at, "-c", "DefaultCluster")
    epochs = await tools.json("getBrokerEpoch", "-b", "broker-g")
    assert [[each["epoch"] for each in found["epochList"]] for found in epochs.values()] == [
        [1]
    ] * 3
    status = await tools.json("haStatus", "-b", tools.address(leader))
    assert status[tools.address(leader)]["inSyncSlaveNums"] == 2
    number = int(other[1:]) + 1
    words = ("-b", str(number), "-bn", "broker-g", "-c", "DefaultCluster")
    text = await tools.run("electMaster", *at, *words)
    assert f"#BrokerMasterAddr\t{tools.address(other)}" in text
    await tools.group.send(await tools.group.leader(but=leader), 5)
    text = await tools.run("electMaster", *at, "-b", "9", *words[2:], fails=True)
    assert "no member has the id 9" in text


async def test_explain_says_on_which_members_a_message_is(tools: Tools) -> None:
    leader = await tools.group.leader()
    await tools.group.check()
    async with tools.group.client(leader) as peer:
        answer = await peer.send(TOPIC, b"explained")
    await tools.group.check()
    message = answer.fields["msgId"]
    async with asyncio.timeout(15):
        while "committed by g, on n0, n1, n2" not in await tools.run(
            "explain", "-t", TOPIC, message
        ):
            await asyncio.sleep(0.1)  # a member's last report may be on its way
    (found,) = await tools.json("explain", "-t", TOPIC, message)
    assert found["brokerGroup"]["committed"] is True
    assert found["brokerGroup"]["members"] == list(NODES)
