"""Groups of the SDK on real servers: members come, go and are killed; order and offsets hold."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from rocketpost.client import (
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    RouteNotFound,
    StartFrom,
    Suspend,
)
from rocketpost.client.admin import AdminClient
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.cluster import Cluster

pytestmark = pytest.mark.slow

QUEUES = 6

# A member in a process of its own: says which queues it has and which messages it handled.
MEMBER = """
import asyncio, json, sys
from rocketpost.client import MessageModel, PushConsumer, PushConsumerConfig, StartFrom

async def main(servers, group, topic, kind, directory=None):
    config = PushConsumerConfig(
        name_servers=servers,
        start_from=StartFrom.FIRST,
        rebalance_seconds=2,
        persist_seconds=0.2,
        model=MessageModel.BROADCASTING if directory else MessageModel.CLUSTERING,
        offset_directory=directory,
    )
    consumer = PushConsumer(group, config=config)

    async def handle(message):
        tell(queue=message.queue.queue_id, body=message.body.decode())
        await asyncio.sleep(0.005)

    consumer.subscribe(topic, handle, orderly=kind == "orderly")
    async with consumer:
        while True:
            tell(owned=sorted(q.queue_id for q in consumer.queues if q.topic == topic))
            await asyncio.sleep(0.1)

def tell(**what):
    print(json.dumps(what), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class Member:
    """A consumer in another process."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self.child = child
        self.owned: set[int] = set()
        self.handled: list[tuple[int, int]] = []
        self.reading = asyncio.ensure_future(self._read())

    @classmethod
    async def start(cls, *args: str) -> Member:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", MEMBER, *args, stdout=asyncio.subprocess.PIPE
        )
        return cls(child)

    async def _read(self) -> None:
        assert self.child.stdout is not None
        async for line in self.child.stdout:
            event = json.loads(line)
            if "owned" in event:
                self.owned = set(event["owned"])
            else:
                self.handled.append((event["queue"], int(event["body"])))

    async def kill(self) -> None:
        """End it as ``kill -9`` does."""
        if self.child.returncode is None:
            self.child.kill()
        await self.child.wait()
        await self.reading
        self.owned = set()

    async def leave(self) -> None:
        """End it as Ctrl-C does, which stops the consumer."""
        self.child.send_signal(2)
        await self.child.wait()
        await self.reading
        self.owned = set()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
async def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = f"T-{abs(hash(request.node.name)):x}-{time.monotonic_ns():x}"
    async with AdminClient(name_servers=cluster.addresses) as admin:
        config = TopicConfig(topic_name=name, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        await admin.topics.create(cluster.broker_addresses[0], config)
    return name


@pytest.fixture
async def producer(cluster: Cluster) -> AsyncIterator[Producer]:
    async with Producer("groups", name_servers=cluster.addresses) as client:
        yield client


def config(cluster: Cluster, **options: object) -> PushConsumerConfig:
    defaults: dict[str, object] = {"start_from": StartFrom.FIRST, "rebalance_seconds": 2}
    return PushConsumerConfig(name_servers=cluster.addresses, **(defaults | options))  # type: ignore[arg-type]


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


async def send_all(producer: Producer, topic: str, numbers: range) -> None:
    """Send each number to every queue."""
    queues = await producer.queues(topic)
    for n in numbers:
        for queue in queues:
            await producer.send(Message(topic, b"%d" % n), queue=queue)


async def queues_once_routed(reader: PullConsumer, topic: str) -> list[MessageQueue]:
    """Return the queues of a topic that a broker made just now."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(RouteNotFound):
                return await reader.queues(topic)
            await asyncio.sleep(0.1)


def is_shared(members: list[Member]) -> bool:
    """Whether every queue has exactly one owner."""
    return sorted(queue for each in members for queue in each.owned) == list(range(QUEUES))


async def test_queues_are_served_again_when_members_join_leave_or_are_killed(
    cluster: Cluster, producer: Producer, topic: str
) -> None:
    args = cluster.addresses, f"group-{topic}", topic, "concurrent"
    members = [await Member.start(*args) for _ in range(3)]
    try:
        await until(lambda: is_shared(members) and all(len(m.owned) == 2 for m in members))
        await send_all(producer, topic, range(10))
        await until(lambda: sum(len(m.handled) for m in members) >= 10 * QUEUES)
        began = time.monotonic()
        await members[0].kill()
        await until(lambda: is_shared(members[1:]))
        assert time.monotonic() - began < 5.0  # one round, not the silence that brokers bear
        await send_all(producer, topic, range(10, 20))
        await members[1].leave()
        await until(lambda: is_shared(members[2:]))
        members.append(await Member.start(*args))
        await until(lambda: is_shared(members[2:]) and len(members[3].owned) == 3)
        await send_all(producer, topic, range(20, 30))
        expected = {(queue, n) for queue in range(QUEUES) for n in range(30)}
        await until(lambda: {pair for m in members for pair in m.handled} == expected)
    finally:
        for member in members:
            await member.kill()


@pytest.mark.long
async def test_order_is_kept_while_a_member_is_killed(
    cluster: Cluster, producer: Producer, topic: str
) -> None:
    """The dead member's locks live on with the broker for a minute; then its queues go on."""
    args = cluster.addresses, f"group-{topic}", topic, "orderly"
    members = [await Member.start(*args) for _ in range(2)]
    try:
        await until(lambda: is_shared(members) and all(len(m.owned) == 3 for m in members))
        sending = asyncio.ensure_future(send_all(producer, topic, range(100)))
        await until(lambda: len(members[0].handled) > 20)
        await members[0].kill()
        await sending
        expected = {(queue, n) for queue in range(QUEUES) for n in range(100)}
        await until(lambda: {pair for m in members for pair in m.handled} == expected, seconds=90.0)
        for member in members:
            for queue in range(QUEUES):
                numbers = [n for q, n in member.handled if q == queue]
                assert numbers == sorted(set(numbers)), f"queue {queue}"
        dead, alive = members
        for queue in range(QUEUES):
            last = max((n for q, n in dead.handled if q == queue), default=-1)
            first = min((n for q, n in alive.handled if q == queue), default=100)
            assert first <= last + 1 or last == -1  # from where the dead one stored its offset
    finally:
        for member in members:
            await member.kill()


async def test_order_is_kept_while_members_join_and_leave(
    cluster: Cluster, producer: Producer, topic: str
) -> None:
    handled: list[tuple[int, int]] = []
    busy: set[int] = set()

    async def handle(message: ReceivedMessage) -> None:
        queue = message.queue.queue_id
        assert queue not in busy
        busy.add(queue)
        await asyncio.sleep(0.002)
        handled.append((queue, int(message.body)))
        busy.discard(queue)

    def member() -> PushConsumer:
        consumer = PushConsumer(f"group-{topic}", config=config(cluster))
        consumer.subscribe(topic, handle, orderly=True)
        return consumer

    async with member():
        sending = asyncio.ensure_future(send_all(producer, topic, range(150)))
        for _ in range(2):
            async with member() as other:
                await until(lambda other=other: len(other.queues) >= 3)
                await asyncio.sleep(0.5)
        await sending
        await until(lambda: len(set(handled)) == 150 * QUEUES)
    for queue in range(QUEUES):
        numbers = [n for q, n in handled if q == queue]
        assert numbers == list(range(150))  # neither out of order nor twice


async def test_order_is_kept_across_a_broker_restart(tmp_path: Path) -> None:
    handled: list[tuple[int, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.01)
        handled.append((message.queue.queue_id, int(message.body)))

    with Cluster(tmp_path) as cluster:
        consumer = PushConsumer("G", config=config(cluster))
        consumer.subscribe("Restarted", handle, orderly=True)
        async with Producer("groups", name_servers=cluster.addresses) as producer:
            await producer.send(Message("Restarted", b"-1"))
            for n in range(50):
                await producer.send(
                    Message("Restarted", b"%d" % n), queue=(await producer.queues("Restarted"))[0]
                )
        async with consumer:
            await until(lambda: len(handled) > 10)
            cluster.brokers[0].kill()
            await asyncio.sleep(0.1)
            stood_at = len(handled)
            await asyncio.sleep(0.3)
            assert len(handled) <= stood_at + 1  # a lost lock stops handling
            cluster.brokers[0].start()
            await until(lambda: (0, 49) in handled)
    numbers = [n for queue, n in handled if queue == 0 and n >= 0]
    assert numbers == list(range(50))


async def test_a_message_that_fails_in_order_too_often_is_dead_lettered(
    cluster: Cluster, producer: Producer, topic: str
) -> None:
    group = f"group-{topic}"
    seen: list[tuple[bytes, int]] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"1":
            raise Suspend(0.05)

    [queue, *_] = await producer.queues(topic)
    for n in range(3):
        await producer.send(Message(topic, b"%d" % n), queue=queue)
    consumer = PushConsumer(group, config=config(cluster, retry_max=2))
    consumer.subscribe(topic, handle, orderly=True)
    async with consumer:
        await until(lambda: (b"2", 0) in seen)
    assert seen == [(b"0", 0), (b"1", 0), (b"1", 1), (b"1", 2), (b"2", 0)]
    async with PullConsumer("reader", name_servers=cluster.addresses) as reader:
        [dead] = await queues_once_routed(reader, f"%DLQ%{group}")
        [letter] = (await reader.pull(dead, 0, hold=True)).messages
    assert (letter.body, letter.topic) == (b"1", topic)


async def test_a_broadcasting_member_continues_from_its_file(
    cluster: Cluster, producer: Producer, topic: str, tmp_path: Path
) -> None:
    options = {"model": MessageModel.BROADCASTING, "offset_directory": str(tmp_path)}

    async def consume(instance: str, numbers: range) -> list[int]:
        got: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            got.append(int(message.body))

        consumer = PushConsumer(
            f"group-{topic}", config=config(cluster, **options, instance_name=instance)
        )
        consumer.subscribe(topic, handle)
        async with consumer:
            await send_all(producer, topic, numbers)
            await until(lambda: len(got) >= len(numbers) * QUEUES)
            await asyncio.sleep(0.2)
        return sorted(set(got))

    assert await consume("one", range(5)) == list(range(5))
    assert await consume("two", range(5, 10)) == list(range(10))
    assert await consume("one", range(10, 15)) == list(range(5, 15))
    files = await asyncio.to_thread(lambda: list(tmp_path.rglob("offsets.json")))
    assert sorted(path.parts[-3].rpartition("@")[2] for path in files) == ["one", "two"]


async def test_a_killed_broadcasting_member_continues_from_its_file(
    cluster: Cluster, producer: Producer, topic: str, tmp_path: Path
) -> None:
    args = cluster.addresses, f"group-{topic}", topic, "concurrent", str(tmp_path)
    member = await Member.start(*args)
    try:
        await send_all(producer, topic, range(20))
        await until(lambda: len(set(member.handled)) == 20 * QUEUES)
        await asyncio.sleep(1.0)  # a few times as long as it takes to write the file
        await send_all(producer, topic, range(20, 40))
        await member.kill()
        before = set(member.handled)
        member = await Member.start(*args)
        expected = {(queue, n) for queue in range(QUEUES) for n in range(40)}
        await until(lambda: before | set(member.handled) == expected)
        assert min((n for _, n in member.handled), default=20) >= 20
    finally:
        await member.kill()


async def test_a_plain_handler_that_sleeps_starves_nobody(
    cluster: Cluster, producer: Producer, topic: str
) -> None:
    done: list[float] = []

    def handle(message: ReceivedMessage) -> None:
        time.sleep(5)
        done.append(time.monotonic())

    consumer = PushConsumer(
        f"group-{topic}", config=config(cluster, concurrency=1, heartbeat_seconds=0.5)
    )
    consumer.subscribe(topic, handle)
    async with consumer:
        await producer.send(Message(topic, b"x"))
        beats = set()
        session = consumer._running()
        while not done:
            beats.add(session.heartbeat_sent)
            await asyncio.sleep(0.05)
        assert len(beats) >= 7


@pytest.mark.long
async def test_a_member_whose_handler_blocks_the_loop_still_sends_heartbeats(
    cluster: Cluster, producer: Producer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    group, connections = f"group-{topic}", []
    blocked = threading.Event()

    async def ask() -> None:
        async with AdminClient(name_servers=cluster.addresses) as admin:
            found = await admin.groups.connections(group, cluster.broker_addresses[0])
            connections.extend(found.connection_set)

    def look() -> None:
        blocked.wait()
        time.sleep(7)
        asyncio.run(ask())

    async def an_async_handler_that_blocks(message: ReceivedMessage) -> None:
        blocked.set()
        time.sleep(9)  # noqa: ASYNC251 - the mistake that is tested

    consumer = PushConsumer(group, config=config(cluster, heartbeat_seconds=1.0))
    consumer.subscribe(topic, an_async_handler_that_blocks)
    looking = asyncio.ensure_future(asyncio.to_thread(look))
    async with consumer:
        await producer.send(Message(topic, b"x"))
        await looking
        assert [each.client_id for each in connections] == [consumer.client_id] * 2
        assert "an_async_handler_that_blocks" in caplog.text
        with contextlib.suppress(TimeoutError):
            await until(lambda: len(consumer.queues) == QUEUES + 1, seconds=5)


async def test_members_that_subscribe_differently_are_reported(
    cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(message: ReceivedMessage) -> None:
        return

    first = PushConsumer(f"group-{topic}", config=config(cluster))
    first.subscribe(topic, handle, tags="A")
    second = PushConsumer(f"group-{topic}", config=config(cluster))
    second.subscribe(topic, handle, tags="B")
    async with first, second:
        # Whoever spoke to the broker first sees what the other one said after that.
        await until(lambda: "members of a group differ, messages will be missed" in caplog.text)
    assert f" of {topic}, another member to TAG " in caplog.text


async def test_a_new_group_starts_at_the_configured_place(
    cluster: Cluster, producer: Producer, topic: str, tmp_path: Path
) -> None:
    [queue, *_] = await producer.queues(topic)
    for n in range(3):
        await producer.send(Message(topic, b"%d" % n), queue=queue)
    await asyncio.sleep(1.1)
    between_ms = time.time_ns() // 1_000_000
    await asyncio.sleep(1.1)
    for n in range(3, 6):
        await producer.send(Message(topic, b"%d" % n), queue=queue)

    async def first_of(start: StartFrom) -> int:
        got: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            got.append(int(message.body))

        options = config(
            cluster,
            model=MessageModel.BROADCASTING,  # asks no broker for offsets, which may say 0
            offset_directory=str(tmp_path / start.name),
            start_from=start,
            start_timestamp_ms=between_ms,
        )
        consumer = PushConsumer(f"group-{topic}-{start.name}", config=options)
        consumer.subscribe(topic, handle)
        async with consumer:
            await until(
                lambda: (
                    all(o.tracker and o.pulled_ms for o in consumer._assigned_queues.owned)
                    and len(consumer.queues) == QUEUES
                )
            )
            await producer.send(Message(topic, b"100"), queue=queue)
            await until(lambda: 100 in got)
        return min(got)

    assert await first_of(StartFrom.LAST) == 100
    assert await first_of(StartFrom.FIRST) == 0
    assert await first_of(StartFrom.TIMESTAMP) == 3
