"""Distributed traces: contexts of messages on their ways through a broker, spans of clients."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from rocketpost.client import (
    Message,
    Producer,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    SimpleConsumer,
    StartFrom,
    TransactionProducer,
    TransactionState,
    blocking,
)
from rocketpost.client.admin import AdminClient
from rocketpost.model.topic import TopicConfig
from rocketpost.server.up import SingleNode
from rocketpost.testing.link import BrokerLink

pytestmark = pytest.mark.slow

TOPIC = "Traced"
CONTEXT = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "vendor=a1,other=b2",
    "baggage": "tenant=blue,user=4%207",
}
SETTINGS = {"mappedFileSizeCommitLog": "8388608", "messageDelayLevel": "1s 1s 1s 1s"}


def look_up(message: ReceivedMessage) -> TransactionState:
    return TransactionState.UNKNOWN


@functools.cache
def exporter() -> InMemorySpanExporter:
    """Record spans; a process has one recorder."""
    made = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    trace.set_tracer_provider(provider)
    return made


class Recorded:
    """The spans that ended since the test began."""

    def __init__(self) -> None:
        exporter().clear()

    def all(self, name: str) -> list[ReadableSpan]:
        return [each for each in exporter().get_finished_spans() if each.name == name]

    async def only(self, name: str) -> ReadableSpan:
        async with asyncio.timeout(10):
            while not (found := self.all(name)):
                await asyncio.sleep(0)
        [span] = found
        return span


@pytest.fixture
def spans() -> Recorded:
    return Recorded()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[SingleNode]:
    node = SingleNode(tmp_path, settings=SETTINGS)
    await node.start()
    assert node.broker is not None
    try:
        async with AdminClient(name_servers=node.address) as admin:
            config = TopicConfig(topic_name=TOPIC, read_queue_nums=1, write_queue_nums=1)
            await admin.topics.create(node.broker.address, config)
        yield node
    finally:
        await node.stop()


def traceparent(span: ReadableSpan) -> str:
    found = span.get_span_context()
    assert found is not None
    return written(found)


def written(found: SpanContext) -> str:
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    above = parent.get_span_context()
    assert above is not None
    return (
        span.parent is not None
        and (span.parent.trace_id, span.parent.span_id) == (above.trace_id, above.span_id)
    )  # fmt: skip


def linked(span: ReadableSpan) -> set[str]:
    return {written(each.context) for each in span.links}


def push(node: SingleNode, **options: Any) -> PushConsumer:
    config = PushConsumerConfig(name_servers=node.address, start_from=StartFrom.FIRST, **options)
    return PushConsumer("readers", config=config)


# The context of a message is kept by the broker.


async def test_the_context_is_kept_on_every_way_through_a_broker(node: SingleNode) -> None:
    assert node.broker is not None
    seen: list[tuple[bytes, int, dict[str, str]]] = []
    deliveries = asyncio.Semaphore(0)

    async def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times, message.trace_context))
        deliveries.release()
        if message.body == b"failing":
            raise ValueError("never handled")

    def commit(message: Message, transaction_id: str) -> TransactionState:
        return TransactionState.COMMIT

    def ways() -> list[Message]:
        delays = {
            b"plain": {},
            b"failing": {},
            b"by level": {"delay_level": 1},
            b"by time": {"delay_seconds": 0.5},
        }
        return [
            Message(TOPIC, body, properties=CONTEXT, **options)  # type: ignore[arg-type]
            for body, options in delays.items()
        ]

    consumer = push(node, retry_max=1)
    consumer.subscribe(TOPIC, handle)
    halves = TransactionProducer("halves", checker=look_up, name_servers=node.address)
    async with Producer("senders", name_servers=node.address) as producer, halves, consumer:
        for message in ways():
            await producer.send(message)
        await producer.send_batch([Message(TOPIC, b"in a batch", properties=CONTEXT)] * 2)
        half = Message(TOPIC, b"in a transaction", properties=CONTEXT)
        await halves.send_in_transaction(half, commit)
        for _ in range(4 + 2 + 1 + 1):  # and one retry
            async with asyncio.timeout(30):
                await deliveries.acquire()
        link = await BrokerLink.connect(node.broker.address)
        try:
            async with asyncio.timeout(30):
                while not await link.has_topic("%DLQ%readers"):
                    await asyncio.sleep(0.05)
                while not (dead := await link.read("%DLQ%readers", 0, 0, 1)):
                    await asyncio.sleep(0.05)
        finally:
            link.close()
    assert sorted((body, times) for body, times, _ in seen) == [
        (b"by level", 0),
        (b"by time", 0),
        (b"failing", 0),
        (b"failing", 1),
        (b"in a batch", 0),
        (b"in a batch", 0),
        (b"in a transaction", 0),
        (b"plain", 0),
    ]
    assert {body: found for body, _, found in seen if found != CONTEXT} == {}
    kept = {name: dead[0].properties[name] for name in CONTEXT}
    assert kept == CONTEXT


# Spans of clients.


async def test_a_handler_is_a_child_of_the_send(node: SingleNode, spans: Recorded) -> None:
    within: list[str] = []
    handled = asyncio.Event()
    config = ProducerConfig(name_servers=node.address, enable_spans=True)
    producer = Producer("senders", config=config)

    async def handle(message: ReceivedMessage) -> None:
        within.append(message.trace_context["traceparent"])
        assert baggage.get_baggage("tenant") == "blue"
        if message.tags == "first":
            await producer.send(Message(TOPIC, b"two", tags="second"))
        else:
            handled.set()

    consumer = push(node, enable_spans=True)
    consumer.subscribe(TOPIC, handle)
    token = context.attach(baggage.set_baggage("tenant", "blue"))
    try:
        async with producer, consumer, asyncio.timeout(30):
            with trace.get_tracer("test").start_as_current_span("checkout"):
                first = Message(TOPIC, b"one", tags="first", keys="a b", properties={"x": "y"})
                result = await producer.send(first)
            await handled.wait()
    finally:
        context.detach(token)
    assert "traceparent" not in first.properties  # the caller's message is not changed
    root = await spans.only("checkout")
    sent, sent_again = spans.all(f"send {TOPIC}")
    handling, handling_again = spans.all(f"process {TOPIC}")
    assert is_child(sent, root)
    assert is_child(handling, sent)
    assert is_child(sent_again, handling)
    assert is_child(handling_again, sent_again)
    assert within == [traceparent(sent), traceparent(sent_again)]
    assert (sent.kind, handling.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    queue = f"{result.queue.broker_name}/0"
    assert dict(sent.attributes or {}) == {
        "messaging.system": "rocketmq",
        "messaging.destination.name": TOPIC,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.rocketmq.client_group": "senders",
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "first",
        "messaging.rocketmq.message.keys": ("a", "b"),
        "messaging.message.body.size": 3,
        "messaging.message.id": result.message_id,
        "messaging.destination.partition.id": queue,
    }
    assert dict(handling.attributes or {}) == {
        "messaging.system": "rocketmq",
        "messaging.destination.name": TOPIC,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "readers",
        "messaging.rocketmq.message.tag": "first",
        "messaging.rocketmq.message.keys": ("a", "b"),
        "messaging.message.body.size": 3,
        "messaging.message.id": result.message_id,
        "messaging.destination.partition.id": queue,
    }


async def test_a_retry_is_in_the_same_trace(node: SingleNode, spans: Recorded) -> None:
    times: asyncio.Queue[int] = asyncio.Queue()

    def handle(message: ReceivedMessage) -> None:  # in a thread
        loop.call_soon_threadsafe(times.put_nowait, message.reconsume_times)
        if not message.reconsume_times:
            raise KeyError("not yet")

    loop = asyncio.get_running_loop()
    consumer = push(node, enable_spans=True)
    consumer.subscribe(TOPIC, handle)
    config = ProducerConfig(name_servers=node.address, enable_spans=True)
    async with Producer("senders", config=config) as producer, consumer, asyncio.timeout(30):
        await producer.send(Message(TOPIC, b"one"))
        assert [await times.get(), await times.get()] == [0, 1]
    sent = await spans.only(f"send {TOPIC}")
    failed, done = spans.all(f"process {TOPIC}")
    assert is_child(failed, sent)
    assert is_child(done, sent)
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "KeyError"
    assert [event.name for event in failed.events] == ["exception"]
    assert done.status.status_code is StatusCode.UNSET
    assert (done.attributes or {})["messaging.rocketmq.message.reconsume_times"] == 1


async def test_a_batch_has_a_context_for_each_message(node: SingleNode, spans: Recorded) -> None:
    contexts: list[str] = []
    done = asyncio.Event()

    async def handle(messages: list[ReceivedMessage]) -> None:
        contexts.extend(each.trace_context["traceparent"] for each in messages)
        if len(contexts) == 3:
            done.set()

    consumer = push(node, enable_spans=True, batch_max=3)
    consumer.subscribe_batches(TOPIC, handle)  # type: ignore[arg-type]
    config = ProducerConfig(name_servers=node.address, enable_spans=True)
    async with Producer("senders", config=config) as producer, asyncio.timeout(30):
        await producer.send_batch([Message(TOPIC, b"%d" % number) for number in range(3)])
        async with consumer:
            await done.wait()
    created = {traceparent(each) for each in spans.all(f"create {TOPIC}")}
    assert len(created) == 3
    assert set(contexts) == created
    sent = await spans.only(f"send {TOPIC}")
    assert sent.kind is SpanKind.CLIENT
    assert linked(sent) == created
    assert (sent.attributes or {})["messaging.batch.message_count"] == 3
    handlings = spans.all(f"process {TOPIC}")
    assert set().union(*map(linked, handlings)) == created


async def test_blocking_producers_use_the_span_of_their_thread(
    node: SingleNode, spans: Recorded
) -> None:
    config = ProducerConfig(name_servers=node.address, enable_spans=True)

    def work() -> None:
        with blocking.Producer("senders", config=config) as producer:
            tracer = trace.get_tracer("test")
            with tracer.start_as_current_span("one"):
                producer.send(Message(TOPIC, b"one"))
            with tracer.start_as_current_span("two"):
                soon = producer.send_soon(Message(TOPIC, b"two"))
            soon.result(30)

    await asyncio.to_thread(work)
    one, two = await spans.only("one"), await spans.only("two")
    first, second = spans.all(f"send {TOPIC}")
    assert is_child(first, one)
    assert is_child(second, two)


async def test_a_simple_consumer_links_what_it_receives(node: SingleNode, spans: Recorded) -> None:
    config = ProducerConfig(name_servers=node.address, enable_spans=True)
    async with (
        Producer("senders", config=config) as producer,
        SimpleConsumer(
            "simple", name_servers=node.address, start_from=StartFrom.FIRST, enable_spans=True
        ) as consumer,
        asyncio.timeout(30),
    ):
        await producer.send(Message(TOPIC, b"one"))
        await consumer.subscribe(TOPIC)
        received: list[Any] = []
        while not received:
            received = await consumer.receive(await_seconds=1)
        await consumer.ack(received[0])
    sent = await spans.only(f"send {TOPIC}")
    for name in ("receive", "ack"):
        span = await spans.only(f"{name} {TOPIC}")
        assert linked(span) == {traceparent(sent)}
        assert span.kind is SpanKind.CLIENT
    assert ((await spans.only(f"ack {TOPIC}")).attributes or {})[
        "messaging.operation.type"
    ] == "settle"


async def test_sends_of_every_kind_are_spans(node: SingleNode, spans: Recorded) -> None:
    config = ProducerConfig(name_servers=node.address, enable_spans=True)

    def roll_back(message: Message, transaction_id: str) -> TransactionState:
        return TransactionState.ROLLBACK

    halves = TransactionProducer("halves", checker=look_up, config=config)
    async with Producer("senders", config=config) as producer, halves, asyncio.timeout(30):
        await producer.send_oneway(Message(TOPIC, b"oneway"))
        await (await producer.send_soon(Message(TOPIC, b"soon", sharding_key="k")))
        await producer.send(Message(TOPIC, b"later", delay_seconds=1))
        await halves.send_in_transaction(Message(TOPIC, b"half"), roll_back)
    kinds = [
        (each.attributes or {})["messaging.rocketmq.message.type"]
        for each in spans.all(f"send {TOPIC}")
    ]
    assert kinds == ["normal", "fifo", "delay", "transaction"]


async def test_a_refused_send_is_an_error(node: SingleNode, spans: Recorded) -> None:
    config = ProducerConfig(name_servers=node.address, enable_spans=True, message_bytes_max=10)
    async with Producer("senders", config=config) as producer:
        with pytest.raises(Exception, match="at most 10"):
            await producer.send(Message(TOPIC, b"x" * 11))
    sent = await spans.only(f"send {TOPIC}")
    assert sent.status.status_code is StatusCode.ERROR
    assert (sent.attributes or {})["error.type"] == "MessageRefused"


async def test_a_message_that_is_passed_on_keeps_its_context(
    node: SingleNode, spans: Recorded
) -> None:
    assert node.broker is not None
    config = ProducerConfig(name_servers=node.address, enable_spans=True)
    async with Producer("senders", config=config) as producer:
        result = await producer.send(Message(TOPIC, b"one", properties=CONTEXT))
    link = await BrokerLink.connect(node.broker.address)
    try:
        [record] = await link.read(TOPIC, 0, result.queue_offset, 1)
    finally:
        link.close()
    assert {name: record.properties[name] for name in CONTEXT} == CONTEXT
