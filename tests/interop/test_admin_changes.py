"""Changes of topics and groups: our tool at Apache's broker, and Apache's tool at ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from interop.peer import Peer
from interop.servers import SMALL_STORE, Cluster, Maker
from rocketpost.admin.main import mqadmin

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def apache(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("apache"), "apache", settings=SMALL_STORE) as cluster:
        yield cluster


def run(cluster: Cluster, *words: str) -> Result:
    return CliRunner().invoke(mqadmin, words, env={"NAMESRV_ADDR": cluster.namesrv})


def read(cluster: Cluster, *words: str) -> Any:
    result = run(cluster, *words, "--json")
    assert result.exit_code == 0, (words, result.stdout, result.stderr, result.exception)
    return json.loads(result.stdout)


def test_our_tool_keeps_what_it_is_not_given_at_apaches_broker(apache: Cluster) -> None:
    topic = ("updateTopic", "-b", apache.broker, "-t", "Kept")
    read(apache, *topic, "-r", "16", "-w", "16", "-a", "+message.type=NORMAL")
    read(apache, *topic, "-o", "true")
    [config] = read(apache, "topicConfig", "-t", "Kept").values()
    assert (config["readQueueNums"], config["writeQueueNums"]) == (16, 16)
    assert config["attributes"] == {"message.type": "NORMAL"}
    read(apache, "sendMessage", "-t", "Kept", "-p", "hello", "-b", "broker-a", "-i", "9")
    refused = run(apache, *topic, "-r", "8", "-w", "8")
    assert refused.exit_code == 1
    assert "messages in queue 9" in refused.stderr
    read(apache, *topic, "-r", "8", "-w", "8", "--yes")
    assert read(apache, "topicConfig", "-t", "Kept")["broker-a"]["readQueueNums"] == 8
    group = ("updateSubGroup", "-b", apache.broker, "-g", "kept")
    read(apache, *group, "-q", "3", "-d", "true")
    [step] = read(apache, *group, "-r", "5")
    assert step["action"] == "changed"
    [found] = read(apache, "getConsumerConfig", "-g", "kept").values()
    assert (found["retryQueueNums"], found["retryMaxTimes"]) == (3, 5)
    assert found["consumeBroadcastEnable"] is True


def test_apaches_tool_hides_no_messages_at_our_broker(
    peer: Peer, cluster: Cluster, topic: str, target: Maker
) -> None:
    if target != "rocketpost":
        pytest.skip("Apache's broker does what it is told")
    read(cluster, "sendMessage", "-t", topic, "-p", "hello", "-b", "broker-a", "-i", "3")
    line = f"updateTopic -b {cluster.broker} -t {topic} -r 2 -w 2"
    assert "success" not in peer.mqadmin(cluster.namesrv, line)
    assert read(cluster, "topicConfig", "-t", topic)["broker-a"]["readQueueNums"] == 4
