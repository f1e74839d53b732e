"""Apache's ``mqadmin`` about groups whose member is our SDK, online, on the target's broker."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator

import pytest

from interop.peer import Peer, named
from interop.servers import Cluster
from rocketpost.client import PushConsumerConfig, ReceivedMessage, StartFrom
from rocketpost.client.blocking import Producer, PushConsumer
from rocketpost.client.message import Message

pytestmark = pytest.mark.interop

_groups = itertools.count(1)
_SECONDS = 30.0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def rows(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines() if line.strip() and line[0] != "#"]


class Member:
    """A consumer of our SDK that stays online and remembers what it got."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.group = f"member-{next(_groups)}"
        self.got: list[ReceivedMessage] = []
        config = PushConsumerConfig(
            name_servers=cluster.namesrv, start_from=StartFrom.FIRST, persist_seconds=0.2
        )
        self.consumer = PushConsumer(self.group, config=config)
        self.consumer.subscribe(topic, self.got.append, tags="A || B")
        self.consumer.start()
        until(lambda: len([queue for queue in self.consumer.queues if queue.topic == topic]) == 4)


@pytest.fixture
def member(cluster: Cluster, topic: str) -> Iterator[Member]:
    member = Member(cluster, topic)
    with Producer("interop-shop", name_servers=cluster.namesrv) as producer:
        for number in range(5):
            producer.send(Message(topic, b"%d" % number, tags="A"))
        until(lambda: len(member.got) == 5)
        time.sleep(0.5)  # offsets reach the broker
        yield member
    member.consumer.stop()


def test_its_connection_and_subscriptions_are_shown(
    peer: Peer, cluster: Cluster, topic: str, member: Member
) -> None:
    printed = peer.mqadmin(cluster.namesrv, f"consumerConnection -g {member.group}")
    [line] = [row for row in rows(printed) if "127.0.0.1:" in " ".join(row)]
    assert member.consumer.client_id in line[1] or member.consumer.client_id in line[0]
    assert re.search(rf"{topic}\s+.*A \|\| B", printed)
    assert "MessageModel: CLUSTERING" in printed
    producers = peer.mqadmin(cluster.namesrv, f"producerConnection -g interop-shop -t {topic}")
    assert "127.0.0.1" in producers
    if peer.version == "5.3":
        everybody = peer.mqadmin(cluster.namesrv, f"producer -b {cluster.broker}")
        assert re.search(r"interop-shop.*remoteIP=/127\.0\.0\.1:\d+", everybody)


def test_its_state_is_asked_for_and_read(
    peer: Peer, cluster: Cluster, topic: str, member: Member
) -> None:
    listed = peer.mqadmin(cluster.namesrv, f"consumerStatus -g {member.group}")
    assert member.consumer.client_id in listed
    assert "Rebalance OK" in listed
    assert "Same subscription in the same group of consumer" in listed
    one = peer.mqadmin(
        cluster.namesrv, f"consumerStatus -g {member.group} -i {member.consumer.client_id} -s"
    )
    assert "#Consumer MQ Detail#" in one
    assert re.search(rf"{topic}\s+broker-a\s+\d\s+ProcessQueueInfo", one)
    assert "#Consumer jstack#" in one


def test_its_progress_names_the_client(
    peer: Peer, cluster: Cluster, topic: str, member: Member
) -> None:
    printed = peer.mqadmin(cluster.namesrv, f"consumerProgress -g {member.group} -s true")
    mine = [row for row in rows(printed) if row[0] == topic]
    assert len(mine) == 4
    assert sum(int(row[4]) for row in mine) == 5
    assert all(re.match(r"\d+\.\d+\.\d+\.\d+$", row[5]) for row in mine)
    everybody = peer.mqadmin(cluster.namesrv, "consumerProgress")
    assert [row for row in rows(everybody) if row[0] == member.group and row[1] == "1"]
    if peer.version == "4.9":
        return  # its tool does not know -t, and ends its JVM over it
    only = peer.mqadmin(cluster.namesrv, f"consumerProgress -g {member.group} -t {topic}")
    assert {row[0] for row in rows(only) if row[0].startswith("Topic")} == {topic}


def test_its_offsets_are_cloned_and_its_backlog_skipped(
    peer: Peer, cluster: Cluster, topic: str, member: Member
) -> None:
    clone = f"clone-of-{member.group}"
    peer.mqadmin(cluster.namesrv, f"updateSubGroup -b {cluster.broker} -g {clone}")
    copied = peer.mqadmin(
        cluster.namesrv, f"cloneGroupOffset -s {member.group} -d {clone} -t {topic} -o true"
    )
    assert "clone group offset success" in copied
    # Nothing is left for the clone: it stands where its model stands.
    got = named(
        peer.run("push", namesrv=cluster.namesrv, topic=topic, group=clone, count=1, timeout=2),
        "message",
    )
    assert got == []
    member.consumer.pause()
    with Producer("interop-shop", name_servers=cluster.namesrv) as producer:
        for _ in range(4):
            producer.send(Message(topic, b"late", tags="A"))
    skipped = peer.mqadmin(cluster.namesrv, f"skipAccumulatedMessage -g {member.group} -t {topic}")
    assert "broker-a" in skipped
    progress = peer.mqadmin(cluster.namesrv, f"consumerProgress -g {member.group}")
    assert re.search(r"Consume Diff Total: 0\n|Diff Total: 0\n", progress)


def test_a_group_is_made_changed_and_deleted_everywhere(peer: Peer, cluster: Cluster) -> None:
    group = f"made-everywhere-{next(_groups)}"
    orderly = "" if peer.version == "4.9" else "-o true"
    made = peer.mqadmin(
        cluster.namesrv,
        f"updateSubGroup -c DefaultCluster -g {group} -s true -m false -d true {orderly} -q 3 -r 7 "
        "-i 0 -w 1 -a true",
    )
    assert "create subscription group to" in made
    config = peer.mqadmin(cluster.namesrv, f"getConsumerConfig -g {group}")
    if orderly:
        assert re.search(r"consumeMessageOrderly\s+=\s+true", config)
    for line in (r"consumeBroadcastEnable\s+=\s+true",
                 r"retryQueueNums\s+=\s+3", r"retryMaxTimes\s+=\s+7"):  # fmt: skip
        assert re.search(line, config), line
    deleted = peer.mqadmin(cluster.namesrv, f"deleteSubGroup -c DefaultCluster -g {group} -r true")
    assert "success" in deleted
    assert not re.search(r"retryMaxTimes\s+=\s+7", peer.mqadmin(
        cluster.namesrv, f"getConsumerConfig -g {group}"))  # fmt: skip


def test_entries_of_a_queue_are_judged_by_its_filter(
    peer: Peer, cluster: Cluster, topic: str, member: Member
) -> None:
    queue = next(message.queue for message in member.got)
    words = f"queryCq -t {topic} -q {queue.queue_id} -i 0 -c 1 -b {cluster.broker}"
    judged = peer.mqadmin(cluster.namesrv, f"{words} -g {member.group}")
    assert "Filter data: \nnull" in judged.replace("\r", "") or "null" in judged
    assert re.search(r"eval=true", judged, re.IGNORECASE)
    stranger = peer.mqadmin(cluster.namesrv, f"{words} -g nobody-{member.group}")
    assert "is not online!" in stranger


def test_lags_of_a_broker_and_of_all_topics_are_listed(
    peer: Peer, cluster: Cluster, topic: str, member: Member
) -> None:
    stats = peer.mqadmin(cluster.namesrv, f"brokerConsumeStats -b {cluster.broker}")
    assert [row for row in rows(stats) if row[:2] == [topic, member.group]]
    everything = peer.mqadmin(cluster.namesrv, f"statsAll -t {topic}")
    assert [row for row in rows(everything) if row[:2] == [topic, member.group]]
