"""Commands that export facts about a cluster, measure it, or show something again and again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rocketpost.admin.main import mqadmin
from rocketpost.cli import rocketpost
from rocketpost.server.up import SingleNode

MINE = "Mine"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[SingleNode]:
    found = SingleNode(tmp_path / "data", settings={"mappedFileSizeCommitLog": "8388608"})
    await found.start()
    yield found
    await found.stop()


async def run(node: SingleNode, *words: str, fails: bool = False) -> Result:
    environment = {"NAMESRV_ADDR": node.address}
    result = await asyncio.to_thread(CliRunner().invoke, mqadmin, words, env=environment)
    assert (result.exit_code != 0) is fails, result.output
    return result


async def make_topic(node: SingleNode) -> None:
    await run(node, "updateTopic", "-c", "DefaultCluster", "-t", MINE, "-r", "4", "-w", "4")
    await run(node, "updateSubGroup", "-c", "DefaultCluster", "-g", "G")


async def exported(node: SingleNode, directory: Path, name: str, *words: str) -> Any:
    """Run a command; return the content of its file, after a comparison with ``--json``."""
    shown = (await run(node, *words, "-f", str(directory))).stdout
    path = directory / name
    assert shown == f"export {path} success\n"
    found = json.loads(path.read_text())
    printed = json.loads((await run(node, *words, "--json")).stdout)
    assert printed.keys() == found.keys()
    assert found.pop("exportTime") > 0
    return found


async def test_metadata(node: SingleNode, tmp_path: Path) -> None:
    await make_topic(node)
    everything = ("exportMetadata", "-c", "DefaultCluster")
    found = await exported(node, tmp_path, "metadata.json", *everything)
    assert found["topicConfigTable"].keys() == {MINE}
    assert found["topicConfigTable"][MINE]["writeQueueNums"] == 4
    assert found["subscriptionGroupTable"].keys() == {"G"}
    topics = await exported(node, tmp_path, "topic.json", *everything, "-t")
    assert topics.keys() == {"topicConfigTable"}
    assert node.broker is not None
    one = ("exportMetadata", "-b", node.broker.address)
    groups = await exported(node, tmp_path, "subscriptionGroup.json", *one, "-g")
    assert groups == {"subscriptionGroupTable": found["subscriptionGroupTable"]}
    await run(node, *everything, "-t", "-g", fails=True)
    (tmp_path / "file").write_text("")
    result = await run(node, *everything, "-f", str(tmp_path / "file" / "x"), fails=True)
    assert "choose another -f" in result.stderr


async def test_exported_topics_and_groups_can_be_imported(node: SingleNode, tmp_path: Path) -> None:
    await make_topic(node)
    metadata = ("exportMetadata", "-c", "DefaultCluster")
    found = await exported(node, tmp_path, "metadata.json", *metadata)
    for table, command in (
        ("topicConfigTable", "updateTopicList"),
        ("subscriptionGroupTable", "updateSubGroupList"),
    ):
        path = tmp_path / "list.json"
        path.write_text(json.dumps(list(found[table].values())))
        await run(node, command, "-c", "DefaultCluster", "-f", str(path))
    assert await exported(node, tmp_path, "metadata.json", *metadata) == found


async def test_configs_and_metrics(node: SingleNode, tmp_path: Path) -> None:
    await make_topic(node)
    found = await exported(node, tmp_path, "configs.json", "exportConfigs", "-c", "DefaultCluster")
    assert found["clusterScale"] == {
        "namesrvSize": 1,
        "masterBrokerSize": 1,
        "slaveBrokerSize": 0,
    }
    assert found["brokerConfigs"]["broker-a"]["flushDiskType"] == "ASYNC_FLUSH"
    await run(node, "sendMessage", "-t", MINE, "-p", "x")
    found = await exported(node, tmp_path, "metrics.json", "exportMetrics", "-c", "DefaultCluster")
    quota = found["evaluateReport"]["broker-a"]["runtimeQuota"]
    assert quota["topicSize"] > 1
    assert found["totalData"]["totalTps"] == quota["tps"]
    assert found["totalData"]["totalOneDayNum"] == quota["oneDayNum"]


async def test_cluster_rt(node: SingleNode) -> None:
    few = ("clusterRT", "-a", "3", "-i", "0.1", "-r")
    lines = (await run(node, *few, "2")).stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["Name", "broker-a", "Name", "broker-a"]
    assert lines[1].split()[-2:] == ["3", "0"]
    log = (await run(node, *few, "1", "-p", "true", "-m", "room")).stdout
    assert log.split("|")[1:4] == ["room", "DefaultCluster", "broker-a"]
    (row,) = json.loads((await run(node, *few, "1", "--json")).stdout)
    assert (row["brokerName"], row["sent"], row["failed"]) == ("broker-a", 3, 0)


@pytest.mark.slow
async def test_watching_shows_it_again_until_it_is_stopped(node: SingleNode) -> None:
    code = "from rocketpost.admin.main import mqadmin; mqadmin()"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, "topicList", "--watch", "0.1",
        env=os.environ | {"NAMESRV_ADDR": node.address}, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    seen: list[str] = []
    async with asyncio.timeout(60):
        while sum(line.startswith("Every 0.1 s: ") for line in seen) < 3:
            seen.append((await process.stdout.readline()).decode())
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 1
    assert "TBW102\n" in seen
    assert not any("\x1b" in line for line in seen)  # a pipe gets no control sequences


async def test_health(node: SingleNode) -> None:
    assert node.broker is not None
    words = ["health", "-b", node.broker.address, "-n", node.address, "--timeout", "5"]
    result = await asyncio.to_thread(CliRunner().invoke, rocketpost, words)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"name server {node.address} ready",
        f"broker {node.broker.address} ready",
    ]
    node.broker._context.store.set_disk_full("the disk is 99 % full")
    result = await asyncio.to_thread(CliRunner().invoke, rocketpost, [*words, "--json"])
    assert result.exit_code == 1
    _, broker = json.loads(result.stdout)
    assert "the disk is 99 % full" in broker["reasons"][0]
    nobody = ["health", "-b", "127.0.0.1:1", "--timeout", "5"]
    result = await asyncio.to_thread(CliRunner().invoke, rocketpost, nobody)
    assert result.exit_code == 1
    assert "broker 127.0.0.1:1 not ready: cannot connect" in result.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    text = CliRunner().invoke(rocketpost, ["completion", shell]).stdout
    assert "_MQADMIN_COMPLETE" in text
    assert "_ROCKETPOST_COMPLETE" in text
