"""Traces are written beside the work, and never get in its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from client.brokers import NAMESRV, QueueBroker, broker, network_of, route_of, stored
from client.network import Answer, FakeNetwork
from rocketpost.client import (
    ConfigError,
    Fault,
    Message,
    MessageRefused,
    Producer,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    Retry,
    StartFrom,
    tracing,
)
from rocketpost.client.tracing import Tracer
from rocketpost.codec.batch import decode_batch
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.properties import decode_properties
from rocketpost.codec.recall_handle import RecallHandle
from rocketpost.codec.trace import (
    Pub,
    RecallTrace,
    SubAfter,
    SubBefore,
    Trace,
    TraceOutcome,
    decode_traces,
)
from rocketpost.testing.waiting import until

A = "a:1"
TRACE = "RMQ_SYS_TRACE_TOPIC"
ROUTES = {"T": route_of({"a": A}), TRACE: route_of({"a": A}, queues=1)}
SEND = RequestCode.SEND_MESSAGE_V2

Use = Callable[[FakeNetwork], FakeNetwork]


@pytest.fixture(autouse=True)
def _no_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "LINGER_SECONDS", 0.0)


def producer(**options: Any) -> Producer:
    return Producer(
        "G", config=ProducerConfig(name_servers=NAMESRV, **{"enable_trace": True, **options})
    )


def traces(network: FakeNetwork) -> list[Trace]:
    sent = [command for command in network.sent(SEND) if command.fields["b"] == TRACE]
    return [trace for command in sent for trace in decode_traces(command.body.decode())]


async def test_a_send_is_traced(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: broker()}))
    async with producer() as sender:
        result = await sender.send(Message("T", b"body", tags="X", keys=["k1", "k2"]))
    [pub] = traces(network)
    assert isinstance(pub, Pub)
    assert (pub.message_id, pub.offset_id) == (result.message_id, result.offset_id)
    assert (pub.group, pub.topic, pub.tags, pub.keys) == ("G", "T", "X", "k1 k2")
    assert (pub.store_host, pub.body_bytes, pub.kind, pub.success) == (A, 4, 0, True)
    [command] = [c for c in network.sent(SEND) if c.fields["b"] == TRACE]
    properties = decode_properties(command.fields["i"].encode())
    assert properties["KEYS"].split() == [result.message_id, "k1", "k2"]


async def test_kinds_and_batches_are_distinguished(use_network: Use) -> None:
    def serve(command: Command) -> Answer:
        if command.code == RequestCode.SEND_BATCH_MESSAGE:
            ids = ",".join(f"O{n}" for n in range(len(decode_batch(command.body))))
            return Answer(0, {"msgId": ids, "queueId": "0", "queueOffset": "7"})
        return stored(command)

    network = use_network(network_of(ROUTES, {A: broker(serve)}))
    async with producer() as sender:
        await sender.send(Message("T", b"x", delay_level=1))
        await sender.send(Message("T", b"x", sharding_key="s"))
        results = await sender.send_batch([Message("T", b"%d" % n) for n in range(3)])
    found = traces(network)
    assert [each.kind for each in found if isinstance(each, Pub)] == [3, 4, 0, 0, 0]
    batch = [(each.message_id, each.offset_id) for each in found[2:] if isinstance(each, Pub)]
    assert batch == [(each.message_id, each.offset_id) for each in results]
    assert [each.offset_id for each in results] == ["O0", "O1", "O2"]


async def test_a_refused_send_is_traced_as_such(use_network: Use) -> None:
    def serve(command: Command) -> Answer:
        if command.fields["b"] == TRACE:
            return stored(command)
        return Answer(ResponseCode.MESSAGE_ILLEGAL, remark="no")

    network = use_network(network_of(ROUTES, {A: broker(serve)}))
    async with producer() as sender:
        with pytest.raises(Fault):
            await sender.send(Message("T", b"x"))
    [pub] = traces(network)
    assert isinstance(pub, Pub)
    assert (pub.success, pub.store_host, pub.offset_id) == (False, A, "")


async def test_no_trace_is_written_unless_asked_for_and_none_of_traces(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: broker()}))
    async with producer(enable_trace=False) as sender:
        await sender.send(Message("T", b"x"))
    async with producer() as sender:
        await sender.send(Message(TRACE, b"x"))
    assert traces(network) == []


async def test_a_broker_may_wish_for_no_traces(use_network: Use) -> None:
    def serve(command: Command) -> Answer:
        answer = stored(command)
        return Answer(0, {**answer.fields, "TRACE_ON": "false"})

    network = use_network(network_of(ROUTES, {A: broker(serve)}))
    async with producer() as sender:
        await sender.send(Message("T", b"x"))
    assert traces(network) == []


async def test_traces_that_nobody_takes_fail_nothing(
    use_network: Use, caplog: pytest.LogCaptureFixture
) -> None:
    network = use_network(network_of({"T": route_of({"a": A})}, {A: broker()}))
    async with producer() as sender:
        await sender.send(Message("T", b"x"))
    assert len(network.sent(SEND)) == 1
    assert "traces lost: group=G count=1" in caplog.text


async def test_a_full_queue_loses_traces_and_counts_them(
    use_network: Use, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "QUEUE_MAX", 3)
    network = use_network(network_of(ROUTES, {A: broker()}))
    async with producer() as sender:
        tracer = sender._tracer
        assert tracer is not None
        for n in range(5):
            tracer.add(Pub(time_ms=n, region="", group="", topic="T", message_id=str(n)))
        assert tracer.lost == 2
    assert [each.message_id for each in traces(network)] == ["0", "1", "2"]
    assert caplog.text.count("traces lost") == 1


async def test_a_message_holds_so_many_traces_and_keys(
    use_network: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "LINGER_SECONDS", 3600.0)
    network = use_network(network_of(ROUTES, {A: broker()}))
    async with producer() as sender:
        tracer = sender._tracer
        assert tracer is not None
        for n in range(tracing.BATCH_MAX):
            tracer.add(Pub(time_ms=n, region="", group="", topic="T", message_id=str(n)))
        while not network.sent(SEND):  # enough for a message, so nothing is waited for
            await asyncio.sleep(0)
        for n in range(4):
            key = f"{n}" * 7000
            tracer.add(Pub(time_ms=n, region="", group="", topic="T", message_id="m", keys=key))
    sent = [len(decode_traces(command.body.decode())) for command in network.sent(SEND)]
    assert sent == [tracing.BATCH_MAX, 2, 2]


async def test_a_stop_does_not_wait_forever(
    use_network: Use, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", 0.02)
    silent = broker(lambda command: None if command.fields["b"] == TRACE else stored(command))
    use_network(network_of(ROUTES, {A: silent}))
    sender = producer()
    await sender.start()
    await sender.send(Message("T", b"x"))
    assert isinstance(sender._tracer, Tracer)
    sender._tracer._queue.extend(sender._tracer._queue * 2)
    await sender.stop()


def consumer(handler: Any, **options: Any) -> PushConsumer:
    config = PushConsumerConfig(
        name_servers=NAMESRV, start_from=StartFrom.FIRST, enable_trace=True, **options
    )
    made = PushConsumer("C", config=config)
    made.subscribe("T", handler)
    return made


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "thread"])
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, TraceOutcome.SUCCESS),
        (ValueError("x"), TraceOutcome.EXCEPTION),
        (Retry(), TraceOutcome.FAILED),
    ],
)
async def test_handling_is_traced(
    use_network: Use, error: Exception | None, outcome: TraceOutcome, is_async: bool
) -> None:
    queue_broker = QueueBroker()
    network = use_network(network_of({**ROUTES, "T": route_of({"a": A}, queues=1)}, {}))
    network.servers[A] = queue_broker.serve
    queue_broker.put(b"one", UNIQ_KEY="M", KEYS="k1 k2", MSG_REGION="R", TRACE_ON="true")
    queue_broker.put(b"two", UNIQ_KEY="N", TRACE_ON="false")
    seen: list[ReceivedMessage] = []

    async def handle(message: ReceivedMessage) -> None:
        handle_plain(message)

    def handle_plain(message: ReceivedMessage) -> None:
        seen.append(message)
        if error is not None:
            raise error

    async with consumer(handle if is_async else handle_plain):
        await until(lambda: len(seen) == 2)
    before, after = traces(network)
    assert isinstance(before, SubBefore)
    assert isinstance(after, SubAfter)
    assert (before.group, before.region, before.message_id, before.keys) == ("C", "R", "M", "k1 k2")
    assert (after.request_id, after.message_id, after.group) == (before.request_id, "M", "C")
    assert (after.success, after.outcome) == (error is None, outcome)
    assert after.time_ms >= before.time_ms > 0


@pytest.mark.parametrize("config", [ProducerConfig, PushConsumerConfig])
def test_the_trace_topic_must_be_one(config: Any) -> None:
    with pytest.raises(ConfigError, match="trace_topic"):
        config(trace_topic="no topic")


async def test_recalls_are_traced_also_when_they_are_refused(use_network: Use) -> None:
    answers = [
        Answer(0, {"msgId": "M"}),
        Answer(ResponseCode.ILLEGAL_OPERATION, remark="too late"),
    ]
    served = broker(RECALL_MESSAGE=lambda command: answers.pop(0))
    network = use_network(network_of(ROUTES, {A: served}))
    handle = RecallHandle("T", "a", 5, "M").encode()
    async with producer() as sender:
        assert await sender.recall("T", handle) == "M"
        with pytest.raises(Fault, match="too late"):
            await sender.recall("T", handle)
        with pytest.raises(MessageRefused):
            await sender.recall("T", "no handle")
    found = traces(network)
    assert all(isinstance(each, RecallTrace) for each in found)
    told = [(each.message_id, each.success) for each in found if isinstance(each, RecallTrace)]
    assert told == [("M", True), ("M", False)]
