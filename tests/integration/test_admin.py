"""Every mqadmin command against real processes: two brokers, a name server, live clients."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rocketpost.admin.main import mqadmin
from rocketpost.client import (
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    SendResult,
    StartFrom,
)
from rocketpost.testing import Cluster, ServerProcess

pytestmark = pytest.mark.slow

CLUSTER = "DefaultCluster"
TOPIC = "Orders"
GROUP = "billing"
PRODUCERS = "shop"
WAIT_SECONDS = 20.0


class Admin:
    """Runs mqadmin in this process against a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.brokers = cluster.broker_addresses

    def run(self, *words: str) -> Result:
        environment = {"NAMESRV_ADDR": self.cluster.addresses}
        return CliRunner().invoke(mqadmin, words, env=environment)

    def ok(self, *words: str) -> str:
        result = self.run(*words)
        assert result.exit_code == 0, (words, result.stdout, result.stderr, result.exception)
        return result.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.ok(*words, "--json"))

    def fails(self, *words: str) -> str:
        """Return the one line of a command that fails."""
        result = self.run(*words)
        assert result.exit_code == 1, (words, result.stdout, result.stderr, result.exception)
        [line] = [line for line in result.stderr.splitlines() if not line.startswith("note:")]
        return line


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    with Cluster(tmp_path_factory.mktemp("admin"), brokers=2) as cluster:
        admin = Admin(cluster)
        admin.ok("updateTopic", "-c", CLUSTER, "-t", TOPIC, "-r", "2", "-w", "2")
        yield admin


@pytest.fixture(autouse=True)
def _bodies_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


class Clients:
    """A producer and a consumer that stay connected, on a loop of their own thread."""

    def __init__(self, name_servers: str) -> None:
        self.got: list[ReceivedMessage] = []
        self._name_servers = name_servers
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def start(self) -> None:
        self.call(self._start())

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS)

    def send(self, body: bytes, *, broker: str, queue_id: int, **more: Any) -> SendResult:
        message = Message(TOPIC, body, **more)
        queue = MessageQueue(broker, queue_id, TOPIC)
        result: SendResult = self.call(self.producer.send(message, queue=queue))
        return result

    def stop(self) -> None:
        self.call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self.producer = Producer(PRODUCERS, name_servers=self._name_servers)
        await self.producer.start()
        config = PushConsumerConfig(
            start_from=StartFrom.FIRST,
            persist_seconds=0.1,
            rebalance_seconds=0.5,
            hold_seconds=0.5,  # a reset is noticed by the next pull
        )
        self.consumer = PushConsumer(GROUP, name_servers=self._name_servers, config=config)
        self.consumer.subscribe(TOPIC, self._handle, tags="A || B")
        await self.consumer.start()

    async def _handle(self, message: ReceivedMessage) -> None:
        self.got.append(message)

    async def _stop(self) -> None:
        await self.consumer.stop()
        await self.producer.stop()


@pytest.fixture(scope="module")
def clients(admin: Admin) -> Iterator[Clients]:
    clients = Clients(admin.cluster.addresses)
    try:
        clients.start()
        yield clients
    finally:
        clients.stop()


@pytest.fixture(scope="module")
def sent(admin: Admin, clients: Clients) -> SendResult:
    """A message with a key and a tag, consumed."""
    result = clients.send(b"first", broker="broker-0", queue_id=1, tags="A", keys="invoice")
    clients.send(b"other", broker="broker-1", queue_id=0, tags="Z")

    def consumed() -> bool:
        return sum(offsets_of(admin, GROUP, TOPIC)) == 2

    # Many commands start from the route of the retry topic, which the first heartbeat makes.
    until(lambda: f"%RETRY%{GROUP}" in admin.ok("topicList").split())
    until(consumed)
    return result


def offsets_of(admin: Admin, group: str, topic: str) -> list[int]:
    rows = admin.json("consumerProgress", "-g", group, "-t", topic)["queues"]
    return [row["consumerOffset"] for row in rows]


def cells(text: str) -> list[list[str]]:
    """Return the words of each line that is not a heading."""
    return [line.split() for line in text.splitlines() if line.strip() and line[0] != "#"]


# Topics.


def test_a_topic_is_created_changed_and_deleted(admin: Admin) -> None:
    made = admin.ok("updateTopic", "-c", CLUSTER, "-t", "Short", "-r", "5", "-w", "3")
    for address in admin.brokers:
        assert f"create topic to {address} success.\n" in made
    assert "TopicConfig [topicName=Short, readQueueNums=5, writeQueueNums=3, perm=RW-" in made
    words = ("updateTopicPerm", "-b", admin.brokers[0], "-t", "Short", "-p", "4")
    assert "producers may no longer send to it (perm 6 -> 4). Add --yes" in admin.fails(*words)
    changed = admin.ok(*words, "--yes")
    assert f"update topic perm from 6 to 4 in {admin.brokers[0]} success.\n" in changed
    assert "perm=R--" in changed
    again = admin.ok("updateTopicPerm", "-c", CLUSTER, "-t", "Short", "-p", "4", "--yes")
    assert "new perm equals to the old one!\n" in again
    assert f"update topic perm from 6 to 4 in {admin.brokers[1]} success.\n" in again
    route = admin.json("topicRoute", "-t", "Short")  # name servers know it already
    assert [each["perm"] for each in route["queueDatas"]] == [4, 4]
    assert admin.ok("deleteTopic", "-t", "Short", "-c", CLUSTER) == (
        f"delete topic [Short] from cluster [{CLUSTER}] success.\n"
        "delete topic [Short] from NameServer success.\n"
    )
    assert "Short" not in admin.ok("topicList").split()
    missing = admin.fails("deleteTopic", "-t", "Short", "-c", CLUSTER)
    assert f"there was no topic Short in the cluster {CLUSTER}" in missing
    assert "no name server knows the topic Short" in admin.fails("topicStatus", "-t", "Short")


def test_changing_the_permission_keeps_attributes(admin: Admin) -> None:
    words = ("-b", admin.brokers[0], "-t", "Fifo")
    admin.ok("updateTopic", *words, "-a", "+message.type=FIFO")
    changed = admin.ok("updateTopicPerm", *words, "-p", "4", "--yes")
    assert "attributes={message.type=FIFO}" in changed


def test_a_change_keeps_what_it_leaves_out(admin: Admin) -> None:
    words = ("updateTopic", "-b", admin.brokers[0], "-t", "Kept")
    admin.ok(*words, "-r", "16", "-w", "16", "-a", "+message.type=NORMAL")
    changed = admin.ok(*words, "-a", "+dedup.seconds=600")
    assert changed.startswith(
        f"change topic at {admin.brokers[0]} success: dedup.seconds=unset->600.\n"
    )
    admin.ok(*words, "-o", "true")
    assert "success: as it was.\n" in admin.ok(*words)
    config = admin.json("topicConfig", "-t", "Kept")["broker-0"]
    assert (config["readQueueNums"], config["writeQueueNums"], config["order"]) == (16, 16, True)
    attributes = {"message.type": "NORMAL", "dedup.seconds": "600"}
    assert config["attributes"] == attributes
    shown = admin.ok("topicConfig", "-t", "Kept")
    assert "{message.type=NORMAL, dedup.seconds=600}" in shown
    assert "Attributes at broker-0: {message.type=NORMAL," in admin.ok("topicStatus", "-t", "Kept")
    assert admin.json("topicStatus", "-t", "Kept")["attributes"] == {"broker-0": attributes}
    lost = admin.fails(*words, "-a", "-dedup.seconds", "-o", "false", "-p", "2")
    for text in ("attribute dedup.seconds=600", "no longer an ordered", "no longer read it"):
        assert text in lost
    assert admin.json("topicConfig", "-t", "Kept")["broker-0"] == config
    result = admin.run(*words, "-a", "-dedup.seconds", "-o", "false", "-p", "2", "--yes", "--json")
    [step] = json.loads(result.stdout)
    assert (step["action"], step["before"], step["after"]["perm"]) == ("changed", config, 2)
    assert "note: the order table of the name servers still has Kept" in result.stderr
    assert "is not set" in admin.fails(*words, "-a", "-dedup.seconds")


def test_a_shrink_that_hides_messages_needs_confirmation(admin: Admin) -> None:
    words = ("updateTopic", "-b", admin.brokers[1], "-t", "Wide")
    admin.ok(*words, "-r", "4", "-w", "4")
    admin.ok("sendMessage", "-t", "Wide", "-p", "hello", "-b", "broker-1", "-i", "3")
    hidden = "no group has read the 1 messages in queue 3"
    assert hidden in admin.fails(*words, "-r", "2", "-w", "2")
    assert "nobody would read what is sent to queues 2 to 3" in admin.fails(*words, "-r", "2")
    admin.ok(*words, "-w", "2")
    assert hidden in admin.fails(*words, "-r", "2")
    assert admin.json("topicConfig", "-t", "Wide")["broker-1"]["readQueueNums"] == 4
    admin.ok(*words, "-r", "2", "--yes")
    assert admin.json("topicConfig", "-t", "Wide")["broker-1"]["readQueueNums"] == 2
    admin.ok(*words, "-r", "4")
    assert "this deletes 1 messages of the topic Wide for good" in admin.fails(
        "deleteTopic", "-t", "Wide", "-c", CLUSTER
    )
    assert admin.json("deleteTopic", "-t", "Wide", "-c", CLUSTER, "--yes")[0]["messages"] == 1


def test_topics_of_a_file_are_created(admin: Admin, tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_text('[{"topicName":"Listed1","readQueueNums":2},{"topicName":"Listed2"}]')
    printed = admin.ok("updateTopicList", "-c", CLUSTER, "-f", str(path))
    assert printed.count("submit batch of topic config to") == 2
    assert {"Listed1", "Listed2"} <= set(admin.ok("topicList").split())
    path.write_text('[{"topicName":"Listed3"},{"topicName":"Listed4","readQueuNums":4}]')
    said = admin.fails("updateTopicList", "-c", CLUSTER, "-f", str(path))
    assert "unknown field `readQueuNums` - at `$[1]`" in said
    assert not {"Listed3", "Listed4"} & set(admin.ok("topicList").split())
    path.write_text('[{"topicName":"Listed1","perm":4,"attributes":{"message.type":"NORMAL"}}]')
    assert "producers may no longer send to it" in admin.fails(
        "updateTopicList", "-c", CLUSTER, "-f", str(path)
    )
    steps = admin.json("updateTopicList", "-c", CLUSTER, "-f", str(path), "--yes")
    assert [step["after"]["readQueueNums"] for step in steps] == [2, 2]
    config = admin.json("topicConfig", "-t", "Listed1")["broker-0"]
    assert (config["readQueueNums"], config["perm"]) == (2, 4)
    assert config["attributes"] == {"message.type": "NORMAL"}


def test_an_ordered_topic_is_in_the_order_table(admin: Admin) -> None:
    made = admin.ok("updateTopic", "-c", CLUSTER, "-t", "Ordered", "-w", "4", "-o", "true")
    expected = "orderConf=[broker-0:4;broker-1:4]"
    assert f"set cluster orderConf. isOrder=true, {expected}\n" in made
    words = ("updateTopic", "-b", admin.brokers[1], "-t", "Ordered", "-r", "6", "-w", "6")
    assert "set broker orderConf. isOrder=true, orderConf=[broker-0:4;broker-1:6]\n" in admin.ok(
        *words
    )
    got = admin.ok("updateOrderConf", "-t", "Ordered", "-m", "get")
    assert got == "get orderConf success. topic=[Ordered], orderConf=[broker-0:4;broker-1:6]\n"
    put_words = ("updateOrderConf", "-t", "Ordered", "-m", "put", "-v", "broker-0:1")
    for value, reason in (
        ("garbage", "'garbage' is not broker:number"),
        ("broker-0:4;broker-1:abc", "'broker-1:abc' is not broker:number"),
        (
            "broker-0:4;elsewhere:2",
            "not on a broker elsewhere; its brokers are: broker-0, broker-1",
        ),
        ("broker-0:4;broker-0:4", "broker-0 is there twice"),
    ):
        said = admin.fails(*put_words[:-1], value)
        assert reason in said
        assert "nothing was changed" in said
    assert "topic Nope" in admin.fails(*("updateOrderConf", "-t", "Nope", *put_words[3:]))
    assert admin.ok("updateOrderConf", "-t", "Ordered", "-m", "get") == got
    assert "no order configuration" in admin.fails("updateOrderConf", "-t", "Nope", "-m", "get")
    assert "broker-0 has 1 instead of 4 queues" in admin.fails(*put_words)
    put = admin.ok(*put_words, "--yes")
    assert put == "update orderConf success. topic=[Ordered], orderConf=[broker-0:1]\n"
    assert "nothing was changed" in admin.fails("updateOrderConf", "-t", "Ordered", "-m", "delete")
    deleted = admin.ok("updateOrderConf", "-t", "Ordered", "-m", "delete", "--yes")
    assert deleted == "delete orderConf success. topic=[Ordered]\n"
    assert "no order configuration" in admin.fails("updateOrderConf", "-t", "Ordered", "-m", "get")


def test_topics_are_listed(admin: Admin, sent: SendResult) -> None:
    topics = admin.ok("topicList").split()
    assert {TOPIC, "TBW102", f"%RETRY%{GROUP}"} <= set(topics)
    assert topics == sorted(topics) == admin.json("topicList")
    by_cluster = cells(admin.ok("topicList", "-c"))
    assert [CLUSTER, TOPIC, GROUP] in by_cluster
    assert not [row for row in by_cluster if row[1].startswith("%RETRY%")]


def test_a_route_is_shown_in_three_ways(admin: Admin) -> None:
    text = admin.ok("topicRoute", "-t", TOPIC)
    assert f'"brokerAddrs":{{0:"{admin.brokers[0]}"\n' in text
    route = admin.json("topicRoute", "-t", TOPIC)
    assert {each["brokerName"] for each in route["queueDatas"]} == {"broker-0", "broker-1"}
    rows = cells(admin.ok("topicRoute", "-t", TOPIC, "-l"))
    assert rows[0] == [CLUSTER, "broker-0", f"{{0={admin.brokers[0]}}}", "2", "2", "6"]
    assert rows[-1] == ["Total:", "2", "4", "4"]
    assert admin.ok("topicClusterList", "-t", TOPIC) == f"{CLUSTER}\n"
    assert admin.json("topicClusterList", "-t", TOPIC) == [CLUSTER]


def test_the_state_of_a_topic_counts_messages(admin: Admin, sent: SendResult) -> None:
    text = admin.ok("topicStatus", "-t", TOPIC)
    offsets = {(row[0], int(row[1])): int(row[3]) for row in cells(text)[:-1]}
    assert offsets[sent.queue.broker_name, sent.queue.queue_id] > sent.queue_offset
    assert len(offsets) == 4
    assert "\n\nTopic Put TPS: " in text
    state = admin.json("topicStatus", "-t", TOPIC)
    assert len(state["queues"]) == 4


def test_allocateMQ_shows_how_queues_would_be_shared(admin: Admin) -> None:
    shares = json.loads(admin.ok("allocateMQ", "-t", TOPIC, "-i", "10.0.0.1,10.0.0.2"))["result"]
    assert [len(share) for share in shares.values()] == [2, 2]
    assert {each["brokerName"] for each in shares["10.0.0.1"]} == {"broker-0"}


def test_traffic_is_counted(admin: Admin, sent: SendResult) -> None:
    admin.ok("updateTopic", "-c", CLUSTER, "-t", "Quiet")
    rows = admin.json("statsAll")
    [row] = [row for row in rows if (row["topic"], row["group"]) == (TOPIC, GROUP)]
    assert row["accumulation"] == 0
    assert row["inCount24Hours"] >= 2
    assert [row["outCount24Hours"] for row in rows if row["topic"] == "Quiet"] == [None]
    assert "NO_CONSUMER" in admin.ok("statsAll", "-t", "Quiet")
    assert "Quiet" not in admin.ok("statsAll", "-a")
    assert "no name server knows" in admin.fails("statsAll", "-t", "Missing")


# Groups and clients.


def test_a_group_is_created_shown_and_deleted(admin: Admin, tmp_path: Path) -> None:
    made = admin.ok("updateSubGroup", "-c", CLUSTER, "-g", "fresh", "-r", "5", "-d", "true")
    assert made.count("create subscription group to") == 2
    assert "retryMaxTimes=5" in made
    shown = admin.ok("getConsumerConfig", "-g", "fresh")
    assert f"{'=' * 29}{CLUSTER}:broker-1{'=' * 29}\n" in shown
    assert "retryMaxTimes                           =  5\n" in shown
    assert "consumeBroadcastEnable                  =  true\n" in shown
    assert list(admin.json("getConsumerConfig", "-g", "fresh")) == [
        f"{CLUSTER}:broker-0",
        f"{CLUSTER}:broker-1",
    ]
    deleted = admin.ok("deleteSubGroup", "-c", CLUSTER, "-g", "fresh", "-r", "true")
    assert deleted.count("delete subscription group [fresh] from broker [") == 2
    assert f"in cluster [{CLUSTER}] success.\n" in deleted
    assert "no broker has a configuration" in admin.fails("getConsumerConfig", "-g", "fresh")
    for where, name in (("-c", CLUSTER), ("-b", admin.brokers[0])):
        missing = admin.fails("deleteSubGroup", where, name, "-g", "fresh", "-r", "true")
        assert f"{name} does not have the group fresh" in missing
    path = tmp_path / "groups.json"
    path.write_text('[{"groupName":"listed","retryMaxTime":3}]')
    misspelt = admin.fails("updateSubGroupList", "-b", admin.brokers[0], "-f", str(path))
    assert "unknown field `retryMaxTime`" in misspelt
    assert "no broker has a configuration" in admin.fails("getConsumerConfig", "-g", "listed")
    path.write_text('[{"groupName":"listed","subscriptionDataSet":null}]')
    assert "submit batch" in admin.ok("updateSubGroupList", "-b", admin.brokers[0], "-f", str(path))
    words = ("updateSubGroup", "-b", admin.brokers[0], "-g", "listed")
    assert "success: retryMaxTimes=16->5.\n" in admin.ok(*words, "-r", "5")
    admin.ok(*words, "--attributes", "+retention.hold=true")
    lost = admin.fails(*words, "-s", "false", "--attributes=-retention.hold", "-d", "false")
    for text in ("may no longer consume", "may expire before", "as broadcasters"):
        assert text in lost
    path.write_text('[{"groupName":"listed","consumeEnable":false}]')
    listing = ("updateSubGroupList", "-b", admin.brokers[0], "-f", str(path))
    assert "may no longer consume" in admin.fails(*listing)
    [step] = admin.json(*listing, "--yes")
    assert (step["after"]["retryMaxTimes"], step["after"]["consumeEnable"]) == (5, False)
    assert step["after"] == admin.json("getConsumerConfig", "-g", "listed")[f"{CLUSTER}:broker-0"]
    assert "may expire before" in admin.fails(
        "deleteSubGroup", "-b", admin.brokers[0], "-g", "listed"
    )
    admin.ok(*words, "--attributes=-retention.hold", "--yes")
    alone = admin.ok("deleteSubGroup", "-b", admin.brokers[0], "-g", "listed")
    expected = f"delete subscription group [listed] from broker [{admin.brokers[0]}] success.\n"
    assert alone == expected


def test_a_group_is_switched_to_popping(admin: Admin) -> None:
    said = admin.ok("setConsumeMode", "-c", CLUSTER, "-t", TOPIC, "-g", "fresh", "-m", "pop")
    assert said.count("set consume mode to") == 2
    assert f"topic[{TOPIC}] group[fresh] consume mode[POP] popShareQueueNum[0]" in said
    words = ("setConsumeMode", "-c", CLUSTER, "-t", "Nope", "-g", "fresh", "-m", "pop")
    assert f"{CLUSTER} does not have the topic Nope" in admin.fails(*words)
    assert admin.run(*words, "-q", "-5").exit_code == 2
    address = admin.brokers[0]
    refused = admin.fails(
        "setConsumeMode", "-b", address, "-t", "%RETRY%fresh", "-g", "fresh", "-m", "POP"
    )
    assert "retry topics are always pulled" in refused


def test_looking_for_a_group_does_not_create_it(admin: Admin) -> None:
    for command in ("getConsumerConfig", "consumerProgress", "consumerConnection"):
        assert "nobody" in admin.fails(command, "-g", "nobody")
    assert "no broker has a configuration" in admin.fails("getConsumerConfig", "-g", "nobody")


def test_progress_of_a_group(admin: Admin, sent: SendResult) -> None:
    text = admin.ok("consumerProgress", "-g", GROUP)
    place = [TOPIC, sent.queue.broker_name, str(sent.queue.queue_id)]
    [row] = [row for row in cells(text) if row[:3] == place]
    assert row[3] == row[4]
    assert row[5] == "0"
    assert "\nConsume Diff Total: 0\nConsume Inflight Total: 0\n" in text
    only = admin.json("consumerProgress", "-g", GROUP, "-t", TOPIC)
    assert {row["topic"] for row in only["queues"]} == {TOPIC}
    with_clients = admin.json("consumerProgress", "-g", GROUP, "-s", "true")
    assert all(row["clientIp"] for row in with_clients["queues"])
    rows = admin.json("consumerProgress")
    [row] = [row for row in rows if row["group"] == GROUP]
    assert (row["count"], row["type"], row["model"]) == (1, "PUSH", "CLUSTERING")


def test_progress_of_all_groups_of_a_broker(admin: Admin, sent: SendResult) -> None:
    text = admin.ok("brokerConsumeStats", "-b", admin.brokers[0])
    assert any(row[:3] == [TOPIC, GROUP, "broker-0"] for row in cells(text))
    assert "\nDiff Total: " in text
    far = admin.json("brokerConsumeStats", "-b", admin.brokers[0], "-l", "1000000")
    assert far["queues"] == []


def test_connected_clients_are_shown(admin: Admin, clients: Clients, sent: SendResult) -> None:
    consumer, producer = clients.consumer.client_id, clients.producer.client_id
    text = admin.ok("consumerConnection", "-g", GROUP)
    assert cells(text)[0][0] == consumer
    assert [TOPIC, "A", "||", "B"] in cells(text)
    one = admin.json("consumerConnection", "-g", GROUP, "-b", admin.brokers[1])
    assert [each["clientId"] for each in one["connectionSet"]] == [consumer]
    [row] = cells(admin.ok("producerConnection", "-g", PRODUCERS, "-t", TOPIC))
    assert row[:2] == ["0001", producer]
    assert "nothing" in admin.fails("producerConnection", "-g", "nothing", "-t", TOPIC)
    listed = admin.ok("producer", "-b", admin.brokers[0])
    assert f"producer group ({PRODUCERS}) instance : clientId={producer}," in listed
    assert PRODUCERS in admin.json("producer", "-b", admin.brokers[0])


def test_consumers_report_their_state(
    admin: Admin,
    clients: Clients,
    sent: SendResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    text = admin.ok("consumerStatus", "-g", GROUP)
    [row] = [row for row in cells(text) if row[0] == "1"]
    assert row[1] == clients.consumer.client_id
    assert "#Consumer MQ Detail#" in (tmp_path / row[3]).read_text()
    assert "\nSame subscription in the same group of consumer\n" in text
    assert "\nRebalance OK\n" in text
    one = admin.ok("consumerStatus", "-g", GROUP, "-i", clients.consumer.client_id)
    assert "#Consumer Subscription#" in one
    assert "nobody@1" in admin.fails("consumerStatus", "-g", GROUP, "-i", "nobody@1")


# Offsets.


@pytest.fixture(scope="module")
def backlog(admin: Admin) -> str:
    """A topic with three messages in queue 0 of each broker, and a group at offset 0 there."""
    topic = "Backlog"
    admin.ok("updateTopic", "-c", CLUSTER, "-t", topic, "-r", "1", "-w", "1")
    admin.ok("updateSubGroup", "-c", CLUSTER, "-g", "slow")
    for broker in ("broker-0", "broker-1"):
        for number in range(3):
            admin.ok("sendMessage", "-t", topic, "-p", f"m{number}", "-b", broker, "-i", "0")
    admin.ok("resetOffsetByTime", "-g", "slow", "-t", topic, "-s", "0")
    return topic


def test_a_queue_that_waits_says_why(
    admin: Admin,
    clients: Clients,
    backlog: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # the files of consumerStatus
    clients.call(_pause(clients, True))
    try:
        # A pull that is held when the consumer is paused still fetches one message.
        for _ in range(3):
            clients.send(b"waits", broker="broker-0", queue_id=0, tags="A")
        until(lambda: "it is paused" in admin.ok("consumerStatus", "-g", GROUP))
        alarm = admin.run("startMonitoring", "-g", GROUP, "-r", "2", "-i", "0.3")
        assert alarm.exit_code == 3, alarm.output
        assert " STILL " in alarm.stdout
    finally:
        clients.call(_pause(clients, False))
    admin.ok("startMonitoring", "-g", GROUP, "-i", "0.2", "-u", "-l", "0")
    clients.call(_come_and_go(admin.cluster.addresses, "gone"))
    clients.send(b"waits", broker="broker-0", queue_id=0, tags="A")
    offline = admin.run("consumerStatus", "-g", "gone")
    assert offline.exit_code == 1
    assert "no member is online" in offline.stdout
    alarm = admin.run("startMonitoring", "-g", "gone", "-r", "1")
    assert (alarm.exit_code, " OFFLINE " in alarm.stdout) == (3, True)


async def _come_and_go(name_servers: str, group: str) -> None:
    consumer = PushConsumer(group, name_servers=name_servers)
    consumer.subscribe(TOPIC, print)
    async with consumer, asyncio.timeout(WAIT_SECONDS):
        while not any(queue.topic == TOPIC for queue in consumer.queues):
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)  # until it has found where to start


async def _pause(clients: Clients, paused: bool) -> None:
    if paused:
        clients.consumer.pause()
    else:
        clients.consumer.resume()


def test_lag_is_watched_for_people_and_for_scripts(
    admin: Admin, sent: SendResult, backlog: str
) -> None:
    words = ("startMonitoring", "-g", "slow", "-t", backlog, "-r", "1")
    shown = admin.run(*words)
    assert shown.exit_code == 3
    [heading, line] = shown.stdout.splitlines()
    assert heading.split()[:3] == ["#Time", "#Group", "#Count"]
    assert line.split()[2:4] == ["slow", "0"]
    assert line.endswith("OFFLINE   no member is online")
    told = json.loads(admin.run(*words, "-d", "0", "--json").stdout)
    assert told["delayMs"] > 0
    assert (told["group"], told["state"]) == ("slow", "OFFLINE")
    unknown = admin.run("startMonitoring", "-g", "never-heard-of", "-r", "1")
    assert (unknown.exit_code, "UNKNOWN" in unknown.stdout) == (1, True)
    everybody = admin.run("startMonitoring", "-r", "1", "--json")
    assert GROUP in {json.loads(line)["group"] for line in everybody.stdout.splitlines()}


def test_offsets_are_reset_skipped_and_copied(admin: Admin, backlog: str) -> None:
    common = ("-g", "slow", "-t", backlog)
    text = admin.ok("resetOffsetByTime", *common, "-s", "0")
    assert text.startswith(
        f"start reset consumer offset by specified, group[slow], topic[{backlog}], force[true], "
        "timestamp(string)[0], timestamp(long)[0]\n"
    )
    assert cells(text)[1:] == [["broker-0", "0", "0"], ["broker-1", "0", "0"]]
    assert offsets_of(admin, "slow", backlog) == [0, 0]
    ahead = ("resetOffsetByTime", *common, "-s", "0", "-b", admin.brokers[1], "-q", "0", "-o", "2")
    assert "the group slow skips 2 messages of Backlog" in admin.fails(*ahead)
    assert offsets_of(admin, "slow", backlog) == [0, 0]
    one = admin.ok(*ahead, "--yes")
    assert one.endswith("\nreset consumer offset to 2\n")
    assert offsets_of(admin, "slow", backlog) == [0, 2]
    outside = ("-s", "0", "-b", admin.brokers[1], "-q", "0", "-o", "99")
    assert "99" in admin.fails("resetOffsetByTime", *common, *outside, "--yes")
    elsewhere = ("-s", "0", "-b", "127.0.0.1:1", "-q", "0")
    assert "no broker at 127.0.0.1:1" in admin.fails("resetOffsetByTime", *common, *elsewhere)
    assert "skips 4 messages of Backlog" in admin.fails("skipAccumulatedMessage", *common)
    assert offsets_of(admin, "slow", backlog) == [0, 2]
    gentle = ("skipAccumulatedMessage", *common, "-f", "false")
    assert [row["offset"] for row in admin.json(*gentle)] == [0, 2]  # moves nothing, so no question
    skipped = admin.json("skipAccumulatedMessage", *common, "--yes")
    assert [row["offset"] for row in skipped] == [3, 3]
    assert offsets_of(admin, "slow", backlog) == [3, 3]
    admin.ok("updateSubGroup", "-c", CLUSTER, "-g", "copy")
    clone = ("cloneGroupOffset", "-s", "slow", "-d", "copy", "-t", backlog)
    assert "the group copy skips 6 messages of Backlog" in admin.fails(*clone)
    copied = admin.ok(*clone, "--yes")
    assert copied == (
        f"clone group offset success. srcGroup[slow], destGroup=[copy], topic[{backlog}]\n"
    )
    assert offsets_of(admin, "copy", backlog) == [3, 3]
    nothing = admin.fails("cloneGroupOffset", "-s", "none", "-d", "copy", "-t", backlog)
    assert "nothing is copied" in nothing
    back = ("resetOffsetByTime", *common, "-s", "0")
    assert "the group slow is given 6 messages of Backlog again, in 2 queues" in admin.fails(*back)
    admin.ok(*back, "--yes")
    assert offsets_of(admin, "slow", backlog) == [0, 0]


def test_a_running_consumer_goes_back_when_it_is_reset(
    admin: Admin, clients: Clients, sent: SendResult
) -> None:
    before = len(clients.got)
    admin.ok("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "0", "--yes")
    until(lambda: sent.message_id in [each.message_id for each in clients.got[before:]])
    until(lambda: not admin.json("consumerProgress", "-g", GROUP)["diffTotal"])  # as it was


# Messages.


def test_a_message_is_sent(admin: Admin) -> None:
    [row] = cells(admin.ok("sendMessage", "-t", TOPIC, "-p", "hällo", "-c", "C", "-k", "k1 k2"))
    assert row[2] == "SEND_OK"
    [found] = admin.json("queryMsgByUniqueKey", "-t", TOPIC, "-i", row[3])
    assert found["body"] == "hällo"
    assert (found["properties"]["TAGS"], found["properties"]["KEYS"]) == ("C", "k1 k2")
    [chosen] = admin.json("sendMessage", "-t", TOPIC, "-p", "x", "-b", "broker-1", "-i", "1")
    assert (chosen["brokerName"], chosen["queueId"]) == ("broker-1", 1)
    absent = admin.fails("sendMessage", "-t", TOPIC, "-p", "x", "-b", "broker-1", "-i", "7")
    assert "no queue broker-1/7" in absent


def test_a_message_is_found_in_every_way(admin: Admin, sent: SendResult) -> None:
    [row] = cells(admin.ok("queryMsgByKey", "-t", TOPIC, "-k", "invoice"))
    assert row == [sent.message_id, str(sent.queue.queue_id), str(sent.queue_offset)]
    assert "carries the key" in admin.fails("queryMsgByKey", "-t", TOPIC, "-k", "nothing")
    place = ("-b", sent.queue.broker_name, "-i", str(sent.queue.queue_id))
    texts = [
        admin.ok("queryMsgById", "-t", TOPIC, "-i", sent.offset_id, "-f", "utf-8"),
        admin.ok("queryMsgById", "-t", TOPIC, "-i", sent.message_id, "-f", "utf-8"),
        admin.ok("queryMsgByUniqueKey", "-t", TOPIC, "-i", sent.message_id, "-a"),
        admin.ok(
            "queryMsgByOffset", "-t", TOPIC, *place, "-o", str(sent.queue_offset), "-f", "gbk"
        ),
    ]
    for text in texts:
        assert f"OffsetID:            {sent.offset_id}\n" in text
        assert "Keys:                [invoice]\n" in text
        track = f"MessageTrack [consumerGroup={GROUP}, trackType=CONSUMED, exceptionDesc=null]"
        assert track in text
        path = re.search(r"Message Body Path: +(.*)", text)
        assert path is not None
        assert Path(path[1]).read_bytes() == b"first"
    assert "Message Body:        first\n" in texts[0]
    beyond = admin.fails("queryMsgByOffset", "-t", TOPIC, *place, "-o", "999")
    assert "no message at offset 999" in beyond
    assert "has the id 00" in admin.fails("queryMsgById", "-t", TOPIC, "-i", "00")
    assert "unique key 00" in admin.fails("queryMsgByUniqueKey", "-t", TOPIC, "-i", "00")


def test_a_message_without_readers_says_so(admin: Admin) -> None:
    admin.ok("updateTopic", "-c", CLUSTER, "-t", "Unread", "-r", "1", "-w", "1")
    [row] = cells(admin.ok("sendMessage", "-t", "Unread", "-p", "x"))
    text = admin.ok("queryMsgByUniqueKey", "-t", "Unread", "-i", row[3])
    assert text.endswith("\n\n\nWARN: No Consumer\n")


def test_a_message_is_sent_again(admin: Admin, sent: SendResult) -> None:
    text = admin.ok("queryMsgById", "-t", TOPIC, "-i", sent.message_id, "-s", "true")
    assert f"prepare resend msg. originalMsgId={sent.message_id}\n" in text
    assert "SendResult [sendStatus=SEND_OK" in text
    assert len(cells(admin.ok("queryMsgByKey", "-t", TOPIC, "-k", "invoice"))) >= 2


def test_a_consumer_handles_a_message_on_demand(
    admin: Admin, clients: Clients, sent: SendResult
) -> None:
    before = len(clients.got)
    words = ("-t", TOPIC, "-i", sent.offset_id, "-g", GROUP, "-d", clients.consumer.client_id)
    text = admin.ok("queryMsgById", *words)
    assert "consumeResult=CR_SUCCESS" in text
    assert len(clients.got) > before
    assert "not online" in admin.fails("queryMsgById", *words[:-1], "somebody@else")


def test_queues_are_printed(admin: Admin, backlog: str) -> None:
    text = admin.ok("printMsg", "-t", backlog)
    assert re.findall(r"^minOffset=(\d), maxOffset=(\d)", text, re.M) == [("0", "3"), ("0", "3")]
    assert re.findall(r"BODY: (.*)$", text, re.M) == ["m0", "m1", "m2"] * 2
    assert text.count("-" * 56) == 2
    assert "BODY: m0" not in admin.ok("printMsg", "-t", backlog, "-d", "false")
    nothing = admin.ok("printMsg", "-t", backlog, "-e", "1")
    assert "MSGID" not in nothing
    since = admin.ok("printMsg", "-t", backlog, "-b", "0", "-s", "NoSuchTag")
    assert "MSGID" not in since


def test_one_queue_is_printed_and_counted(admin: Admin, backlog: str) -> None:
    words = ("printMsgByQueue", "-t", backlog, "-a", "broker-0", "-i", "0")
    assert re.findall(r"BODY: (.*)$", admin.ok(*words, "-p", "true", "-d", "true"), re.M) == [
        "m0",
        "m1",
        "m2",
    ]
    assert admin.ok(*words, "-f", "true") == f"Tag: {'null':<30} Count: 3\n"
    missing = admin.fails("printMsgByQueue", "-t", backlog, "-a", "x", "-i", "0", "-p", "true")
    assert "no queue x/0" in missing


def test_messages_are_consumed_without_moving_the_group(admin: Admin, backlog: str) -> None:
    before = offsets_of(admin, "slow", backlog)
    text = admin.ok("consumeMessage", "-t", backlog, "-c", "4")
    assert re.findall(r"BODY: (.*)$", text, re.M) == ["m0", "m1", "m2", "m0"]
    assert text.count("Consume ok\n") == 2
    assert "queueId=0] print msg finished. status=NO_NEW_MSG, offset=3\n" in text
    place = ("-b", "broker-1", "-i", "0", "-o", "1")
    tail = admin.ok("consumeMessage", "-t", backlog, *place)
    assert re.findall(r"BODY: (.*)$", tail, re.M) == ["m1", "m2"]
    assert offsets_of(admin, "slow", backlog) == before


def test_entries_of_a_queue_are_shown(admin: Admin, backlog: str, sent: SendResult) -> None:
    words = ("queryCq", "-t", backlog, "-q", "0", "-b", admin.brokers[0])
    text = admin.ok(*words, "-i", "1", "-c", "1")
    assert "\nmax: 3, min: 0\n" in text
    assert re.findall(r"^idx: (\d+)$", text, re.M) == ["1"]
    last = admin.ok(*words, "-i", "-1")
    assert re.findall(r"^idx: (\d+)$", last, re.M) == ["2"]
    assert len(admin.json(*words, "-i", "0")["queueData"]) == 3
    filtered = admin.ok(
        "queryCq", "-t", TOPIC, "-q", str(sent.queue.queue_id), "-i", "0", "-g", GROUP
    )
    assert '"subString":"A || B"' in filtered
    assert "is not online!" in admin.ok(*words, "-i", "0", "-g", "nobody-here")


def test_sends_are_timed(admin: Admin) -> None:
    lines = admin.ok("sendMsgStatus", "-b", "broker-0", "-s", "10", "-c", "3").splitlines()
    assert len(lines) == 3
    for line in lines:
        assert re.match(r"rt=\d+ms, SendResult=SendResult \[sendStatus=SEND_OK", line)
    assert "no broker nowhere" in admin.fails("sendMsgStatus", "-b", "nowhere")
    text = admin.ok("checkMsgSendRT", "-t", TOPIC, "-a", "5", "-s", "10")
    rows = cells(text)
    assert [row[2] for row in rows[:-1]] == ["true"] * 5
    assert {row[0] for row in rows[:-1]} == {"broker-0", "broker-1"}
    assert re.search(r"^Avg RT: \d+\.\d\d$", text, re.M)
    assert len(admin.json("checkMsgSendRT", "-t", TOPIC, "-a", "2")["sends"]) == 2
    assert "no name server knows" in admin.fails("checkMsgSendRT", "-t", "NotThere")


# Brokers.


def test_brokers_are_listed(admin: Admin) -> None:
    rows = cells(admin.ok("clusterList"))
    assert [row[:4] for row in rows] == [
        [CLUSTER, f"broker-{index}", "0", address] for index, address in enumerate(admin.brokers)
    ]
    assert all(row[-3:] == ["true", "ASYNC_MASTER", "0"] for row in rows)
    totals = admin.json("clusterList", "-m", "-c", CLUSTER)
    assert [row["brokerName"] for row in totals] == ["broker-0", "broker-1"]
    assert "no cluster Nowhere" in admin.fails("clusterList", "-c", "Nowhere")


def test_runtime_values_are_shown(admin: Admin, sent: SendResult) -> None:
    one = admin.ok("brokerStatus", "-b", admin.brokers[0])
    values = dict(re.findall(r"^(\w+) *: (.*)$", one, re.M))
    assert int(values["commitLogMaxOffset"]) > 0
    assert list(values) == sorted(values)
    lines = admin.ok("brokerStatus", "-c", CLUSTER).splitlines()
    assert {line.split()[0] for line in lines} == set(admin.brokers)
    assert admin.json("brokerStatus", "-c", CLUSTER).keys() == set(admin.brokers)


def test_settings_are_shown_and_changed(admin: Admin) -> None:
    words = ("updateBrokerConfig", "-c", CLUSTER, "-k", "fileReservedTime", "-v", "25")
    assert "messages expire after 25 instead of 72 hours" in admin.fails(*words)
    changed = admin.ok(*words, "--yes")
    assert changed == "".join(f"update broker config success, {each}\n" for each in admin.brokers)
    one = admin.ok("getBrokerConfig", "-b", admin.brokers[0])
    assert one.startswith(f"============{admin.brokers[0]}============\n")
    assert f"{'fileReservedTime':<50}=  25\n" in one
    both = admin.ok("getBrokerConfig", "-c", CLUSTER)
    assert both.count("============Master: ") == 2
    assert {
        each["fileReservedTime"] for each in admin.json("getBrokerConfig", "-c", CLUSTER).values()
    } == {"25"}
    for key, value in (("brokerName", "x"), ("noSuchKey", "1"), ("fileReservedTime", "soon")):
        refused = admin.fails("updateBrokerConfig", "-b", admin.brokers[0], "-k", key, "-v", value)
        assert f"{admin.brokers[0]}: refused" in refused


@pytest.mark.parametrize(
    "command", ["cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"]
)
def test_brokers_are_cleaned(admin: Admin, command: str) -> None:
    yes = () if command == "cleanExpiredCQ" else ("--yes",)  # only that takes nothing away
    if yes:
        assert "for good" in admin.fails(command, "-b", admin.brokers[0])
    assert admin.ok(command, "-b", admin.brokers[0], *yes) == "success\n"
    assert admin.ok(command, "-c", CLUSTER, *yes) == "success\n"
    everywhere = admin.run(command, *yes)
    assert everywhere.stdout == "success\n"
    said = [line for line in everywhere.stderr.splitlines() if not line.startswith("note: ")]
    assert said == [f"cleaned {each}" for each in admin.brokers]
    assert "cannot connect to 127.0.0.1:1" in admin.fails(command, "-b", "127.0.0.1:1", *yes)


def test_replication_is_shown(admin: Admin) -> None:
    text = admin.ok("haStatus", "-b", admin.brokers[0])
    assert f"#MasterAddr\t{admin.brokers[0]}\n" in text
    assert "#SlaveNum\t0\n" in text
    assert admin.ok("haStatus", "-c", CLUSTER).count("#MasterAddr") == 2
    assert admin.json("haStatus", "-b", admin.brokers[0])[admin.brokers[0]]["master"] is True


def test_commands_for_slaves_and_controllers_say_why_they_fail(admin: Admin) -> None:
    line = admin.fails("resetMasterFlushOffset", "-b", admin.brokers[0], "-o", "7")
    assert "is a master" in line
    line = admin.fails("getBrokerEpoch", "-c", CLUSTER)
    assert f"{admin.brokers[0]} has no epochs: it is in no group that elects its leader" in line
    line = admin.fails("getControllerMetaData", "-a", admin.brokers[0])
    assert f"{admin.brokers[0]} is neither a controller nor a broker of a group" in line
    line = admin.fails("electMaster", "-a", admin.brokers[0], "-b", "0", "-bn", "b", "-c", CLUSTER)
    assert f"{admin.brokers[0]} is neither a controller nor a broker of a group" in line
    assert "broker-x" in admin.fails("getBrokerEpoch", "-b", "broker-x")


# Name servers.


def test_write_permission_is_removed_and_restored(admin: Admin) -> None:
    where = admin.cluster.addresses
    unanswered = admin.fails("wipeWritePerm", "-b", "broker-1")
    assert "producers may no longer send to the broker broker-1" in unanswered
    assert {each["perm"] for each in admin.json("topicRoute", "-t", TOPIC)["queueDatas"]} == {6}
    wiped = admin.ok("wipeWritePerm", "-b", "broker-1", "--yes")
    start = f"wipe write perm of broker[broker-1] in name server[{where}] OK, "
    assert re.fullmatch(re.escape(start) + r"[1-9]\d*\n", wiped)
    perms = {
        each["brokerName"]: each["perm"]
        for each in admin.json("topicRoute", "-t", TOPIC)["queueDatas"]
    }
    assert perms == {"broker-0": 6, "broker-1": 4}
    given = admin.ok("addWritePerm", "-b", "broker-1")
    assert given.startswith(f"add write perm of broker[broker-1] in name server[{where}] OK, ")
    assert {each["perm"] for each in admin.json("topicRoute", "-t", TOPIC)["queueDatas"]} == {6}
    for command in ("wipeWritePerm", "addWritePerm"):
        assert "no broker nowhere" in admin.fails(command, "-b", "nowhere")


def test_key_value_settings(admin: Admin) -> None:
    put = admin.ok("updateKvConfig", "-s", "space", "-k", "name", "-v", "a value")
    assert put == "create or update kv config to namespace success.\n"
    unanswered = admin.fails("deleteKvConfig", "-s", "space", "-k", "name")
    assert "this deletes name=a value of the namespace space" in unanswered
    deleted = admin.ok("deleteKvConfig", "-s", "space", "-k", "name", "--yes")
    assert deleted == "delete kv config from namespace success.\n"
    missing = admin.fails("deleteKvConfig", "-s", "space", "-k", "name")
    assert "there was no name in the namespace space" in missing


def test_settings_of_name_servers(admin: Admin) -> None:
    changed = admin.ok("updateNamesrvConfig", "-k", "needWaitForService", "-v", "false")
    assert changed == "update name server config success!\nneedWaitForService : false\n"
    shown = admin.ok("getNamesrvConfig")
    assert shown.startswith(f"============{admin.cluster.addresses}============\n")
    assert f"{'needWaitForService':<50}=  false\n" in shown
    assert admin.cluster.addresses in admin.json("getNamesrvConfig")
    assert "noSuchKey" in admin.fails("updateNamesrvConfig", "-k", "noSuchKey", "-v", "1")


# What does not answer.


def test_a_broker_that_hangs_is_named_and_given_up(admin: Admin, sent: SendResult) -> None:
    server: ServerProcess = admin.cluster.brokers[1]
    server.pause()
    try:
        line = admin.fails("brokerStatus", "-b", admin.brokers[1], "--timeout", "0.3")
        assert "0.3 s" in line
        assert admin.brokers[1] in line
        listed = admin.run("clusterList", "--timeout", "0.3")
        assert listed.exit_code == 1
        first, second = cells(listed.stdout)
        assert first[-3] == "true"
        assert second[4:] == ["N/A"] * 10
        assert f"no values from {admin.brokers[1]}" in listed.stderr
        groups = admin.run("consumerProgress", "--timeout", "0.3")
        assert groups.exit_code == 1
        assert "groups could not be asked about" in groups.stderr
    finally:
        server.resume()
    assert admin.ok("brokerStatus", "-b", admin.brokers[1])


# JSON.


def test_messages_are_an_object_a_line_in_json(admin: Admin, sent: SendResult) -> None:
    queue = ("-i", str(sent.queue.queue_id))
    for words in (
        ("printMsg", "-t", TOPIC),
        ("printMsgByQueue", "-t", TOPIC, "-a", sent.queue.broker_name, *queue, "-p", "true"),
        ("consumeMessage", "-t", TOPIC, "-b", sent.queue.broker_name, *queue),
    ):
        lines = [json.loads(line) for line in admin.ok(*words, "--json").splitlines()]
        [found] = [line for line in lines if line["msgId"] == sent.message_id]
        assert found["queueOffset"] == sent.queue_offset
        assert ("body" in found) == (words[0] != "printMsgByQueue")
    words = ("printMsgByQueue", "-t", TOPIC, "-a", sent.queue.broker_name, *queue, "-f", "true")
    assert all(
        set(json.loads(line)) == {"tag", "count"}
        for line in admin.ok(*words, "--json").splitlines()
    )


def test_json_lists_the_actions_that_were_done(admin: Admin) -> None:
    address = admin.brokers[0]
    for words, expected in (
        (("cleanExpiredCQ", "-b", address), {"broker": address, "action": "cleaned"}),
        (
            ("updateKvConfig", "-s", "N", "-k", "k", "-v", "v"),
            {"namespace": "N", "key": "k", "value": "v"},
        ),
        (("deleteKvConfig", "-s", "N", "-k", "k", "--yes"), {"namespace": "N", "key": "k"}),
        (
            ("updateBrokerConfig", "-b", address, "-k", "traceOn", "-v", "true"),
            {"broker": address, "key": "traceOn", "value": "true"},
        ),
    ):
        assert admin.json(*words) == [expected]
    sends = admin.json("sendMsgStatus", "-b", "broker-0", "-c", "2")
    assert [each["status"] for each in sends] == ["SEND_OK", "SEND_OK"]
    assert admin.json("wipeWritePerm", "-b", "broker-1", "--yes")[0]["brokerName"] == "broker-1"
    assert admin.json("addWritePerm", "-b", "broker-1")[0]["topics"] > 0


def test_values_of_brokers_are_numbers_in_json(admin: Admin) -> None:
    for row in admin.json("clusterList"):
        assert isinstance(row["in"]["tps"], float)
        assert isinstance(row["diskRatio"], float)
        assert isinstance(row["out"]["pull"]["queueSize"], int)
        assert row["active"] is True
    values = admin.json("brokerStatus", "-b", admin.brokers[0])[admin.brokers[0]]
    assert isinstance(values["bootTimestamp"], int)


def test_the_state_of_consumers_in_json(admin: Admin, sent: SendResult) -> None:
    found = admin.json("consumerStatus", "-g", GROUP)
    [consumer] = found["consumers"]
    assert consumer["state"]["properties"]
    assert found["sameSubscriptions"] is True
    assert found["rebalanceProblems"] == []
    one = admin.json("consumerStatus", "-g", GROUP, "-i", consumer["clientId"])
    assert {each["queue"]["topic"] for each in one["queues"]} >= {TOPIC}
