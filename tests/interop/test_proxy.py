"""Java clients of the remoting protocol behind our proxy, in front of two brokers."""

from __future__ import annotations

import contextlib
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.peer import Peer, named
from interop.process import Server
from interop.servers import BROKER_READY, SMALL_STORE, Cluster
from rocketpost.testing.process import free_port

pytestmark = pytest.mark.interop

SETTINGS = {**SMALL_STORE, "transactionCheckInterval": "2000", "transactionTimeOut": "1000"}
NAMES = ("broker-a", "broker-b")


class Proxied:
    """Two brokers, and the address of the proxy that stands for all of them."""

    def __init__(self, cluster: Cluster, brokers: dict[str, str], proxy: str) -> None:
        self.namesrv = cluster.namesrv
        self.brokers = brokers
        self.proxy = proxy


@pytest.fixture(scope="module")
def peer(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A Java client of a release that names brokers in its requests."""
    with Peer("5.3", tmp_path_factory.mktemp("peer")) as running:
        yield running


@pytest.fixture(scope="module")
def proxied(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    directory = tmp_path_factory.mktemp("proxied")
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(directory, "rocketpost", settings=SETTINGS))
        second = free_port()
        config = directory / "second.conf"
        values = {
            **SETTINGS,
            "brokerName": NAMES[1],
            "brokerIP1": "127.0.0.1",
            "listenPort": str(second),
            "namesrvAddr": cluster.namesrv,
            "storePathRootDir": str(directory / "second"),
        }
        config.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        _start(stack, directory, "mqbroker", ["-c", str(config)], BROKER_READY)
        port = free_port()
        settings = directory / "rmq-proxy.json"
        settings.write_text(json.dumps({"grpcServerPort": 0, "remotingListenPort": port}))
        words = ["-n", cluster.namesrv, "-pc", str(settings)]
        _start(stack, directory, "mqproxy", words, r"The proxy\[.*\] boot success")
        addresses = dict(zip(NAMES, (cluster.broker, f"127.0.0.1:{second}"), strict=True))
        yield Proxied(cluster, addresses, f"127.0.0.1:{port}")


def _start(
    stack: contextlib.ExitStack, directory: Path, program: str, words: list[str], ready: str
) -> None:
    command = [sys.executable, "-m", "rocketpost.server", program, *words]
    log = directory / f"second-{program}.log"
    server = Server.start(program, command, ready=ready, log=log)
    stack.callback(server.kill)


@pytest.fixture
def topic(proxied: Proxied, peer: Peer, request: pytest.FixtureRequest) -> str:
    """A topic of both brokers, which nobody has used."""
    name = request.node.name.replace("test_", "")[:40]
    for address in proxied.brokers.values():
        made = peer.mqadmin(proxied.namesrv, f"updateTopic -b {address} -t {name} -r 4 -w 4")
        assert "success" in made
    return name


def test_messages_of_both_brokers(proxied: Proxied, peer: Peer, topic: str) -> None:
    common = {"namesrv": proxied.proxy, "topic": topic}
    sent = named(peer.run("send", **common, count=32, tags="red,blue"), "sent")
    assert [each["status"] for each in sent] == ["SEND_OK"] * 32
    events = peer.run("push", **common, group=f"g-{topic}", expression="red", count=16)
    found = named(events, "message")
    assert sorted(each["body"] for each in found) == sorted(f"body-{i}" for i in range(0, 32, 2))
    hosts = {each["storeHost"].lstrip("/") for each in found}
    assert hosts == set(proxied.brokers.values())
    # Offsets were stored at the brokers: nothing comes again.
    again = peer.run("push", **common, group=f"g-{topic}", expression="red", count=1, timeout=5)
    assert named(again, "message") == []


def test_queues_that_are_locked(proxied: Proxied, peer: Peer, topic: str) -> None:
    common = {"namesrv": proxied.proxy, "topic": topic}
    peer.run("send", **common, count=40)
    events = peer.run("push", **common, group=f"g-{topic}", orderly=1, count=40)
    queues: dict[tuple[str, int], list[int]] = defaultdict(list)
    for message in named(events, "message"):
        queues[message["storeHost"], message["queueId"]].append(message["queueOffset"])
    assert sum(map(len, queues.values())) == 40
    for offsets in queues.values():
        assert offsets == list(range(len(offsets)))


def test_a_refused_message(proxied: Proxied, peer: Peer, topic: str) -> None:
    common = {"namesrv": proxied.proxy, "topic": topic}
    peer.run("send", **common)
    events = peer.run("push", **common, group=f"g-{topic}", refuse=1, count=2, timeout=60)
    first, second = named(events, "message")
    assert (first["reconsumeTimes"], second["reconsumeTimes"]) == (0, 1)


def test_a_transaction_that_is_asked_about(proxied: Proxied, peer: Peer, topic: str) -> None:
    common = {"namesrv": proxied.proxy, "topic": topic, "group": f"g-{topic}"}
    args = {"decision": "UNKNOW", "checked": "COMMIT_MESSAGE", "checks": 1, "linger": 500}
    events = peer.run("transaction", **common, tags="T", **args)
    [sent] = named(events, "sent")
    assert [each["properties"]["UNIQ_KEY"] for each in named(events, "checked")] == [sent["msgId"]]
    found = named(peer.run("push", **common, count=1, timeout=30), "message")
    assert [each["msgId"] for each in found] == [sent["msgId"]]


def test_messages_that_are_popped(proxied: Proxied, peer: Peer, topic: str) -> None:
    group = f"g-{topic}"
    for address in proxied.brokers.values():
        mode = f"setConsumeMode -b {address} -t {topic} -g {group} -m POP -q 0"
        peer.mqadmin(proxied.namesrv, f"updateSubGroup -b {address} -g {group}")
        assert "success" in peer.mqadmin(proxied.namesrv, mode)
    common = {"namesrv": proxied.proxy, "topic": topic}
    peer.run("send", **common, count=20)
    events = peer.run("push", **common, group=group, askBrokers=1, count=20, timeout=60)
    found = named(events, "message")
    assert sorted(each["body"] for each in found) == sorted(f"body-{i}" for i in range(20))
    assert all("POP_CK" in each["properties"] for each in found)
