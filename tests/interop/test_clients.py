"""Java clients send, consume and ask; what one put in must come out unchanged."""

from __future__ import annotations

import threading
import time
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest

from interop.peer import Event, Peer, PeerError, named
from interop.servers import Cluster, Maker

pytestmark = pytest.mark.interop

COMPRESSED_FLAG: Final = 0x1
COMPRESSION_BITS: Final = {"LZ4": 0x100, "ZSTD": 0x200, "ZLIB": 0x300}
FILLER: Final = b"0123456789abcdef"


def sized_body(name: str, size: int) -> bytes:
    """Return the body that the Java side makes for ``size``."""
    start = name.encode()
    return start + bytes(FILLER[at % len(FILLER)] for at in range(len(start), size))


def pull_all(peer: Peer, cluster: Cluster, topic: str, **args: object) -> list[Event]:
    return named(peer.run("pull", namesrv=cluster.namesrv, topic=topic, **args), "message")


def pull_until(peer: Peer, cluster: Cluster, topic: str, count: int, seconds: float) -> list[Event]:
    """Pull again and again until ``count`` messages are there, or ``seconds`` went by."""
    deadline = time.monotonic() + seconds
    while True:
        found = pull_all(peer, cluster, topic)
        if len(found) >= count or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_sent_messages_can_be_pulled(peer: Peer, cluster: Cluster, topic: str, mode: str) -> None:
    sent = named(
        peer.run(
            "send",
            namesrv=cluster.namesrv,
            topic=topic,
            mode=mode,
            count=9,
            tags="TagA,TagB",
            keys="key-#,shared",
            properties="colour:blue,größe:mittel",
            flag=7,
        ),
        "sent",
    )
    assert [one["status"] for one in sent] == ["SEND_OK"] * 9
    got = {message["msgId"]: message for message in pull_all(peer, cluster, topic)}
    assert got.keys() == {one["msgId"] for one in sent}
    for one in sent:
        message = got[one["msgId"]]
        assert message["offsetMsgId"] == one["offsetMsgId"]
        assert (message["queueId"], message["queueOffset"]) == (one["queueId"], one["queueOffset"])
        assert message["flag"] == 7
        assert message["properties"]["größe"] == "mittel"
        assert message["storeHost"].endswith(cluster.broker)
        assert message["bornTimestamp"] <= message["storeTimestamp"]
    number_of = {m["body"]: (m["tags"], m["keys"]) for m in got.values()}
    assert number_of == {
        f"body-{i}": (("TagA", "TagB")[i % 2], f"key-{i} shared") for i in range(9)
    }


def test_queue_offsets_are_dense_and_positions_rise(
    peer: Peer, cluster: Cluster, topic: str
) -> None:
    peer.run("send", namesrv=cluster.namesrv, topic=topic, count=21)
    queues: dict[int, list[Event]] = defaultdict(list)
    for message in pull_all(peer, cluster, topic):
        queues[message["queueId"]].append(message)
    assert sum(map(len, queues.values())) == 21
    for messages in queues.values():
        assert [message["queueOffset"] for message in messages] == list(range(len(messages)))
        positions = [message["commitLogOffset"] for message in messages]
        assert positions == sorted(positions)


def test_oneway_messages_arrive(peer: Peer, cluster: Cluster, topic: str) -> None:
    peer.run("send", namesrv=cluster.namesrv, topic=topic, mode="oneway", count=5)
    found = pull_until(peer, cluster, topic, 5, seconds=10)
    assert sorted(message["body"] for message in found) == [f"body-{i}" for i in range(5)]


def test_a_selector_picks_the_queue(peer: Peer, cluster: Cluster, topic: str) -> None:
    for queue in (3, 1):
        sent = named(
            peer.run("send", namesrv=cluster.namesrv, topic=topic, queue=queue, count=2), "sent"
        )
        assert [(one["queueId"], one["queueOffset"]) for one in sent] == [(queue, 0), (queue, 1)]


def test_a_batch_becomes_consecutive_messages(peer: Peer, cluster: Cluster, topic: str) -> None:
    [sent] = named(
        peer.run(
            "batch", namesrv=cluster.namesrv, topic=topic, count=5, tags="A,B", keys="batch-#"
        ),
        "sent",
    )
    assert len(sent["msgId"].split(",")) == 5
    found = pull_all(peer, cluster, topic)
    assert [message["body"] for message in found] == [f"body-{i}" for i in range(5)]
    assert [message["tags"] for message in found] == ["A", "B", "A", "B", "A"]
    assert [message["keys"] for message in found] == [f"batch-{i}" for i in range(5)]
    assert [message["queueOffset"] for message in found] == list(range(5))
    assert {message["queueId"] for message in found} == {sent["queueId"]}
    assert ",".join(message["offsetMsgId"] for message in found) == sent["offsetMsgId"]


def test_messages_of_a_batch_have_the_ids_that_their_sender_got(
    peer: Peer, cluster: Cluster, topic: str, target: Maker
) -> None:
    [sent] = named(peer.run("batch", namesrv=cluster.namesrv, topic=topic, count=3), "sent")
    seen = {message["msgId"] for message in pull_all(peer, cluster, topic)}
    if target == "apache" and peer.version == "5.3":
        # This client names the batch as well, and to Apache the last UNIQ_KEY of a record counts.
        assert len(seen) == 1
        assert not seen & set(sent["msgId"].split(","))
    else:
        assert seen == set(sent["msgId"].split(","))


@pytest.mark.parametrize("compression", ["ZLIB", "LZ4", "ZSTD"])
def test_compressed_bodies_survive(
    peer: Peer, cluster: Cluster, topic: str, compression: str
) -> None:
    size = 300_000
    peer.run("send", namesrv=cluster.namesrv, topic=topic, size=size, compression=compression)
    [message] = pull_all(peer, cluster, topic)
    body = sized_body("body-0", size)
    assert (message["bodySize"], message["bodyCrc"]) == (size, zlib.crc32(body))
    # The 5.3 client clears the lowest bit once it has unpacked the body; the kind stays.
    assert message["sysFlag"] & ~COMPRESSED_FLAG == COMPRESSION_BITS[compression]
    assert message["storeSize"] < size / 10


def test_a_body_too_large_is_refused(peer: Peer, cluster: Cluster, topic: str) -> None:
    too_large = {"size": 5 * 1024 * 1024, "compressOver": 6 * 1024 * 1024}
    with pytest.raises(PeerError, match="CODE: 13"):
        peer.run("send", namesrv=cluster.namesrv, topic=topic, **too_large)


def test_the_pull_status_shows_where_the_offset_is(
    peer: Peer, cluster: Cluster, topic: str
) -> None:
    peer.run("send", namesrv=cluster.namesrv, topic=topic, count=4, queue=0, tags="A")

    def status(**args: object) -> tuple[str, int]:
        common = {"namesrv": cluster.namesrv, "topic": topic, "queue": 0, "once": 1}
        [answer] = named(peer.run("pull", **{**common, **args}), "pulled")
        assert (answer["minOffset"], answer["maxOffset"]) == (0, 4)
        return answer["status"], answer["nextBeginOffset"]

    assert status(begin=0, batch=2) == ("FOUND", 2)
    assert status(begin=2) == ("FOUND", 4)
    assert status(begin=0, expression="B") == ("NO_MATCHED_MSG", 4)
    assert status(begin=4) == ("NO_NEW_MSG", 4)
    assert status(begin=100) == ("OFFSET_ILLEGAL", 4)


def test_offsets_can_be_asked_and_searched_by_time(
    peer: Peer, cluster: Cluster, topic: str
) -> None:
    common = {"namesrv": cluster.namesrv, "topic": topic}
    peer.run("send", **common, count=3, queue=2)
    first = pull_all(peer, cluster, topic)
    time.sleep(0.05)
    between = int(time.time() * 1000)
    time.sleep(0.05)
    peer.run("send", **common, count=2, queue=2)
    offsets = {e["queueId"]: e for e in peer.run("offsets", **common, timestamp=between)}
    assert sorted(offsets) == [0, 1, 2, 3]
    assert (offsets[2]["minOffset"], offsets[2]["maxOffset"], offsets[2]["searched"]) == (0, 5, 3)
    assert offsets[2]["earliestStoreTime"] == first[0]["storeTimestamp"]
    assert (offsets[0]["minOffset"], offsets[0]["maxOffset"]) == (0, 0)


def test_messages_are_found_by_key_unique_id_and_offset_id(
    peer: Peer, cluster: Cluster, topic: str
) -> None:
    common = {"namesrv": cluster.namesrv, "topic": topic}
    sent = named(peer.run("send", **common, count=3, keys="only-#,every"), "sent")
    time.sleep(0.5)  # the index is written behind the log
    [one] = named(peer.run("query", **common, key="only-1"), "message")
    assert (one["body"], one["msgId"]) == ("body-1", sent[1]["msgId"])
    every = named(peer.run("query", **common, key="every"), "message")
    assert sorted(message["body"] for message in every) == ["body-0", "body-1", "body-2"]
    for identifier in (sent[2]["msgId"], sent[2]["offsetMsgId"]):
        [viewed] = peer.run("view", **common, id=identifier)
        assert viewed["body"] == "body-2"
    with pytest.raises(PeerError):
        peer.run("query", **common, key="nobody")


def test_push_filters_by_tag_and_commits(peer: Peer, cluster: Cluster, topic: str) -> None:
    common = {"namesrv": cluster.namesrv, "topic": topic}
    peer.run("send", **common, count=12, tags="red,green,blue")
    group = f"push-{topic}-{peer.version.replace('.', '_')}"
    events = peer.run("push", **common, group=group, expression="red || blue", count=8)
    found = named(events, "message")
    assert sorted(message["body"] for message in found) == sorted(
        f"body-{i}" for i in range(12) if i % 3 != 1
    )
    assert {message["reconsumeTimes"] for message in found} == {0}
    peer.run("send", **common, count=3, tags="red", body="more")
    again = named(
        peer.run("push", **common, group=group, expression="red || blue", count=3), "message"
    )
    assert sorted(message["body"] for message in again) == ["more-0", "more-1", "more-2"]


SQL: Final = "size > 10 AND kind = 'b'"


def send_sized(peer: Peer, cluster: Cluster, topic: str, round_: str) -> list[str]:
    """Send two messages that SQL lets through and four that it does not."""
    common = {"namesrv": cluster.namesrv, "topic": topic}
    peer.run("send", **common, count=2, properties="size:3,kind:b", body=f"small-{round_}")
    peer.run("send", **common, count=2, properties="size:30,kind:b", body=f"large-{round_}")
    peer.run("send", **common, count=2, body=f"bare-{round_}")
    return [f"large-{round_}-0", f"large-{round_}-1"]


def test_push_by_sql_expression(peer: Peer, cluster: Cluster, topic: str) -> None:
    common = {"namesrv": cluster.namesrv, "topic": topic}
    for round_ in ("first", "second"):  # the second goes on where the first committed
        wanted = send_sized(peer, cluster, topic, round_)
        events = peer.run("push", **common, group=f"sql-{topic}", sql=SQL, count=2)
        assert sorted(m["body"] for m in named(events, "message")) == wanted


def test_lite_pull_by_sql_expression(peer: Peer, cluster: Cluster, topic: str) -> None:
    wanted = send_sized(peer, cluster, topic, "only")
    common = {"namesrv": cluster.namesrv, "topic": topic, "group": f"sql-lite-{topic}"}
    found = named(peer.run("litepull", **common, sql=SQL, count=2), "message")
    assert sorted(message["body"] for message in found) == wanted


def test_a_wrong_sql_expression_stops_the_start(peer: Peer, cluster: Cluster, topic: str) -> None:
    common = {"namesrv": cluster.namesrv, "topic": topic}
    with pytest.raises(PeerError, match=r"CODE: *23"):
        peer.run("push", **common, group=f"wrong-{topic}", sql="size >", count=1)


def test_orderly_push_keeps_the_order_of_each_queue(
    peer: Peer, cluster: Cluster, topic: str
) -> None:
    common = {"namesrv": cluster.namesrv, "topic": topic}
    peer.run("send", **common, count=40)
    events = peer.run("push", **common, group=f"orderly-{topic}", orderly=1, count=40)
    queues: dict[int, list[int]] = defaultdict(list)
    for message in named(events, "message"):
        queues[message["queueId"]].append(message["queueOffset"])
    assert sum(map(len, queues.values())) == 40
    for offsets in queues.values():
        assert offsets == list(range(len(offsets)))


def test_a_refused_message_is_redelivered(peer: Peer, cluster: Cluster, topic: str) -> None:
    common = {"namesrv": cluster.namesrv, "topic": topic}
    [sent] = named(peer.run("send", **common, tags="A", keys="again"), "sent")
    events = peer.run("push", **common, group=f"retry-{topic}", refuse=1, count=2, timeout=60)
    first, second = named(events, "message")
    assert (first["reconsumeTimes"], second["reconsumeTimes"]) == (0, 1)
    assert (second["topic"], second["body"], second["tags"]) == (topic, "body-0", "A")
    assert second["properties"]["RETRY_TOPIC"] == topic
    assert second["properties"]["ORIGIN_MESSAGE_ID"] == sent["offsetMsgId"]


def test_a_message_arriving_wakes_a_waiting_consumer(
    peer: Peer, other_peer: Peer, cluster: Cluster, topic: str
) -> None:
    common = {"namesrv": cluster.namesrv, "topic": topic}
    received: list[float] = []
    subscribed = threading.Event()

    def watch(event: Event) -> None:
        subscribed.set()
        if event["event"] == "message":
            received.append(time.monotonic())

    consuming = threading.Thread(
        target=lambda: other_peer.run_watched(
            "push", watch, **common, group=f"poll-{topic}", count=1
        )
    )
    consuming.start()
    subscribed.wait(20)
    time.sleep(4)  # by now its pulls are parked in the broker
    peer.run("send", **common)
    sent_at = time.monotonic()
    consuming.join()
    assert received
    assert received[0] - sent_at < 10  # a pull that nothing wakes is held for 15 s


def test_two_consumers_of_a_group_share_the_queues(
    peer: Peer, other_peer: Peer, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    common: dict[str, object] = {"namesrv": cluster.namesrv, "topic": topic}
    found: dict[str, list[Event]] = {"a": [], "b": []}
    arrived = threading.Condition()
    rounds_max, round_messages = 30, 40

    def consume(name: str, consumer: Peer) -> None:
        def watch(event: Event) -> None:
            if event["event"] == "message":
                with arrived:
                    found[name].append(event)
                    arrived.notify()

        # Every message of all rounds would be needed: the time ends the consumer.
        count = rounds_max * round_messages + 1
        args = {**common, "group": f"share-{topic}", "count": count, "timeout": 25}
        consumer.run_watched("push", watch, **args)

    def received() -> set[tuple[int, int]]:
        """Return the places of all messages; one that came twice while balancing counts once."""
        messages = [*found["a"], *found["b"]]
        return {(message["queueId"], message["queueOffset"]) for message in messages}

    def send_round(number: int) -> dict[str, set[int]]:
        """Send to every queue; return the queues from which each consumer got something."""
        before = {name: len(got) for name, got in found.items()}
        sender.run("send", **common, count=round_messages)
        with arrived:
            assert arrived.wait_for(lambda: len(received()) == (number + 1) * round_messages, 20)
            return {
                name: {message["queueId"] for message in got[before[name] :]}
                for name, got in found.items()
            }

    consumers = [
        threading.Thread(target=consume, args=one) for one in (("a", peer), ("b", other_peer))
    ]
    for consumer in consumers:
        consumer.start()
    with Peer(peer.version, tmp_path / "sender") as sender:
        for number in range(rounds_max):  # until both have met and balanced
            queues = send_round(number)
            if len(queues["a"]) == len(queues["b"]) == 2 and not queues["a"] & queues["b"]:
                break
        else:
            raise AssertionError(f"the queues were not shared: {queues}")
    for consumer in consumers:
        consumer.join()


def test_lite_pull_filters_by_tag(peer: Peer, cluster: Cluster, topic: str) -> None:
    common = {"namesrv": cluster.namesrv, "topic": topic}
    peer.run("send", **common, count=9, tags="x,y,z")
    found = named(
        peer.run("litepull", **common, group=f"lite-{topic}", expression="y", count=3), "message"
    )
    assert sorted(message["body"] for message in found) == ["body-1", "body-4", "body-7"]


def test_committed_offsets_are_kept(peer: Peer, cluster: Cluster, topic: str) -> None:
    common = {"namesrv": cluster.namesrv, "topic": topic, "group": f"commit-{topic}"}
    peer.run("send", namesrv=cluster.namesrv, topic=topic, count=3, queue=1)
    before = {event["queueId"]: event["committed"] for event in peer.run("offsets", **common)}
    peer.run("pull", **common, queue=1, commit=1)
    after = {event["queueId"]: event["committed"] for event in peer.run("offsets", **common)}
    assert before[1] in (-1, 0)
    assert after[1] == 3


def test_a_delayed_message_shows_up_later(peer: Peer, cluster: Cluster, topic: str) -> None:
    common = {"namesrv": cluster.namesrv, "topic": topic}
    peer.run("send", **common, delayLevel=2, tags="A", keys="late")
    assert pull_all(peer, cluster, topic) == []
    [message] = pull_until(peer, cluster, topic, 1, seconds=20)
    assert message["storeTimestamp"] - message["bornTimestamp"] >= 4900
    assert (message["tags"], message["keys"]) == ("A", "late")
    # The unique id stays, so the sender's receipt still finds it.
    [found] = named(peer.run("query", **common, key="late"), "message")
    assert found["body"] == "body-0"


@pytest.mark.parametrize(
    ("decision", "checked", "visible"),
    [
        ("COMMIT_MESSAGE", None, True),
        ("ROLLBACK_MESSAGE", None, False),
        ("UNKNOW", "COMMIT_MESSAGE", True),
        ("UNKNOW", "ROLLBACK_MESSAGE", False),
    ],
)
def test_transactions_end_as_decided(
    peer: Peer, cluster: Cluster, topic: str, decision: str, checked: str | None, visible: bool
) -> None:
    common = {"namesrv": cluster.namesrv, "topic": topic}
    args = {"checked": checked, "checks": 1, "linger": 500} if checked else {}
    group = f"transaction-{topic}"
    events = peer.run("transaction", **common, group=group, decision=decision, tags="T", **args)
    [sent] = named(events, "sent")
    if checked:
        [asked] = named(events, "checked")
        assert asked["body"] == "body-0"
        assert asked["properties"]["UNIQ_KEY"] == sent["msgId"]
    found = pull_until(peer, cluster, topic, 1, seconds=3)
    assert [message["msgId"] for message in found] == ([sent["msgId"]] if visible else [])


def test_a_request_gets_its_reply(
    peer: Peer, other_peer: Peer, cluster: Cluster, topic: str
) -> None:
    common: dict[str, object] = {"namesrv": cluster.namesrv, "topic": topic}
    subscribed = threading.Event()

    def answer() -> None:
        args = {
            **common,
            "group": f"answer-{topic}",
            "reply": "answered",
            "count": 1,
            "timeout": 15,
        }
        other_peer.run_watched("push", lambda event: subscribed.set(), **args)

    answering = threading.Thread(target=answer)
    answering.start()
    subscribed.wait(20)
    events = peer.run("request", **common, count=1, timeout=10)
    answering.join()
    assert [event["body"] for event in named(events, "reply")] == ["answered"]


def test_the_binary_header_encoding_works_throughout(binary_peer: Peer, cluster: Cluster) -> None:
    topic = f"Binary{binary_peer.version.replace('.', '')}"
    common = {"namesrv": cluster.namesrv, "topic": topic}
    sent = named(binary_peer.run("send", **common, count=4, tags="A,B", keys="key-#"), "sent")
    assert [one["status"] for one in sent] == ["SEND_OK"] * 4
    found = pull_all(binary_peer, cluster, topic)
    assert sorted(message["body"] for message in found) == [f"body-{i}" for i in range(4)]
    events = binary_peer.run("push", **common, group=f"group-{topic}", expression="B", count=2)
    assert sorted(m["body"] for m in named(events, "message")) == ["body-1", "body-3"]
    assert "T" in binary_peer.mqadmin(cluster.namesrv, f"topicRoute -t {topic}")
