"""Automatic batches: who travels together, and what each sender is told."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from client.brokers import NAMESRV, broker, network_of, route_of, stored
from client.network import Answer, FakeNetwork
from rocketpost.client import (
    ClientError,
    ConfigError,
    Fault,
    Message,
    MessageQueue,
    MessageRefused,
    Producer,
    ProducerConfig,
)
from rocketpost.client.producer import gathering
from rocketpost.codec.batch import decode_batch
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.testing.virtual_time import in_virtual_time

A = "a:1"
ONE = {topic: route_of({"a": A}) for topic in ("T", "U", "%RETRY%G")}
CHOSEN = MessageQueue("a", 1, "T")
BATCH, SINGLE = RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2

Use = Callable[[FakeNetwork], FakeNetwork]


def serve(command: Command) -> Answer:
    if command.code != BATCH:
        return stored(command)
    ids = ",".join(f"O{n}" for n in range(len(decode_batch(command.body))))
    return Answer(0, {"msgId": ids, "queueId": command.fields["e"], "queueOffset": "7"})


def producer(**options: Any) -> Producer:
    options = {"auto_batch": True, "auto_batch_seconds": 0.001, **options}
    return Producer("G", config=ProducerConfig(name_servers=NAMESRV, **options))


def bodies(command: Command) -> list[bytes]:
    return [bytes(item.body) for item in decode_batch(command.body)]


def arrived(network: FakeNetwork) -> list[bytes]:
    """Return the first byte of each message, in the order of their arrival."""
    sent = [each for _, each in network.requests if each.code in (BATCH, SINGLE)]
    found = [bodies(each) if each.code == BATCH else [each.body] for each in sent]
    plain = [
        zlib.decompress(body) if len(body) < 50 and body[:1] == b"x" else body
        for each in found
        for body in each
    ]
    return [body[:1] for body in plain]


async def test_messages_of_a_moment_travel_together(use_network: Use) -> None:
    network = use_network(network_of(ONE, {A: broker(serve)}))
    async with producer() as sender:
        results = await asyncio.gather(*(sender.send(Message("T", b"%d" % n)) for n in range(5)))
    [command] = network.sent(BATCH)
    assert bodies(command) == [b"%d" % n for n in range(5)]
    assert [each.queue_offset for each in results] == [7, 8, 9, 10, 11]
    assert [each.offset_id for each in results] == [f"O{n}" for n in range(5)]
    assert len({each.message_id for each in results}) == 5
    assert network.sent(SINGLE) == []


async def test_a_full_group_does_not_wait(use_network: Use) -> None:
    network = use_network(network_of(ONE, {A: broker(serve)}))
    async with producer(auto_batch_seconds=30.0, auto_batch_bytes=300) as sender:
        first = [await sender.send_soon(Message("T", b"x" * 100)) for _ in range(2)]
        async with asyncio.timeout(5):
            await asyncio.gather(*first)
        last = await sender.send_soon(Message("T", b"x"))
        await sender.flush()
        assert last.done()
    assert [len(bodies(command)) for command in network.sent(BATCH)] == [2, 1]


async def test_a_stop_sends_what_waits(use_network: Use) -> None:
    use_network(network_of(ONE, {A: broker(serve)}))
    sender = producer(auto_batch_seconds=30.0)
    await sender.start()
    future = await sender.send_soon(Message("T", b"x"))
    await sender.stop()
    assert (await future).queue_offset == 7


async def test_messages_that_do_not_match_are_sent_apart(use_network: Use) -> None:
    network = use_network(network_of(ONE, {A: broker(serve)}))
    messages = [
        Message("T", b"1"),
        Message("U", b"2"),
        Message("T", b"3", sharding_key="k"),
        Message("T", b"4", priority=2),
        Message("T", b"5", wait_store=False),
        Message("T", b"6", tags="A"),
    ]
    async with producer() as sender:
        chosen = MessageQueue("a", 1, "T")
        await asyncio.gather(
            sender.send(Message("T", b"7"), queue=chosen), *map(sender.send, messages)
        )
    together = sorted(bodies(command) for command in network.sent(BATCH))
    assert together == [[b"1", b"6"], [b"2"], [b"3"], [b"4"], [b"5"], [b"7"]]
    [named] = [command for command in network.sent(BATCH) if bodies(command) == [b"7"]]
    assert named.fields["e"] == "1"


async def test_some_messages_travel_alone(
    use_network: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = use_network(network_of(ONE, {A: broker(serve)}))
    async with producer() as sender:
        await sender.send(Message("T", b"x", delay_level=1))
        await sender.send(Message("T", b"x" * 5000))
        await sender.send(Message("T", b"x"), timeout=1.0)
        await sender.send(Message("T", b"x"), selector=lambda queues, message: queues[0])
        await sender.send(Message("%RETRY%G", b"x"), queue=MessageQueue("a", 0, "%RETRY%G"))
        monkeypatch.setattr(gathering, "HELD_BYTES_MAX", 0)
        await sender.send(Message("T", b"x"))
    assert network.sent(BATCH) == []
    assert len(network.sent(SINGLE)) == 6


@pytest.mark.parametrize("options", [{"queue": CHOSEN}, {"sharding_key": "k"}], ids=repr)
async def test_messages_to_one_queue_keep_the_order_of_the_calls(
    use_network: Use, options: dict[str, Any]
) -> None:
    network = use_network(network_of(ONE, {A: broker(serve)}))
    queue, key = options.get("queue"), options.get("sharding_key")
    messages = [
        Message("T", b"0", sharding_key=key),
        Message("T", b"1" * 5000, sharding_key=key),  # is sent alone
        Message("T", b"2", sharding_key=key),
        Message("T", b"3", sharding_key=key, wait_store=False),  # is in a group of its own
        Message("T", b"4", sharding_key=key),
        Message("T", b"5" * 5000, sharding_key=key),
        Message("T", b"6", sharding_key=key),
    ]
    async with producer(in_flight_max=2) as sender:
        await sender.send(Message("T", b"before"))
        sends = [asyncio.ensure_future(sender.send(each, queue=queue)) for each in messages]
        await asyncio.gather(*sends)
    assert arrived(network) == [b"b", *(b"%d" % n for n in range(7))]


async def test_messages_to_a_given_queue_keep_their_order_whatever_their_keys(
    use_network: Use,
) -> None:
    network = use_network(network_of(ONE, {A: broker(serve)}))
    async with producer(auto_batch_seconds=30.0, auto_batch_bytes=350) as sender:
        keys = [None, "k", "l", "k"]
        messages = [
            Message("T", b"%d" % n + b"x" * 60 * n, sharding_key=key) for n, key in enumerate(keys)
        ]
        sends = [asyncio.ensure_future(sender.send(each, queue=CHOSEN)) for each in messages]
        await asyncio.sleep(0)
        await sender.flush()
        await asyncio.gather(*sends)
    assert arrived(network) == [b"0", b"1", b"2", b"3"]


@in_virtual_time
async def test_a_send_that_waits_for_a_batch_keeps_its_time_limit(use_network: Use) -> None:
    [only] = ONE["T"].broker_datas
    follower = msgspec.structs.replace(only, broker_addrs={1: A})
    without_leader = msgspec.structs.replace(ONE["T"], broker_datas=[follower])
    network = use_network(network_of({"T": without_leader}, {A: broker(serve)}))
    loop = asyncio.get_running_loop()
    async with producer(send_timeout=3.0) as sender:
        first = await sender.send_soon(Message("T", b"0", sharding_key="k"))
        began = loop.time()
        with pytest.raises(ClientError):
            await sender.send(Message("T", b"1", sharding_key="k"), timeout=0.5)
        assert loop.time() - began == pytest.approx(0.5, abs=0.1)
        with pytest.raises(ClientError):
            await first
    assert arrived(network) == []


async def test_who_gives_up_in_the_line_does_not_let_others_overtake(use_network: Use) -> None:
    network = use_network(network_of(ONE, {A: broker(serve)}))
    async with producer(auto_batch_seconds=30.0, in_flight_max=1) as sender:
        await sender.send(Message("T", b"b" * 5000))
        held = asyncio.ensure_future(sender.send(Message("T", b"h" * 5000), queue=CHOSEN))
        first = asyncio.ensure_future(sender.send(Message("T", b"0"), queue=CHOSEN))
        await asyncio.sleep(0)
        impatient = asyncio.ensure_future(sender.send(Message("T", b"1" * 5000), queue=CHOSEN))
        last = asyncio.ensure_future(sender.send(Message("T", b"2" * 5000), queue=CHOSEN))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.gather(held, first, last)
    assert arrived(network) == [b"b", b"h", b"0", b"2"]


async def test_every_sender_gets_the_refusal(use_network: Use) -> None:
    refused = Answer(ResponseCode.MESSAGE_ILLEGAL, remark="no")
    use_network(network_of(ONE, {A: broker(lambda command: refused)}))
    async with producer() as sender:
        outcomes = await asyncio.gather(
            *(sender.send(Message("T", b"x")) for _ in range(3)), return_exceptions=True
        )
        assert [isinstance(each, Fault) for each in outcomes] == [True] * 3
        lost = await asyncio.gather(sender.send(Message("V", b"x")), return_exceptions=True)
        assert isinstance(lost[0], Exception)


async def test_a_message_that_breaks_a_rule_harms_nobody(use_network: Use) -> None:
    network = use_network(network_of(ONE, {A: broker(serve)}))
    async with producer() as sender:
        good = await sender.send_soon(Message("T", b"good"))
        with pytest.raises(MessageRefused):
            await sender.send(Message("T", b""))
        with pytest.raises(MessageRefused):
            await sender.send(Message("T", b"x", properties={"p": "x" * 40_000}))
        await good
    [command] = network.sent(BATCH)
    assert bodies(command) == [b"good"]


async def test_who_gives_up_takes_nobody_along(use_network: Use) -> None:
    network = use_network(network_of(ONE, {A: broker(serve)}))
    async with producer() as sender:
        impatient = asyncio.ensure_future(sender.send(Message("T", b"1")))
        patient = asyncio.ensure_future(sender.send(Message("T", b"2")))
        await asyncio.sleep(0)
        impatient.cancel()
        assert (await patient).offset_id == "O1"
    [command] = network.sent(BATCH)
    assert bodies(command) == [b"1", b"2"]


@pytest.mark.parametrize("wrong", [{"auto_batch_bytes": 0}, {"auto_batch_seconds": 0.0}])
def test_settings_have_bounds(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ProducerConfig(**wrong)


def test_numbered_sends_are_not_gathered() -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        Producer("G", config=ProducerConfig(auto_batch=True), idempotent=True)
