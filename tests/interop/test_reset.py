"""Resets of online consumers: Java's by our tool and by Apache's, both ways a broker can do it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner

from interop.peer import Event, Peer, named
from interop.servers import Cluster
from rocketpost.admin.main import mqadmin
from rocketpost.client import (
    ClientConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)
from rocketpost.client.admin import AdminClient

pytestmark = pytest.mark.interop

_groups = itertools.count(1)
_KEY = "useServerSideResetOffset"
# A member that is told waits 10 s; offsets reach the broker every 5 s.
_SECONDS = 45


def ours(cluster: Cluster, *words: str) -> str | None:
    """Run our ``mqadmin``; None if it fails."""
    result = CliRunner().invoke(mqadmin, words, env={"NAMESRV_ADDR": cluster.namesrv})
    return result.stdout if result.exit_code == 0 else None


@pytest.fixture(params=["true", "false"], ids=["by the broker", "by the members"])
def way(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """The component that sets the offsets: the broker, or the members that it notifies."""
    where = ["updateBrokerConfig", "-b", cluster.broker, "-k", _KEY, "-v"]
    assert ours(cluster, *where, request.param) is not None
    yield request.param
    assert ours(cluster, *where, "true") is not None


def until_done(reset: Callable[[], str | None]) -> str:
    """Reset, again if the group's first offsets are not with the broker yet."""
    deadline = time.monotonic() + 20
    while (printed := reset()) is None:
        assert time.monotonic() < deadline, "the reset is refused again and again"
        time.sleep(0.5)
    return printed


@pytest.mark.parametrize("tool", ["ours", "apache"])
@pytest.mark.parametrize("kind", ["concurrent", "orderly"])
def test_a_java_consumer_is_set_back_while_it_is_online(
    peer: Peer, other_peer: Peer, cluster: Cluster, topic: str, way: str, tool: str, kind: str
) -> None:
    group = f"online-{next(_groups)}"
    common = {"namesrv": cluster.namesrv, "topic": topic}
    peer.run("send", **common, count=2, queue=0)
    time.sleep(0.01)
    since = time.time_ns() // 1_000_000
    peer.run("send", **common, count=3, queue=0)
    words = ["resetOffsetByTime", "-g", group, "-t", topic, "-s", str(since)]
    seen: list[Event] = []

    def reset() -> str | None:
        if tool == "ours":
            return ours(cluster, *words, "--yes")
        printed = other_peer.mqadmin(cluster.namesrv, " ".join(words))
        return printed if "broker-a" in printed else None

    def watch(event: Event) -> None:
        if event["event"] == "message":
            seen.append(event)
            if len(seen) == 5:
                assert "2" in until_done(reset).split()  # the offset of the first one of then

    orderly = {"orderly": "true"} if kind == "orderly" else {}
    peer.run_watched("push", watch, **common, group=group, count=8, timeout=_SECONDS, **orderly)
    offsets = [event["queueOffset"] for event in seen]
    if kind == "concurrent":  # in no order
        offsets = sorted(offsets[:5]) + sorted(offsets[5:])
    assert offsets == [0, 1, 2, 3, 4, 2, 3, 4]


@pytest.mark.parametrize("tool", ["ours", "apache"])
def test_our_consumer_is_reset_back_and_ahead_while_it_is_online(
    peer: Peer, cluster: Cluster, topic: str, way: str, tool: str
) -> None:
    group = f"online-{next(_groups)}"
    common = {"namesrv": cluster.namesrv, "topic": topic}
    peer.run("send", **common, count=5, queue=0)

    def reset(when: str) -> str | None:
        words = ["resetOffsetByTime", "-g", group, "-t", topic, "-s", when]
        if tool == "ours":
            return ours(cluster, *words, "--yes")
        printed = peer.mqadmin(cluster.namesrv, " ".join(words))
        return printed if "broker-a" in printed else None

    async def consume() -> list[int]:
        seen: list[int] = []
        config = PushConsumerConfig(
            name_servers=cluster.namesrv,
            start_from=StartFrom.FIRST,
            persist_seconds=0.2,
            hold_seconds=1.0,
        )
        consumer = PushConsumer(group, config=config)

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.queue_offset)

        async def until(count: int) -> None:
            async with asyncio.timeout(_SECONDS):
                while len(seen) < count:
                    await asyncio.sleep(0.05)

        consumer.subscribe(topic, handle)
        async with (
            consumer,
            AdminClient(config=ClientConfig(name_servers=cluster.namesrv)) as admin,
        ):
            await until(5)
            await asyncio.to_thread(until_done, lambda: reset("0"))
            await until(10)
            told = await admin.groups.member_offsets(cluster.broker, group, topic)
            assert list(told) == [consumer.client_id]
            consumer.pause()
            await asyncio.to_thread(peer.run, "send", **common, count=3, queue=0)
            await asyncio.to_thread(until_done, lambda: reset("now"))
            await asyncio.to_thread(peer.run, "send", **common, count=1, queue=0)
            consumer.resume()
            async with asyncio.timeout(_SECONDS):
                while seen[-1] != 8:
                    await asyncio.sleep(0.05)
        return seen

    seen = asyncio.run(consume())
    assert sorted(seen[:5]) == sorted(seen[5:10]) == [0, 1, 2, 3, 4]
    assert seen[-1] == 8


def test_a_group_without_members_is_reset_all_the_same(
    peer: Peer, cluster: Cluster, topic: str, way: str
) -> None:
    group = f"offline-{next(_groups)}"
    common = {"namesrv": cluster.namesrv, "topic": topic}
    peer.run("send", **common, count=4, queue=0)
    peer.run("push", **common, group=group, count=4)
    gentle = ["skipAccumulatedMessage", "-g", group, "-t", topic, "-f"]
    assert until_done(
        lambda: ours(cluster, "resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", "--yes")
    )
    assert until_done(lambda: ours(cluster, *gentle, "false"))  # back only, so nothing changes
    again = named(peer.run("push", **common, group=group, count=4), "message")
    assert sorted(event["queueOffset"] for event in again) == [0, 1, 2, 3]
