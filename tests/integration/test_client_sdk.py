"""The SDK against real servers: ours, or those that ``ROCKETPOST_NAMESRV`` points at.

The second way is how it is proven against Apache RocketMQ, see ``tests/interop/test_sdk.py``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rocketpost.client import (
    Compression,
    LitePullConsumer,
    LitePullConsumerConfig,
    Message,
    MessageQueue,
    NoNameServer,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullStatus,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    Retry,
    SendStatus,
    StartFrom,
    blocking,
)
from rocketpost.client.admin import AdminClient
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.faults import Fault, NoMessage, RequestCodeNotSupported
from rocketpost.model.group import GroupConfig
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.cluster import Cluster

pytestmark = pytest.mark.slow

_numbers = itertools.count(1)
_run = f"{os.getpid()}-{int(time.time())}"


@pytest.fixture(scope="module")
def name_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = os.environ.get("ROCKETPOST_NAMESRV")
    if given:
        yield given
        return
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.addresses


@pytest.fixture
async def admin(name_servers: str) -> AsyncIterator[AdminClient]:
    async with AdminClient(name_servers=name_servers) as client:
        yield client


@pytest.fixture
async def address(admin: AdminClient) -> str:
    info = await admin.cluster.info()
    [broker] = info.broker_addr_table.values()
    assert broker.master is not None
    return broker.master


@pytest.fixture
async def topic(admin: AdminClient, address: str) -> str:
    """A fresh topic with four queues."""
    name = f"SdkTopic-{_run}-{next(_numbers)}"
    config = TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4)
    await admin.topics.create(address, config)
    await until_async(lambda: has_route(admin, name))
    return name


@pytest.fixture
async def producer(name_servers: str) -> AsyncIterator[Producer]:
    async with Producer(f"sdk-producer-{_run}", name_servers=name_servers) as client:
        yield client


@pytest.fixture
async def reader(name_servers: str) -> AsyncIterator[PullConsumer]:
    async with PullConsumer(fresh_group(), name_servers=name_servers) as client:
        yield client


def fresh_group() -> str:
    return f"sdk-group-{_run}-{next(_numbers)}"


async def has_route(admin: AdminClient, topic: str) -> bool:
    return topic in await admin.cluster.topics()


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def until_async(condition: Callable[[], object], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # type: ignore[misc]
            await asyncio.sleep(0.05)


async def pull_at(reader: PullConsumer, queue: MessageQueue, offset: int) -> ReceivedMessage:
    async with asyncio.timeout(20):
        while True:
            result = await reader.pull(queue, offset, hold=True, hold_seconds=5)
            if result.messages:
                return result.messages[0]


async def test_sent_messages_are_pulled_unchanged(
    producer: Producer, reader: PullConsumer, topic: str
) -> None:
    message = Message(
        topic,
        "grüße ☃".encode(),
        tags="TagA",
        keys=["k1", "k2"],
        properties={"größe": "mittel", "colour": "blue"},
        flag=7,
    )
    result = await producer.send(message)
    assert result.status is SendStatus.SEND_OK
    got = await pull_at(reader, result.queue, result.queue_offset)
    assert (got.topic, got.body, got.tags, got.flag) == (topic, message.body, "TagA", 7)
    assert got.keys == ["k1", "k2"]
    assert (got.properties["größe"], got.properties["colour"]) == ("mittel", "blue")
    assert (got.message_id, got.offset_id) == (result.message_id, result.offset_id)
    assert got.reconsume_times == 0
    assert abs(got.store_ms - time.time() * 1000) < 60_000


@pytest.mark.parametrize("kind", Compression)
async def test_compressed_bodies_are_restored(
    name_servers: str, reader: PullConsumer, topic: str, kind: Compression
) -> None:
    body = b"0123456789abcdef" * 4096
    config = ProducerConfig(name_servers=name_servers, compression=kind)
    async with Producer("sdk-compress", config=config) as producer:
        result = await producer.send(Message(topic, body))
    got = await pull_at(reader, result.queue, result.queue_offset)
    assert len(got.record.body) < len(body) // 10
    assert got.body == body


async def test_pipelined_messages_are_stored_where_their_results_say(
    producer: Producer, reader: PullConsumer, topic: str
) -> None:
    queue = (await producer.queues(topic))[0]
    futures = [
        await producer.send_soon(Message(topic, b"%d" % n), queue=queue) for n in range(3000)
    ]
    # Apache's broker stores pipelined messages in any order, so offsets are compared as a set.
    told = {(await future).queue_offset: b"%d" % n for n, future in enumerate(futures)}
    assert sorted(told) == list(range(3000))
    found: dict[int, bytes] = {}
    offset = 0
    while len(found) < 3000:
        result = await reader.pull(queue, offset, hold=True)
        found |= {message.queue_offset: message.body for message in result.messages}
        offset = result.next_offset
    assert found == told


async def test_a_batch_is_stored_message_by_message(
    producer: Producer, reader: PullConsumer, topic: str
) -> None:
    messages = [Message(topic, b"%d" % n, tags=f"T{n}", keys=f"key{n}") for n in range(5)]
    results = await producer.send_batch(messages)
    assert len({result.message_id for result in results}) == 5
    for n, result in enumerate(results):
        got = await pull_at(reader, result.queue, result.queue_offset)
        assert (got.body, got.tags, got.keys) == (b"%d" % n, f"T{n}", [f"key{n}"])
        assert (got.message_id, got.offset_id) == (result.message_id, result.offset_id)


async def test_oneway_messages_arrive_too(
    producer: Producer, reader: PullConsumer, topic: str
) -> None:
    queue = (await producer.queues(topic))[1]
    await producer.send_oneway(Message(topic, b"fire and forget"), queue=queue)
    assert (await pull_at(reader, queue, 0)).body == b"fire and forget"


async def test_the_first_send_makes_the_topic(producer: Producer, admin: AdminClient) -> None:
    name = f"SdkNew-{_run}-{next(_numbers)}"
    result = await producer.send(Message(name, b"x"))
    assert result.status is SendStatus.SEND_OK
    await until_async(lambda: has_route(admin, name))


async def test_every_pull_status_is_met(
    producer: Producer, reader: PullConsumer, topic: str
) -> None:
    queue = (await reader.queues(topic))[0]
    for n in range(3):
        await producer.send(Message(topic, b"%d" % n, tags="A"), queue=queue)
    await pull_at(reader, queue, 2)
    assert (await reader.pull(queue, 0)).status is PullStatus.FOUND
    assert (await reader.pull(queue, 3)).status is PullStatus.NO_NEW_MSG
    missed = await reader.pull(queue, 0, tags="B")
    assert (missed.status, missed.next_offset) == (PullStatus.NO_MATCHED_MSG, 3)
    beyond = await reader.pull(queue, 99)
    assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_ILLEGAL, 3)


async def test_a_pull_stops_before_the_bytes_that_it_asked_for(
    producer: Producer, reader: PullConsumer, topic: str
) -> None:
    queue = (await reader.queues(topic))[0]
    for _ in range(6):
        await producer.send(Message(topic, bytes(400)), queue=queue)
    await pull_at(reader, queue, 5)
    sizes = {}
    for wanted in (1, 1500, 10**6):
        found = await reader.pull_raw(queue, 0, count_max=32, bytes_max=wanted)
        sizes[wanted] = (found.next_offset, len(found.data))
    one = sizes[1][1]
    assert one > 400
    if "ROCKETPOST_NAMESRV" in os.environ:  # RocketMQ's default store does not look at the wish
        assert {offset for offset, _ in sizes.values()} <= {1, 1500 // one, 6}
        return
    assert sizes == {1: (1, one), 1500: (1500 // one, 1500 // one * one), 10**6: (6, 6 * one)}


async def test_a_held_pull_is_woken_by_a_message(
    producer: Producer, reader: PullConsumer, topic: str
) -> None:
    queue = (await reader.queues(topic))[0]
    waiting = asyncio.ensure_future(reader.pull(queue, 0, hold=True, hold_seconds=15))
    await asyncio.sleep(0.3)
    start = time.monotonic()
    await producer.send(Message(topic, b"wake"), queue=queue)
    result = await waiting
    assert [message.body for message in result.messages] == [b"wake"]
    assert time.monotonic() - start < 5


async def test_offsets_are_kept_and_searched(
    producer: Producer, reader: PullConsumer, topic: str
) -> None:
    queue = (await reader.queues(topic))[0]
    results = [await producer.send(Message(topic, b"x"), queue=queue) for _ in range(3)]
    got = await pull_at(reader, queue, results[-1].queue_offset)
    assert await reader.min_offset(queue) == 0
    assert await reader.max_offset(queue) == 3
    assert await reader.search_offset(queue, got.store_ms + 60_000) == 3
    assert await reader.search_offset(queue, 1) == 0
    await reader.commit_offset(queue, 2)
    assert await reader.fetch_offset(queue) == 2


async def test_a_group_shares_consumes_and_remembers(
    name_servers: str, producer: Producer, topic: str
) -> None:
    group = fresh_group()
    config = PushConsumerConfig(
        name_servers=name_servers, start_from=StartFrom.FIRST, rebalance_seconds=2
    )
    got: set[bytes] = set()

    async def handle(message: ReceivedMessage) -> None:
        got.add(message.body)

    def handle_in_thread(message: ReceivedMessage) -> None:
        got.add(message.body)

    for n in range(40):
        await producer.send(Message(topic, b"%d" % n, tags="A" if n % 2 else "B"))
    first = PushConsumer(group, config=config)
    first.subscribe(topic, handle, tags="A || C")
    async with first:
        await until(lambda: len(got) == 20)
        second = PushConsumer(group, config=config)
        second.subscribe(topic, handle_in_thread, tags="A || C")
        async with second:

            def owned(member: PushConsumer) -> set[int]:
                return {queue.queue_id for queue in member.queues if queue.topic == topic}

            await until(lambda: len(owned(first)) == len(owned(second)) == 2)
            assert not owned(first) & owned(second)
            for n in range(100, 140):
                await producer.send(Message(topic, b"%d" % n, tags="C"))
            await until(lambda: len(got) == 60)
        await until(lambda: len(owned(first)) == 4)
    async with PullConsumer(group, name_servers=name_servers) as same_group:
        for queue in await same_group.queues(topic):
            assert await same_group.fetch_offset(queue) == await same_group.max_offset(queue)


async def test_a_failed_message_is_redelivered(
    name_servers: str, producer: Producer, admin: AdminClient, address: str, topic: str
) -> None:
    group = fresh_group()
    try:
        nothing_there = {"offset": "0", "group": group, "delayLevel": "0"}
        await admin.session.call(address, RequestCode.CONSUMER_SEND_MSG_BACK, nothing_there)
    except RequestCodeNotSupported:
        pytest.skip("this broker takes no messages back")
    except Fault:
        pass  # it would, if there were such a message
    config = PushConsumerConfig(name_servers=name_servers, start_from=StartFrom.FIRST)
    deliveries: list[tuple[str, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        deliveries.append((message.message_id, message.reconsume_times))
        if not message.reconsume_times:
            raise Retry(1)

    sent = await producer.send(Message(topic, b"again"))
    consumer = PushConsumer(group, config=config)
    consumer.subscribe(topic, handle)
    async with consumer:
        await until(lambda: len(deliveries) == 2)
    assert deliveries == [(sent.message_id, 0), (sent.message_id, 1)]


async def test_a_restarted_consumer_continues_where_it_stopped(
    name_servers: str, producer: Producer, topic: str
) -> None:
    config = PushConsumerConfig(name_servers=name_servers, start_from=StartFrom.FIRST)
    group, got = fresh_group(), []

    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body)

    for name in (b"before", b"after"):
        await producer.send(Message(topic, name))
        consumer = PushConsumer(group, config=config)
        consumer.subscribe(topic, handle)
        async with consumer:
            await until(lambda name=name: name in got)  # type: ignore[misc]
    assert got == [b"before", b"after"]


async def test_messages_are_found_by_key_id_and_offset(
    producer: Producer, admin: AdminClient, topic: str
) -> None:
    result = await producer.send(Message(topic, b"wanted", keys=["needle", "pin"]))
    await producer.send(Message(topic, b"other", keys="hay"))

    async def indexed() -> bool:
        return bool(await admin.messages.by_key(topic, "needle"))

    await until_async(indexed)
    [by_key] = await admin.messages.by_key(topic, "pin")
    [by_unique_id] = await admin.messages.by_unique_id(topic, result.message_id)
    by_offset_id = await admin.messages.by_offset_id(result.offset_id)
    by_offset = await admin.messages.by_offset(result.queue, result.queue_offset)
    bodies = {message.body for message in (by_key, by_unique_id, by_offset_id, by_offset)}
    assert bodies == {b"wanted"}
    assert (await admin.messages.by_id(topic, result.message_id)).body == b"wanted"
    assert (await admin.messages.by_id(topic, result.offset_id)).body == b"wanted"
    with pytest.raises(NoMessage):
        await admin.messages.by_offset(result.queue, result.queue_offset + 50)


async def test_operators_see_and_change_what_there_is(
    name_servers: str, producer: Producer, admin: AdminClient, address: str, topic: str
) -> None:
    await producer.send(Message(topic, b"x"))
    state = await admin.topics.state(topic)
    assert len(state.queues) == 4
    assert sum(queue.max_offset for queue in state.queues.values()) == 1
    assert (await admin.topics.config(address, topic)).read_queue_nums == 4
    group = fresh_group()
    await admin.groups.create(address, GroupConfig(group_name=group, retry_max_times=5))
    assert (await admin.groups.config(address, group)).retry_max_times == 5
    assert "brokerName" in await admin.brokers.config(address)
    assert "putTps" in await admin.brokers.runtime(address)
    await admin.cluster.put_kv("SDK", "key", "value")
    assert await admin.cluster.kv("SDK", "key") == "value"
    assert await admin.cluster.kv_namespace("SDK") == {"key": "value"}
    await admin.cluster.delete_kv("SDK", "key")
    assert await admin.cluster.kv("SDK", "key") is None

    async def handle(message: ReceivedMessage) -> None:
        return

    config = PushConsumerConfig(
        name_servers=name_servers, start_from=StartFrom.FIRST, persist_seconds=0.2
    )
    consumer = PushConsumer(group, config=config)
    consumer.subscribe(topic, handle)
    async with consumer:
        await until_async(lambda: has_route(admin, f"%RETRY%{group}"))
        connections = await admin.groups.connections(group)
        assert [each.client_id for each in connections.connection_set] == [consumer.client_id]

        async def caught_up() -> bool:
            progress = await admin.groups.progress(group, topic)
            return sum(each.consumer_offset for each in progress.queues.values()) == 1

        await until_async(caught_up)
    await admin.groups.delete(address, group, clean_offsets=True)
    await admin.topics.delete(topic, [address])
    assert not await has_route(admin, topic)


async def test_a_refusal_is_raised_as_the_fault_it_is(producer: Producer, topic: str) -> None:
    [queue, *_] = await producer.queues(topic)
    wrong = MessageQueue(queue.broker_name, 99, topic)
    with pytest.raises(Fault) as raised:
        await producer.send(Message(topic, b"x"), queue=wrong)
    assert int(raised.value.code) == 29


def test_scripts_can_do_the_same_without_a_loop(name_servers: str) -> None:
    name, group = f"SdkBlocking-{_run}", fresh_group()
    got: list[bytes] = []
    with blocking.Producer("sdk-blocking", name_servers=name_servers) as producer:
        futures = [producer.send_soon(Message(name, b"%d" % n)) for n in range(50)]
        assert {future.result(10).status for future in futures} == {SendStatus.SEND_OK}
        mine = producer.send(Message(name, b"parent")).message_id
        sockets = producer._now(lambda inner: inner._session.connector.descriptors())
        inodes = {os.readlink(f"/proc/self/fd/{number}") for number in sockets}
        assert len(inodes) == 2  # the name server's and the broker's
        child = os.fork()
        if not child:
            kept = {os.readlink(f"/proc/self/fd/{number}") for number in sockets} & inodes
            sent = producer.send(Message(name, b"child"))
            producer.stop()
            os._exit(0 if sent.message_id[:20] != mine[:20] and not kept else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert producer.send(Message(name, b"parent again")).status is SendStatus.SEND_OK
    config = PushConsumerConfig(name_servers=name_servers, start_from=StartFrom.FIRST)
    consumer = blocking.PushConsumer(group, config=config)
    consumer.subscribe(name, lambda message: got.append(message.body))
    with consumer:
        deadline = time.monotonic() + 20
        while len(got) < 53 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert sorted(got) == sorted(
        [b"%d" % n for n in range(50)] + [b"parent", b"child", b"parent again"]
    )


class AddressServer(BaseHTTPRequestHandler):
    addresses = ""

    def do_GET(self) -> None:
        known = self.path == "/rocketmq/nsaddr"
        self.send_response(200 if known else 404)
        self.end_headers()
        if known:
            self.wfile.write(f"{self.addresses}\n".encode())

    def log_message(self, format: str, *args: object) -> None:
        return


async def test_name_servers_can_be_learned_over_http(
    name_servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    handler = type("Handler", (AddressServer,), {"addresses": name_servers})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            config = ProducerConfig(address_server=f"127.0.0.1:{server.server_address[1]}")
            async with Producer("sdk-http", config=config) as producer:
                result = await producer.send(Message(topic, b"x"))
        finally:
            server.shutdown()
            thread.join()
    assert result.status is SendStatus.SEND_OK


async def test_a_name_server_that_does_not_run_is_a_clear_error() -> None:
    async with Producer("sdk-lost", name_servers="127.0.0.1:1") as producer:
        with pytest.raises(NoNameServer, match="cannot connect"):
            await producer.send(Message("T", b"x"))


async def poll_all(consumer: LitePullConsumer, count: int) -> list[int]:
    got: list[int] = []
    async with asyncio.timeout(30):
        while len(got) < count:
            got += [int(message.body) for message in await consumer.poll(1.0)]
    return sorted(got)


async def test_a_lite_pull_consumer_polls_commits_and_seeks(
    name_servers: str, producer: Producer, topic: str
) -> None:
    for n in range(40):
        await producer.send(Message(topic, b"%d" % n))
    config = LitePullConsumerConfig(name_servers=name_servers, start_from=StartFrom.FIRST)
    group = fresh_group()

    def member() -> LitePullConsumer:
        consumer = LitePullConsumer(group, config=config)
        consumer.subscribe(topic)
        return consumer

    async with member() as consumer:
        assert await poll_all(consumer, 40) == list(range(40))
        await consumer.commit()
        async with member() as other:
            await until(lambda: len(consumer.assignment) == len(other.assignment) == 2)
        await until(lambda: len(consumer.assignment) == 4)
    async with member() as consumer:
        await producer.send(Message(topic, b"40"))
        assert await poll_all(consumer, 1) == [40]
        for queue in consumer.assignment:
            await consumer.seek_to_begin(queue)
        assert await poll_all(consumer, 41) == list(range(41))
        for queue in consumer.assignment:
            await consumer.seek_to_time(queue, time.time_ns() // 1_000_000 + 60_000)
        assert await consumer.poll(0.5) == []


async def test_assigned_queues_are_read_beside_the_group(
    name_servers: str, producer: Producer, topic: str
) -> None:
    config = LitePullConsumerConfig(
        name_servers=name_servers, start_from=StartFrom.FIRST, auto_commit=False
    )
    async with LitePullConsumer(fresh_group(), config=config) as consumer:
        [first, second, *_] = await consumer.queues(topic)
        await consumer.assign([first], tags="A")
        for n in range(5):
            await producer.send(Message(topic, b"%d" % n, tags="A"), queue=first)
            await producer.send(Message(topic, b"100", tags="B"), queue=first)
            await producer.send(Message(topic, b"200", tags="A"), queue=second)
        assert await poll_all(consumer, 5) == list(range(5))
        assert await consumer.poll(0.3) == []


async def test_gathered_messages_keep_their_ids_and_their_order(
    name_servers: str, reader: PullConsumer, topic: str
) -> None:
    config = ProducerConfig(name_servers=name_servers, auto_batch=True)
    async with Producer(f"gathering-{_run}", config=config) as gathering:
        futures = [
            await gathering.send_soon(Message(topic, b"%d" % n, sharding_key="k"))
            for n in range(300)
        ]
        results = await asyncio.gather(*futures)
    assert len({result.queue for result in results}) == 1
    assert [result.queue_offset for result in results] == list(range(300))
    for result in (results[0], results[150], results[299]):
        got = await pull_at(reader, result.queue, result.queue_offset)
        assert (got.message_id, got.offset_id) == (result.message_id, result.offset_id)
        assert int(got.body) == result.queue_offset
