"""Requests and replies on a network in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from client.brokers import NAMESRV, broker, network_of, record, route_of, stored
from client.network import Answer, FakeNetwork
from rocketpost.client import (
    Compression,
    ConnectionLost,
    Fault,
    Message,
    MessageQueue,
    MessageRefused,
    NoReply,
    Producer,
    ProducerConfig,
    ReceivedMessage,
)
from rocketpost.client.compression import compress
from rocketpost.client.producer import requesting
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.headers.reply import PushReply
from rocketpost.codec.properties import decode_properties
from rocketpost.codec.record import decode_record
from rocketpost.errors import ClientError
from rocketpost.testing.virtual_time import in_virtual_time

A, B = "a:1", "b:1"
BOTH = {"T": route_of({"a": A, "b": B}), "C_REPLY_TOPIC": route_of({"a": A, "b": B}, queues=1)}
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
REQUEST = b"CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01asker\x02TTL\x01900\x02CLUSTER\x01C\x02"

Use = Callable[[FakeNetwork], FakeNetwork]


def producer(**options: object) -> Producer:
    config = ProducerConfig(name_servers=NAMESRV, **options)  # type: ignore[arg-type]
    return Producer("G", config=config)


def properties_of(command: Command) -> dict[str, str]:
    return decode_properties(command.fields["i"].encode())


class Replier:
    """A broker with a consumer behind it that replies at once."""

    def __init__(self, *, address: str = A, first: bool = False) -> None:
        self.network: FakeNetwork | None = None
        self.address = address
        self.first = first
        self.sys_flag = 0
        self.body = b"pong"
        self.answers: list[int] = []
        self.pushes: list[asyncio.Task[None]] = []

    def serve(self, command: Command) -> Answer | None:
        self.pushes.append(asyncio.ensure_future(self.push(properties_of(command))))
        return None if self.first else stored(command)

    async def push(self, properties: dict[str, str]) -> None:
        assert self.network is not None
        head = PushReply(
            topic="C_REPLY_TOPIC",
            queue_id=0,
            sys_flag=self.sys_flag,
            properties="".join(
                f"{name}\x01{value}\x02"
                for name, value in properties.items()
                if name in ("CORRELATION_ID", "UNIQ_KEY")
            ),
            born_host="10.0.0.7:5",
            store_host="odd",
        )
        [connection, *_] = self.network.links[self.address]
        response = await connection.request(
            PUSH, fields=to_fields(head), body=self.body, timeout=1.0
        )
        self.answers.append(response.code)


def with_replier(use_network: Use, **options: bool) -> tuple[FakeNetwork, Replier]:
    replier = Replier(**options)  # type: ignore[arg-type]
    network = use_network(network_of(BOTH, {A: broker(replier.serve), B: broker(replier.serve)}))
    replier.network = network
    return network, replier


async def test_a_request_returns_its_reply(use_network: Use) -> None:
    network, _ = with_replier(use_network)
    async with producer() as sender:
        reply = await sender.request(Message("T", b"ping"), timeout=3.0)
        [sent] = network.sent(RequestCode.SEND_MESSAGE_V2)
        properties = properties_of(sent)
        assert properties["REPLY_TO_CLIENT"] == sender.client_id
        assert properties["TTL"] == "3000"
    assert reply.body == b"pong"
    assert reply.properties["CORRELATION_ID"] == properties["CORRELATION_ID"]
    assert int(reply.properties["ARRIVE_TIME"]) > 0
    assert reply.born_host == ("10.0.0.7", 5)


async def test_every_broker_of_the_topic_knows_the_requester_before(use_network: Use) -> None:
    network, _ = with_replier(use_network)
    async with producer() as sender:
        await sender.request(Message("T", b"ping"))
        [at] = [i for i, (_, c) in enumerate(network.requests) if c.fields.get("b") == "T"]
        beats = [a for a, c in network.requests[:at] if c.code == RequestCode.HEART_BEAT]
        assert {A, B} <= set(beats)


@in_virtual_time
async def test_a_reply_may_come_before_the_send_is_answered(use_network: Use) -> None:
    with_replier(use_network, first=True)
    async with producer(send_timeout=0.05, retries=0) as sender:
        assert (await sender.request(Message("T", b"ping"))).body == b"pong"


async def test_a_compressed_reply_is_read(use_network: Use) -> None:
    _, replier = with_replier(use_network)
    replier.body, replier.sys_flag = compress(b"pong" * 1000, Compression.ZLIB, 5)
    async with producer() as sender:
        assert (await sender.request(Message("T", b"ping"))).body == b"pong" * 1000


@in_virtual_time
async def test_without_a_reply_the_message_is_stored_all_the_same(use_network: Use) -> None:
    network = use_network(network_of(BOTH, {A: broker(), B: broker()}))
    async with producer() as sender:
        with pytest.raises(NoReply, match="it is stored"):
            await sender.request(Message("T", b"ping"), timeout=0.02)
    assert len(network.sent(RequestCode.SEND_MESSAGE_V2)) == 1


async def test_a_request_that_is_refused_says_so(use_network: Use) -> None:
    refused = Answer(ResponseCode.MESSAGE_ILLEGAL, remark="no")
    use_network(network_of(BOTH, {A: broker(lambda c: refused), B: broker(lambda c: refused)}))
    async with producer() as sender:
        with pytest.raises(Fault, match="no"):
            await sender.request(Message("T", b"ping"))
        with pytest.raises(MessageRefused):
            await sender.request(Message("T", b""))


async def test_late_and_unknown_replies_are_taken_and_dropped(
    use_network: Use, caplog: pytest.LogCaptureFixture
) -> None:
    _, replier = with_replier(use_network)
    async with producer() as sender:
        await sender.request(Message("T", b"ping"))
        await replier.push({"CORRELATION_ID": "c-unknown"})
        await replier.push({})
    assert replier.answers[-2:] == [0, 0]
    assert "reply dropped: correlation_id=c-unknown" in caplog.text


async def test_a_client_that_stops_fails_its_requests(use_network: Use) -> None:
    use_network(network_of(BOTH, {A: broker(), B: broker()}))
    sender = producer()
    await sender.start()
    waiting = asyncio.ensure_future(sender.request(Message("T", b"ping"), timeout=60))
    while sender._requests is None or not sender._requests._introduced:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    await sender.stop()
    with pytest.raises(ConnectionLost):
        await waiting


async def test_the_requests_that_wait_have_a_bound(
    use_network: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requesting, "REQUESTS_MAX", 0)
    use_network(network_of(BOTH, {A: broker(), B: broker()}))
    async with producer() as sender:
        with pytest.raises(ClientError, match="wait for their replies already"):
            await sender.request(Message("T", b"ping"))


async def test_a_lost_broker_is_met_again_while_a_request_waits(use_network: Use) -> None:
    network = use_network(network_of(BOTH, {A: broker(), B: broker()}))
    async with producer() as sender:
        waiting = asyncio.ensure_future(sender.request(Message("T", b"ping"), timeout=60))
        while not network.sent(RequestCode.SEND_MESSAGE_V2):
            await asyncio.sleep(0)
        before = len(network.sent(RequestCode.HEART_BEAT, A))
        for link in network.links.pop(A):
            link.abort()
        while len(network.sent(RequestCode.HEART_BEAT, A)) == before:
            await asyncio.sleep(0)
        waiting.cancel()


def received(properties: bytes = REQUEST, broker_name: str = "b") -> ReceivedMessage:
    return ReceivedMessage(
        decode_record(record(properties=properties)), MessageQueue(broker_name, 0, "T")
    )


async def test_a_reply_goes_to_the_broker_that_had_the_request(use_network: Use) -> None:
    reply = RequestCode.SEND_REPLY_MESSAGE_V2
    served = broker(SEND_REPLY_MESSAGE_V2=stored)
    network = use_network(network_of(BOTH, {A: served, B: served}))
    async with producer() as sender:
        await sender.reply_to(received(), b"pong", tags="X", properties={"own": "1"})
        await sender.reply_to(received(broker_name="gone"), b"pong")
    [command, *_] = network.sent(reply, B)
    properties = properties_of(command)
    assert command.fields["b"] == "C_REPLY_TOPIC"
    assert command.body == b"pong"
    assert properties["MSG_TYPE"] == "reply"
    assert (properties["CORRELATION_ID"], properties["REPLY_TO_CLIENT"]) == ("c-1", "asker")
    assert (properties["TTL"], properties["TAGS"], properties["own"]) == ("900", "X", "1")
    assert len(network.sent(reply)) == 2


async def test_a_broker_without_the_requester_is_not_the_last_word(use_network: Use) -> None:
    gone = Answer(ResponseCode.SYSTEM_ERROR, remark="not connected")
    network = use_network(
        network_of(
            BOTH,
            {
                A: broker(SEND_REPLY_MESSAGE_V2=stored),
                B: broker(SEND_REPLY_MESSAGE_V2=lambda c: gone),
            },
        )
    )
    async with producer() as sender:
        assert (await sender.reply_to(received(), b"pong")).queue.broker_name == "a"
        network.servers[A] = network.servers[B]
        with pytest.raises(Fault, match="not connected"):
            await sender.reply_to(received(), b"pong")


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        (b"CLUSTER\x01C\x02", "is not a request"),
        (REQUEST.replace(b"CLUSTER", b"OTHER"), "does not say its cluster"),
    ],
)
async def test_a_message_that_is_no_request_gets_no_reply(
    use_network: Use, properties: bytes, why: str
) -> None:
    use_network(network_of(BOTH, {A: broker(), B: broker()}))
    async with producer() as sender:
        with pytest.raises(MessageRefused, match=why):
            await sender.reply_to(received(properties), b"pong")
