"""Rows that share a request, and the values that a row may have."""

from __future__ import annotations

import asyncio
from typing import cast

import pyarrow as pa
import pytest

from rocketpost.client import Message, MessageQueue, Producer
from rocketpost.codec.faults import MessageIllegal
from rocketpost.errors import ConfigError, ConnectionLost, RouteNotFound
from rocketpost.spark.options import parse_options
from rocketpost.spark.sink.options import SinkOptions, check_columns
from rocketpost.spark.sink.rows import OutgoingMessage
from rocketpost.spark.sink.sender import Sender, group_requests
from rocketpost.testing.virtual_time import in_virtual_time

BASE = {"nameServer": "127.0.0.1:9876", "topic": "T"}


def out(body: bytes = b"x", sequence: int | None = None, **more: str) -> OutgoingMessage:
    producer = None if sequence is None else more.pop("producer_id", "p")
    return OutgoingMessage(Message(more.pop("topic", "T"), body, **more), None, producer, sequence)


def sizes(*some: OutgoingMessage, bytes_max: int = 1000) -> list[int]:
    return [len(each) for each in group_requests(iter(some), bytes_max=bytes_max)]


def test_neighbours_share_a_request() -> None:
    assert sizes(out(), out(), out()) == [3]
    assert sizes(out(topic="T"), out(topic="U"), out(topic="U")) == [1, 2]


def test_rows_that_must_keep_their_queue_are_sent_alone() -> None:
    queue = MessageQueue("a", 0, "T")
    keyed = out(sharding_key="k")
    assert sizes(out(), keyed, keyed, out()) == [1, 1, 1, 1]
    other = MessageQueue("a", 1, "T")
    assert sizes(out(), *[out()._replace(queue=each) for each in (queue, queue, other)]) == [
        1,
        2,
        1,
    ]


def test_numbers_within_a_request_are_consecutive() -> None:
    assert sizes(out(sequence=1), out(sequence=2), out(sequence=4), out(sequence=5)) == [2, 2]
    assert sizes(out(sequence=1), out(sequence=2, producer_id="q")) == [1, 1]


def test_requests_are_bounded_in_bytes() -> None:
    assert sizes(*[out(b"x" * 400) for _ in range(5)]) == [2, 2, 1]
    assert sizes(out(b"x" * 5000), out()) == [1, 1]


@in_virtual_time
async def test_a_rate_holds_from_the_first_row_on_and_lost_time_is_not_made_up() -> None:
    sending = Sender(
        parse_options(SinkOptions, BASE | {"rateLimitPerTask": "100"}), partition=0, batch_id=0
    )
    loop = asyncio.get_running_loop()
    for _ in range(20):
        await sending._pace(10)
    assert loop.time() == pytest.approx(1.9, abs=0.11)  # a burst of 0.1 s at most
    await asyncio.sleep(60)  # nothing came for a while
    before = loop.time()
    for _ in range(20):
        await sending._pace(10)
    assert loop.time() - before >= 1.8 - 1e-9


def test_a_sink_is_named_after_its_checkpoint() -> None:
    one = parse_options(SinkOptions, BASE | {"checkpointLocation": "/a"})
    other = parse_options(SinkOptions, BASE | {"checkpointLocation": "/b"})
    assert one.sink != other.sink
    with pytest.raises(ConfigError, match="needs sinkId"):
        parse_options(SinkOptions, BASE).sink  # noqa: B018


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([("topic", "string")], "body is required"),
        ([("body", "int")], "must be binary or string"),
        ([("body", "string"), ("colour", "string")], "cannot use the column colour"),
        ([("body", "string"), ("sequence", "bigint")], "must be given together: they number"),
        (
            [("body", "string"), ("producerId", "string"), ("sequence", "bigint")],
            "need delivery=exactlyOnce or effectivelyOnce",
        ),
    ],
)
def test_columns_are_checked(columns: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_columns(columns, parse_options(SinkOptions, BASE))


class Unsteady:
    """A producer whose broker goes away at one message, for some time."""

    def __init__(self, fails_at: bytes, times: int, unknown_at: tuple[int, ...] = ()) -> None:
        self.fails_at = fails_at
        self.times = times
        self.unknown_at = unknown_at
        self.calls = 0
        self.stored: list[bytes] = []

    async def send_batch(self, messages: list[Message], **_: object) -> None:
        for message in messages:
            await (await self.send_soon(message))

    async def send_soon(self, message: Message, **_: object) -> asyncio.Future[None]:
        self.calls += 1
        if self.calls in self.unknown_at:
            raise RouteNotFound(message.topic)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if message.body == self.fails_at and self.times:
            self.times -= 1
            asyncio.get_running_loop().call_soon(future.set_exception, ConnectionLost("away"))
        else:
            self.stored.append(bytes(message.body))
            asyncio.get_running_loop().call_soon(future.set_result, None)
        return future


def keyed_rows(count: int) -> pa.RecordBatch:
    bodies = [b"%d" % number for number in range(count)]
    return pa.RecordBatch.from_pydict({"body": bodies, "shardingKey": ["k"] * count})


@in_virtual_time
async def test_after_an_outage_the_last_message_of_a_key_is_the_last() -> None:
    sending = Sender(parse_options(SinkOptions, BASE), partition=0, batch_id=0)
    broker = Unsteady(b"1", times=3)
    sending._producers[None] = cast("Producer", broker)
    await sending.send(keyed_rows(5))
    await sending.finish()
    assert broker.stored[0] == b"0"
    assert broker.stored[-4:] == [b"1", b"2", b"3", b"4"]


@in_virtual_time
async def test_a_topic_that_disappears_while_rows_are_resent_loses_no_row() -> None:
    options = parse_options(SinkOptions, BASE | {"sendTimeoutMs": "1000"})
    sending = Sender(options, partition=0, batch_id=1)
    broker = Unsteady(b"1", times=2, unknown_at=tuple(range(8, 14)))
    sending._producers[None] = cast("Producer", broker)
    await sending.send(keyed_rows(5))
    await sending.finish()
    assert broker.calls > 14
    assert broker.stored[-4:] == [b"1", b"2", b"3", b"4"]


@in_virtual_time
async def test_an_outage_that_lasts_fails_the_task() -> None:
    options = parse_options(SinkOptions, BASE | {"sendTimeoutMs": "5000"})
    sending = Sender(options, partition=0, batch_id=0)
    sending._producers[None] = cast("Producer", Unsteady(b"1", times=1000))
    await sending.send(keyed_rows(2))
    with pytest.raises(ConnectionLost):
        await sending.finish()
    assert 3 < asyncio.get_running_loop().time() <= 5


class Lonely(Sender):
    """Its cluster has brokers, whatever they know."""

    async def _has_brokers(self) -> bool:
        return True


def plain_rows(count: int) -> pa.RecordBatch:
    return keyed_rows(count).select(["body"])


@in_virtual_time
async def test_in_the_first_batch_a_topic_that_nobody_knows_fails_soon() -> None:
    sending = Lonely(parse_options(SinkOptions, BASE), partition=0, batch_id=0)
    unknown = Unsteady(b"", times=0, unknown_at=tuple(range(1000)))
    sending._producers[None] = cast("Producer", unknown)
    await sending.send(plain_rows(5))  # rows that share a request are not waited for
    with pytest.raises(RouteNotFound):
        await sending.finish()
    assert asyncio.get_running_loop().time() < 2


@in_virtual_time
async def test_a_topic_that_has_taken_a_row_is_waited_for_in_the_first_batch_too() -> None:
    sending = Lonely(parse_options(SinkOptions, BASE), partition=0, batch_id=0)
    broker = Unsteady(b"", times=0, unknown_at=tuple(range(6, 14)))
    sending._producers[None] = cast("Producer", broker)
    await sending.send(plain_rows(5))
    await sending._wait_idle()
    await sending.send(plain_rows(5))
    await sending.finish()
    assert len(broker.stored) == 10
    assert asyncio.get_running_loop().time() > 2


@in_virtual_time
async def test_a_row_that_a_broker_refuses_is_reported() -> None:
    class Refusing(Unsteady):
        async def send_soon(self, message: Message, **_: object) -> asyncio.Future[None]:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.set_exception(MessageIllegal("no such queue"))
            return future

    sending = Sender(parse_options(SinkOptions, BASE), partition=0, batch_id=0)
    sending._producers[None] = cast("Producer", Refusing(b"", times=0))
    row = {"body": [b"x"], "keys": ["order-7"], "brokerName": ["b"], "queueId": [99]}
    await sending.send(pa.RecordBatch.from_pydict(row))
    with pytest.raises(MessageIllegal) as told:
        await sending.finish()
    assert told.value.__notes__ == [
        "of the row <Message topic=T tags=None keys=order-7 bytes=1> to queue 99 of b"
    ]
