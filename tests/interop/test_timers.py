"""Timed messages and recalls: Java here, our SDK there, and stores with pending timers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.peer import Event, Peer, named
from interop.servers import SMALL_STORE, Cluster, Maker
from rocketpost.client.blocking import Producer
from rocketpost.client.message import Message
from rocketpost.errors import Fault

pytestmark = pytest.mark.interop

# What the first broker takes is due while the second one has the store, or after that.
DUE_SECONDS = (20, 45, 70)
TIMERS = {**SMALL_STORE, "recallMessageEnable": "true", "mappedFileSizeTimerLog": "65536"}


@pytest.fixture(scope="module")
def reader(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    with Peer("5.3", tmp_path_factory.mktemp("reader")) as running:
        yield running


@pytest.fixture(params=["first-apache", "first-rocketpost"])
def makers(request: pytest.FixtureRequest, target: Maker) -> tuple[Maker, Maker]:
    """The broker that writes first and its successor; for the yardstick both are Apache's."""
    if target == "apache":
        if request.param == "first-rocketpost":
            pytest.skip("the target is Apache's broker, there is no second maker")
        return "apache", "apache"
    return ("apache", "rocketpost") if request.param == "first-apache" else ("rocketpost", "apache")


def received(peer: Peer, cluster: Cluster, topic: str = "Timed") -> list[Event]:
    return named(peer.run("pull", namesrv=cluster.namesrv, topic=topic), "message")


def all_of(peer: Peer, cluster: Cluster, count: int, *, seconds: float = 60) -> list[Event]:
    deadline = time.monotonic() + seconds
    while len(found := received(peer, cluster)) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        time.sleep(0.5)
    return found


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def sleep_until(when_ms: int) -> None:
    """Wait for a moment: that something does not come then can be seen afterwards only."""
    time.sleep(max(0, when_ms - now_ms()) / 1000)


def test_java_sends_at_any_time_and_recalls(reader: Peer, target: Maker, tmp_path: Path) -> None:
    with Cluster(tmp_path, target, settings=TIMERS) as cluster:
        common: dict[str, object] = {"namesrv": cluster.namesrv, "topic": "Timed"}
        start = now_ms()
        reader.run("send", **common, body="now")
        reader.run("send", **common, body="sec", delayTimeSec=3, tags="A", keys="k")
        reader.run("send", **common, body="ms", delayTimeMs=3500)
        reader.run("send", **common, body="at", deliverTimeMs=start + 6000)
        (late,) = named(reader.run("send", **common, body="not", delayTimeSec=10), "sent")
        late_ms = now_ms() + 10_000
        assert late["recallHandle"]
        (gone,) = reader.run("recall", **common, handle=late["recallHandle"])
        assert (gone["event"], gone["msgId"]) == ("recalled", late["msgId"])
        (no,) = reader.run("recall", **common, handle="bm9uZQ==")
        assert no["event"] == "refused"
        found = all_of(reader, cluster, 4)
        assert sorted(event["body"] for event in found) == ["at-0", "ms-0", "now-0", "sec-0"]
        for event in found:
            if event["body"] == "sec-0":
                assert event["storeTimestamp"] >= event["bornTimestamp"] + 3000
                assert (event["tags"], event["keys"]) == ("A", "k")
            if event["body"] == "at-0":
                assert event["storeTimestamp"] >= start + 6000
        sleep_until(late_ms + 3000)
        assert len(received(reader, cluster)) == 4


def test_our_sdk_with_apaches_broker(reader: Peer, tmp_path: Path) -> None:
    with Cluster(tmp_path, "apache", settings=TIMERS) as cluster:
        with Producer("timing", name_servers=cluster.namesrv) as producer:
            sent = producer.send(Message("Timed", b"soon", delay_seconds=2.5))
            late_ms = now_ms() + 10_000
            late = producer.send(Message("Timed", b"not", deliver_at_ms=late_ms))
            assert sent.recall_handle
            assert late.recall_handle
            assert producer.recall("Timed", late.recall_handle) == late.message_id
            with pytest.raises(Fault, match="topic"):
                producer.recall("TBW102", late.recall_handle)
        assert [event["body"] for event in all_of(reader, cluster, 1)] == ["soon"]
        sleep_until(late_ms + 3000)
        assert len(received(reader, cluster)) == 1


@pytest.mark.parametrize("ending", ["killed", pytest.param("stopped", marks=pytest.mark.long)])
def test_pending_timers_change_hands_and_come_once(
    reader: Peer, makers: tuple[Maker, Maker], tmp_path: Path, ending: str
) -> None:
    first, second = makers
    with Cluster(tmp_path, first, settings=TIMERS) as cluster:
        common: dict[str, object] = {"namesrv": cluster.namesrv, "topic": "Timed"}
        start = now_ms()

        def end() -> None:
            time.sleep(2 if ending == "killed" else 0)  # the timer is saved every second
            cluster.stop_broker() if ending == "stopped" else cluster.kill_broker()

        reader.run("send", **common, body="early", count=5, delayTimeMs=500)
        early = all_of(reader, cluster, 5)
        for at, seconds in enumerate(DUE_SECONDS):
            reader.run(
                "send", **common, body=f"t{at}", count=40, deliverTimeMs=start + seconds * 1000
            )
        (late,) = named(
            reader.run("send", **common, body="not", deliverTimeMs=start + 71_000), "sent"
        )
        end()
        cluster.start_broker(second)
        found = all_of(reader, cluster, 45)
        assert len({event["msgId"] for event in found}) == len(found)
        reader.run("send", **common, body="mine", count=10, deliverTimeMs=start + 69_000)
        (gone,) = reader.run("recall", **common, handle=late["recallHandle"])
        assert gone["event"] == "recalled", gone
        end()
        cluster.start_broker(first)
        found = all_of(reader, cluster, 5 + 120 + 10, seconds=130)
        time.sleep(3)
        found = received(reader, cluster)
        assert len(found) == 5 + 120 + 10
        assert {event["msgId"] for event in early} < {event["msgId"] for event in found}
        for at, seconds in enumerate(DUE_SECONDS):
            mine = [event for event in found if event["body"].startswith(f"t{at}-")]
            assert len({event["msgId"] for event in mine}) == 40
            assert all(event["storeTimestamp"] >= start + seconds * 1000 for event in mine)
