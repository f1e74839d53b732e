"""The official gRPC clients of every language against our broker: all that each of them can do."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.leash import Event, Leash, PeerError
from interop.official.servers import GrpcCluster
from interop.official.tools import ToolMissingError, official
from interop.servers import SMALL_STORE
from rocketpost.client import SimpleConsumer
from rocketpost.server.secure.authority import Authority

pytestmark = pytest.mark.interop

SETTINGS = {
    **SMALL_STORE,
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "1000",
    "recallMessageEnable": "true",
    "enablePropertyFilter": "true",
    "timerWheelEnable": "true",
}
COMPILED = ("go", "rust")
LANGUAGES = [
    pytest.param(name, marks=pytest.mark.long if name in COMPILED else ())
    for name in ("python", "java", "node", "go", "rust")
]
TOPICS = {
    "normal": "NORMAL",
    "fifo": "FIFO",
    "delay": "DELAY",
    "transaction": "TRANSACTION",
    "priority": "PRIORITY",
}
# What the published clients lack.
WITHOUT_PUSH = ("rust",)
WITHOUT_RECALL = ("rust",)
WITHOUT_PRIORITY = ("rust",)
WITHOUT_LATER = ("rust",)


APACHE = "apache"
"""Apache's broker and name server, behind a proxy of ours."""
# It stores the ends of transactions every three seconds, and asks about ended ones before that.
OF_APACHE = {"transactionTimeOut": "6000"}


@pytest.fixture(
    scope="module",
    params=["local", *(pytest.param(name, marks=pytest.mark.long) for name in ("apart", APACHE))],
)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GrpcCluster]:
    """A broker with the port in its own process, or with a proxy in front of it."""
    if request.param == APACHE:
        request.getfixturevalue("java")
    directory = tmp_path_factory.mktemp("grpc")
    authority = Authority.make("test")
    (directory / "roots.pem").write_bytes(authority.pem.certificate)
    certificate, key = directory / "server.pem", directory / "server.key"
    authority.issue("localhost", hosts=("127.0.0.1",)).write_blocking(certificate, key)
    with GrpcCluster(
        directory,
        APACHE if request.param == APACHE else "rocketpost",
        settings={**SETTINGS, **(OF_APACHE if request.param == APACHE else {})},
        is_separate=request.param != "local",
        proxy_settings={
            "tlsCertPath": str(certificate),
            "tlsKeyPath": str(key),
            # Some clients end only when their last poll does.
            "grpcClientConsumerMaxLongPollingTimeoutMillis": 5000,
        },
    ) as running:
        kinds = {name: kind for name, kind in TOPICS.items() if kind != "PRIORITY"}
        running.make(topics=kinds, orderly="in-order")
        yield running


@pytest.fixture(scope="module", params=LANGUAGES)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cluster: GrpcCluster
) -> Iterator[Leash]:
    """The official client for one language."""
    home = tmp_path_factory.mktemp(request.param)
    roots = cluster.directory / "roots.pem"
    try:
        with official(request.param, home, roots=roots) as running:
            yield running
    except ToolMissingError as missing:
        pytest.skip(str(missing))


_NUMBERS = itertools.count()


@pytest.fixture
def group(client: Leash) -> str:
    """A group that nobody has used."""
    return f"{client.name}-{next(_NUMBERS)}"


@pytest.fixture
def topic(client: Leash, cluster: GrpcCluster, request: pytest.FixtureRequest) -> str:
    """A topic of the type that the test names, which nobody has used."""
    kind = request.node.get_closest_marker("kind").args[0]
    if kind == "PRIORITY" and cluster.maker == APACHE:
        pytest.skip("this release of Apache's broker has no priorities")
    name = f"{kind.lower()}-{client.name}-{next(_NUMBERS)}"
    cluster.make(topics={name: kind})
    return name


def bodies(events: list[Event]) -> list[str]:
    return [event["body"] for event in events if event["event"] == "got"]


def _skip_if(client: Leash, names: tuple[str, ...]) -> None:
    if client.name in names:
        pytest.skip(f"the published client for {client.name} lacks it")


@pytest.mark.kind("NORMAL")
def test_normal_messages_with_all_their_parts(
    cluster: GrpcCluster, client: Leash, topic: str, group: str
) -> None:
    sent = client.run(
        "send", at=cluster.grpc, topic=topic, bodies="a,b,c", tag="t", keys="k", color="red"
    )
    got = client.run("simple", at=cluster.grpc, topic=topic, group=group, count=3, seconds=20)
    assert sorted(bodies(got)) == ["a", "b", "c"]
    assert {event["id"] for event in got} == {event["id"] for event in sent}
    for event in got:
        assert (event["tag"], event["keys"], event["color"]) == ("t", ["k"], "red")
        assert event["attempt"] == 1


@pytest.mark.kind("NORMAL")
def test_filters_by_tags_and_by_sql(
    cluster: GrpcCluster, client: Leash, topic: str, group: str
) -> None:
    for body, tag, color in (("1", "a", "red"), ("2", "b", "blue"), ("3", "c", "red")):
        client.run("send", at=cluster.grpc, topic=topic, bodies=body, tag=tag, color=color)
    common = {"at": cluster.grpc, "topic": topic, "count": 2, "seconds": 20}
    tagged = client.run("simple", group=group, tags="a||b", **common)
    assert sorted(bodies(tagged)) == ["1", "2"]
    chosen = client.run("simple", group=f"{group}-sql", sql="color = 'red'", **common)
    assert sorted(bodies(chosen)) == ["1", "3"]


@pytest.mark.kind("NORMAL")
def test_a_message_that_is_put_off_comes_again(
    cluster: GrpcCluster, client: Leash, topic: str, group: str
) -> None:
    _skip_if(client, WITHOUT_LATER)
    client.run("send", at=cluster.grpc, topic=topic, bodies="x")
    common = {"at": cluster.grpc, "topic": topic, "group": group}
    got = client.run("simple", count=2, seconds=30, later=1, **common)
    assert [(event["body"], event["attempt"]) for event in got] == [("x", 1), ("x", 2)]
    assert client.run("simple", count=1, seconds=3, **common) == []


@pytest.mark.kind("NORMAL")
def test_a_push_consumer_gets_again_what_it_could_not_handle(
    cluster: GrpcCluster, client: Leash, topic: str, group: str
) -> None:
    _skip_if(client, WITHOUT_PUSH)
    client.run("send", at=cluster.grpc, topic=topic, bodies="x,y")
    got = client.run(
        "push", at=cluster.grpc, topic=topic, group=group, count=4, seconds=30, failures=1
    )
    attempts = sorted((event["body"], event["attempt"]) for event in got)
    assert attempts == [("x", 1), ("x", 2), ("y", 1), ("y", 2)]
    common = {"at": cluster.grpc, "topic": topic, "group": group}
    assert client.run("simple", count=1, seconds=3, **common) == []


@pytest.mark.long
@pytest.mark.kind("FIFO")
def test_the_order_of_a_message_group_outlives_a_killed_consumer(
    cluster: GrpcCluster, client: Leash, topic: str, group: str, tmp_path: Path
) -> None:
    """Messages that the dead one was handling come again, in order, before those that follow."""
    _skip_if(client, WITHOUT_PUSH)
    cluster.make(topics={}, orderly=group)
    texts = [str(number) for number in range(12)]
    client.run("send", at=cluster.grpc, topic=topic, bodies=",".join(texts), group="g")
    common = {"at": cluster.grpc, "topic": topic, "group": group, "pace": 300}
    with official(client.name, tmp_path) as victim:
        victim.start("push", count=12, seconds=60, **common)
        first = [victim.next(30.0)["body"] for _ in range(3)]
        victim.kill()
    assert first == texts[:3]
    rest = bodies(client.run("push", count=10, seconds=100, **common))
    # The last message of the victim may have been acknowledged or not.
    assert rest[-1] == "11"
    assert rest == texts[-len(rest) :]
    assert len(rest) in (9, 10)


@pytest.mark.long
@pytest.mark.kind("NORMAL")
def test_a_push_consumer_outlives_its_server(
    cluster: GrpcCluster, client: Leash, topic: str, group: str, tmp_path: Path
) -> None:
    """It acknowledges by a handle from before the kill, and goes on to receive."""
    _skip_if(client, WITHOUT_PUSH)
    client.run("send", at=cluster.grpc, topic=topic, bodies="before")
    common = {"at": cluster.grpc, "topic": topic, "group": group}
    with official(client.name, tmp_path) as consumer:
        consumer.start("push", count=2, seconds=100, pace=3000, **common)
        first = consumer.next(30.0)
        cluster.restart_port()
        client.run("send", at=cluster.grpc, topic=topic, bodies="after")
        second = consumer.next(60.0)
        assert consumer.finish() == []
    got = [(event["body"], event["attempt"]) for event in (first, second)]
    assert got == [("before", 1), ("after", 1)]


@pytest.mark.kind("DELAY")
def test_delayed_messages_come_in_time_and_can_be_recalled(
    cluster: GrpcCluster, client: Leash, topic: str, group: str
) -> None:
    began = time.monotonic()
    common = {"at": cluster.grpc, "topic": topic}
    (kept,) = client.run("send", bodies="kept", delay=3000, **common)
    if client.name not in WITHOUT_RECALL:
        (sent,) = client.run("send", bodies="recalled", delay=4000, **common)
        (recalled,) = client.run("recall", handle=sent["recall"], **common)
        assert recalled["id"] == sent["id"]
    got = client.run("simple", group=group, count=1, seconds=20, **common)
    assert [event["id"] for event in got] == [kept["id"]]
    assert time.monotonic() - began > 1.9  # some clients send whole seconds
    if client.name not in WITHOUT_RECALL:
        left = max(1, round(7 - (time.monotonic() - began)))
        assert client.run("simple", group=group, count=1, seconds=left, **common) == []
        with pytest.raises(PeerError):
            client.run("recall", handle="bm90IGEgaGFuZGxl", **common)


@pytest.mark.kind("TRANSACTION")
def test_transactions_end_as_the_producer_says_or_is_asked(
    cluster: GrpcCluster, client: Leash, topic: str, group: str
) -> None:
    common = {"at": cluster.grpc, "topic": topic}
    client.run("transact", body="committed", end="commit", **common)
    client.run("transact", body="dropped", end="rollback", **common)
    asked = client.run("transact", body="orphan", answer="commit", seconds=30, **common)
    assert {event["body"] for event in asked} == {"orphan"}
    got = client.run("simple", group=group, count=2, seconds=20, **common)
    assert sorted(bodies(got)) == ["committed", "orphan"]
    assert client.run("simple", group=group, count=1, seconds=2, **common) == []


@pytest.mark.kind("PRIORITY")
def test_priorities(cluster: GrpcCluster, client: Leash, topic: str, group: str) -> None:
    _skip_if(client, WITHOUT_PRIORITY)
    common = {"at": cluster.grpc, "topic": topic}
    client.run("send", bodies="low", priority=1, **common)
    client.run("send", bodies="high", priority=3, **common)
    got = client.run("simple", group=group, count=2, seconds=20, **common)
    assert bodies(got) == ["high", "low"]


@pytest.mark.kind("FIFO")
def test_a_message_of_another_type_is_refused(
    cluster: GrpcCluster, client: Leash, topic: str
) -> None:
    with pytest.raises(PeerError):
        client.run("send", at=cluster.grpc, topic=topic, bodies="plain")


@pytest.mark.kind("NORMAL")
def test_tls(cluster: GrpcCluster, client: Leash, topic: str, group: str) -> None:
    common = {"at": cluster.grpc, "topic": topic, "tls": 1}
    client.run("send", bodies="secret", **common)
    got = client.run("simple", group=group, count=1, seconds=20, **common)
    assert bodies(got) == ["secret"]


@pytest.mark.kind("NORMAL")
def test_members_of_both_protocols_share_a_group(
    cluster: GrpcCluster, client: Leash, topic: str, group: str
) -> None:
    """Each message comes to one of them; none is lost."""
    client.run("simple", at=cluster.grpc, topic=topic, group=group, count=1, seconds=1)
    texts = [f"{number:03}" for number in range(60)]
    client.run("send", at=cluster.grpc, topic=topic, bodies=",".join(texts))
    client.start("simple", at=cluster.grpc, topic=topic, group=group, count=60, seconds=4)
    mine = asyncio.run(_take(cluster.namesrv, topic, group, seconds=4))
    theirs = bodies(client.finish())
    assert sorted(mine + theirs) == texts


async def _take(name_servers: str, topic: str, group: str, *, seconds: float) -> list[str]:
    """Receive and acknowledge by the remoting protocol, a few at a time."""
    taken: list[str] = []
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    async with SimpleConsumer(group, name_servers=name_servers) as consumer:
        await consumer.subscribe(topic)
        while loop.time() < end:
            for message in await consumer.receive(2, invisible_seconds=30, await_seconds=1):
                taken.append(message.body.decode())
                await consumer.ack(message)
    return taken


KEYS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"root","secretKey":"root-secret"}',
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcCluster]:
    """A broker with access control."""
    directory = tmp_path_factory.mktemp("guarded")
    settings = {**SETTINGS, **KEYS, "autoCreateTopicEnable": "true"}
    with GrpcCluster(directory, "rocketpost", settings=settings) as running:
        running.make(topics={"guarded": "NORMAL"}, user="root", secret="root-secret")
        yield running


def test_keys(guarded: GrpcCluster, client: Leash, group: str) -> None:
    common = {"at": guarded.grpc, "topic": "guarded"}
    right = {"user": "root", "secret": "root-secret"}
    client.run("send", bodies="x", tag=client.name, **common, **right)
    got = client.run(
        "simple", group=group, tags=client.name, count=1, seconds=20, **common, **right
    )
    assert bodies(got) == ["x"]
    for wrong in ({}, {"user": "root", "secret": "another"}):
        with pytest.raises(PeerError):
            client.run("send", bodies="x", **common, **wrong)
