"""Apache's ``mqadmin`` of both releases against the target."""

from __future__ import annotations

import re
import time

import pytest

from interop.peer import Peer, PeerError, named
from interop.servers import Cluster

pytestmark = pytest.mark.interop


def send(peer: Peer, cluster: Cluster, topic: str, **args: object) -> list[dict[str, object]]:
    return named(peer.run("send", namesrv=cluster.namesrv, topic=topic, **args), "sent")


def rows(printed: str) -> list[list[str]]:
    """Return the words of each line that is not a heading."""
    return [line.split() for line in printed.splitlines() if line.strip() and line[0] != "#"]


def test_topic_list_names_user_and_system_topics(peer: Peer, cluster: Cluster, topic: str) -> None:
    topics = set(peer.mqadmin(cluster.namesrv, "topicList").split())
    assert {topic, "TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"} <= topics


def test_topic_list_by_cluster_names_consumers(peer: Peer, cluster: Cluster, topic: str) -> None:
    send(peer, cluster, topic)
    common = {"namesrv": cluster.namesrv, "topic": topic}
    peer.run("push", **common, group=f"listed-{topic}", count=1)
    printed = peer.mqadmin(cluster.namesrv, "topicList -c")
    assert ["DefaultCluster", topic, f"listed-{topic}"] in rows(printed)


def test_topic_route_shows_the_broker(peer: Peer, cluster: Cluster, topic: str) -> None:
    printed = peer.mqadmin(cluster.namesrv, f"topicRoute -t {topic}")
    squeezed = re.sub(r"\s", "", printed)
    assert f'"brokerAddrs":{{0:"{cluster.broker}"}}' in squeezed.replace('"0"', "0")
    assert '"readQueueNums":4' in squeezed
    assert '"perm":6' in squeezed


def test_topic_route_of_a_missing_topic_says_so(peer: Peer, cluster: Cluster) -> None:
    printed = peer.mqadmin(cluster.namesrv, "topicRoute -t NoSuchTopic")
    assert "brokerDatas" not in printed


def test_topic_status_counts_messages(peer: Peer, cluster: Cluster, topic: str) -> None:
    send(peer, cluster, topic, count=3, queue=2)
    listed = rows(peer.mqadmin(cluster.namesrv, f"topicStatus -t {topic}"))
    offsets = {int(row[1]): (int(row[2]), int(row[3])) for row in listed if row[0] == "broker-a"}
    assert offsets == {0: (0, 0), 1: (0, 0), 2: (0, 3), 3: (0, 0)}


def test_cluster_list_shows_version_and_address(peer: Peer, cluster: Cluster) -> None:
    [row] = rows(peer.mqadmin(cluster.namesrv, "clusterList"))
    assert row[:4] == ["DefaultCluster", "broker-a", "0", cluster.broker]
    assert row[4].startswith("V")


def test_a_topic_is_made_changed_and_deleted(peer: Peer, cluster: Cluster) -> None:
    name = f"Admin{peer.version.replace('.', '')}"
    made = peer.mqadmin(cluster.namesrv, f"updateTopic -c DefaultCluster -t {name} -r 5 -w 3")
    assert "success" in made
    route = re.sub(r"\s", "", peer.mqadmin(cluster.namesrv, f"topicRoute -t {name}"))
    assert '"readQueueNums":5' in route
    assert '"writeQueueNums":3' in route
    peer.mqadmin(cluster.namesrv, f"updateTopicPerm -b {cluster.broker} -t {name} -p 4")
    with pytest.raises(PeerError):  # nothing may be written any more
        send(peer, cluster, name)
    assert "success" in peer.mqadmin(cluster.namesrv, f"deleteTopic -c DefaultCluster -t {name}")
    assert name not in peer.mqadmin(cluster.namesrv, "topicList").split()


def test_messages_are_queried(peer: Peer, cluster: Cluster, topic: str) -> None:
    [sent] = send(peer, cluster, topic, keys="invoice", tags="paid", queue=1)
    time.sleep(0.5)  # the index is written behind the log
    by_key = peer.mqadmin(cluster.namesrv, f"queryMsgByKey -t {topic} -k invoice")
    assert [sent["msgId"], "1", "0"] in rows(by_key)
    # The 4.9 tool does not know the option, and ends its JVM over it.
    where = "" if peer.version == "4.9" else f"-t {topic} "
    by_id = peer.mqadmin(cluster.namesrv, f"queryMsgById {where}-i {sent['offsetMsgId']}")
    by_unique = f"queryMsgByUniqueKey -t {topic} -i {sent['msgId']}"
    for printed in (by_id, peer.mqadmin(cluster.namesrv, by_unique)):
        assert re.search(r"Keys:\s+\[invoice\]", printed)
        assert re.search(r"Queue ID:\s+1\n", printed)
        assert re.search(r"Queue Offset:\s+0\n", printed)
    assert "paid" in peer.mqadmin(
        cluster.namesrv, f"queryMsgByOffset -t {topic} -b broker-a -i 1 -o 0"
    )


def test_consumer_progress_shows_the_lag(peer: Peer, cluster: Cluster, topic: str) -> None:
    group = f"progress-{topic}"
    send(peer, cluster, topic, count=3, queue=0)
    common = {"namesrv": cluster.namesrv, "topic": topic}
    # Pushed, not pulled: the tool starts from the route of the retry topic, made by the heartbeat.
    peer.run("push", **common, group=group, count=3)
    send(peer, cluster, topic, count=2, queue=0)
    listed = rows(peer.mqadmin(cluster.namesrv, f"consumerProgress -g {group}"))
    # Topic, broker, queue, end of the queue, offset of the group, then the lag further right.
    [row] = [row for row in listed if row[:3] == [topic, "broker-a", "0"]]
    assert row[3:5] == ["5", "3"]
    assert "2" in row[5:]


def test_offsets_are_reset_by_time(peer: Peer, cluster: Cluster, topic: str) -> None:
    group = f"reset-{topic}"
    common = {"namesrv": cluster.namesrv, "topic": topic, "group": group}
    send(peer, cluster, topic, count=3, queue=0)
    peer.run("push", **common, count=3)
    peer.mqadmin(cluster.namesrv, f"resetOffsetByTime -g {group} -t {topic} -s 0")
    again = named(peer.run("push", **common, count=3), "message")
    assert len(again) == 3


def test_broker_config_is_read_and_changed(peer: Peer, cluster: Cluster) -> None:
    line = f"getBrokerConfig -b {cluster.broker}"
    value = "431" if peer.version == "5.3" else "432"
    changed = f"updateBrokerConfig -b {cluster.broker} -k flushIntervalCommitLog -v {value}"
    assert "success" in peer.mqadmin(cluster.namesrv, changed)
    printed = peer.mqadmin(cluster.namesrv, line)
    assert re.search(rf"flushIntervalCommitLog\s+=\s+{value}\n", printed)
    assert re.search(r"brokerName\s+=\s+broker-a\n", printed)


def test_a_group_is_made_and_deleted(peer: Peer, cluster: Cluster) -> None:
    group = f"made-{peer.version.replace('.', '')}"
    made = f"updateSubGroup -b {cluster.broker} -g {group} -r 5 -q 2"
    assert "success" in peer.mqadmin(cluster.namesrv, made)
    deleted = f"deleteSubGroup -b {cluster.broker} -g {group}"
    assert "success" in peer.mqadmin(cluster.namesrv, deleted)


def test_broker_status_counts_messages(peer: Peer, cluster: Cluster, topic: str) -> None:
    send(peer, cluster, topic)
    printed = peer.mqadmin(cluster.namesrv, f"brokerStatus -b {cluster.broker}")
    values = dict(re.findall(r"^(\w+)\s*:\s*(.*)$", printed, re.M))
    assert {"brokerVersionDesc", "bootTimestamp", "putTps", "commitLogMaxOffset"} <= values.keys()
    assert int(values["commitLogMaxOffset"]) > 0


def test_key_value_pairs_of_the_name_server(peer: Peer, cluster: Cluster, topic: str) -> None:
    assert "success" in peer.mqadmin(cluster.namesrv, "updateKvConfig -s space -k name -v value")
    assert "success" in peer.mqadmin(cluster.namesrv, "deleteKvConfig -s space -k name")
    put = f"updateOrderConf -t {topic} -v broker-a:4 -m put"
    assert "success" in peer.mqadmin(cluster.namesrv, put)
    got = peer.mqadmin(cluster.namesrv, f"updateOrderConf -t {topic} -m get")
    assert "broker-a:4" in got


def test_write_permission_is_wiped_and_given_back(peer: Peer, cluster: Cluster, topic: str) -> None:
    wiped = peer.mqadmin(cluster.namesrv, f"wipeWritePerm -n {cluster.namesrv} -b broker-a")
    assert re.search(r"OK, [1-9]", wiped)
    route = re.sub(r"\s", "", peer.mqadmin(cluster.namesrv, f"topicRoute -t {topic}"))
    assert '"perm":4' in route
    given = peer.mqadmin(cluster.namesrv, f"addWritePerm -n {cluster.namesrv} -b broker-a")
    assert re.search(r"OK, [1-9]", given)
    route = re.sub(r"\s", "", peer.mqadmin(cluster.namesrv, f"topicRoute -t {topic}"))
    assert '"perm":6' in route
