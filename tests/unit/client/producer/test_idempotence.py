"""Idempotent sends whose callers give up, or repeat a message whose outcome they do not know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from client.brokers import NAMESRV, broker, network_of, route_of
from client.network import Answer, FakeNetwork
from rocketpost.client import (
    ClientError,
    Message,
    MessageQueue,
    NotConnected,
    Producer,
    ProducerConfig,
    RequestTimeout,
)
from rocketpost.codec.batch import decode_batch
from rocketpost.codec.bodies.producers import ProducerState, ProducerStates
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.lenient_json import encode
from rocketpost.model.stamp import parse_field
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.testing.waiting import settle

A, B = "a:1", "b:1"
BOTH = {"T": route_of({"a": A, "b": B})}
ONE = {"T": route_of({"a": A})}
FIRST = MessageQueue("a", 0, "T")

Use = Callable[[FakeNetwork], FakeNetwork]


class Store:
    """A broker that stores each sequence once, and may keep its answers for itself."""

    def __init__(self, known: list[tuple[int, int]] | None = None) -> None:
        self.known = known or []
        self.stored: list[int] = []
        self.afters: list[int | None] = []
        self.answers = True
        self.held: list[tuple[asyncio.Future[Answer], Answer]] = []

    @property
    def serve(self) -> Callable[[Command], Answer | asyncio.Future[Answer] | None]:
        others = {"GET_PRODUCER_STATES": self._show}
        return broker(self._send, **others)  # type: ignore[arg-type]

    def release(self) -> None:
        self.answers = True
        for future, answer in self.held:
            if not future.done():
                future.set_result(answer)

    def _show(self, command: Command) -> Answer:
        state = ProducerState(producer_id="me", runs=self.known)
        return Answer(body=encode(ProducerStates(producers=[state] if self.known else [])))

    def _send(self, command: Command) -> Answer | asyncio.Future[Answer] | None:
        field = command.fields["sequence"]
        first, after = parse_field(field)
        is_batch = command.code == RequestCode.SEND_BATCH_MESSAGE
        count = len(decode_batch(command.body)) if is_batch else 1
        self.afters.append(after)
        for sequence in range(first.sequence, first.sequence + count):
            if sequence not in self.stored:
                self.stored.append(sequence)
        ids = ",".join(["AA"] * count)
        answer = Answer(0, {"msgId": ids, "queueId": command.fields["e"], "queueOffset": "7"})
        if self.answers:
            return answer
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.held.append((future, answer))
        return future


def producer(producer_id: str | None = None, **options: object) -> Producer:
    config = ProducerConfig(name_servers=NAMESRV, **options)  # type: ignore[arg-type]
    return Producer("G", config=config, idempotent=True, producer_id=producer_id)


async def give_up(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@in_virtual_time
async def test_a_message_that_may_be_stored_goes_to_no_other_broker(use_network: Use) -> None:
    a, b = Store(), Store()
    network = use_network(network_of(BOTH, {A: a.serve, B: b.serve}))
    message = Message("T", b"x")
    async with producer() as sender:
        a.answers = False
        with pytest.raises(RequestTimeout):
            await sender.send(message)
        network.cut(A)
        await settle()
        for _ in range(2):
            with pytest.raises(ClientError):
                await sender.send(message)
        a.answers = True
        network.servers[A] = a.serve
        assert (await sender.send(message)).queue.broker_name == "a"
    assert (a.stored, b.stored) == ([0], [])


@in_virtual_time
async def test_a_message_keeps_its_number_while_its_broker_is_away(use_network: Use) -> None:
    a = Store()
    network = use_network(network_of(ONE, {A: a.serve}))
    message = Message("T", b"x")
    async with producer() as sender:
        a.answers = False
        with pytest.raises(RequestTimeout):
            await sender.send(message)
        network.cut(A)
        await settle()
        for _ in range(2):
            with pytest.raises(NotConnected):
                await sender.send(message)
        a.answers = True
        network.servers[A] = a.serve
        await sender.send(message)
        await sender.send(message)  # a new one, since the outcome of the first is known now
    assert a.stored == [0, 1]


@in_virtual_time
async def test_what_an_earlier_run_has_stored_goes_to_no_other_broker(use_network: Use) -> None:
    a, b = Store(known=[(0, 3)]), Store()
    network = use_network(network_of(BOTH, {A: a.serve, B: b.serve}))
    async with producer("me") as sender:
        await sender.send(Message("T", b"x"), sequence=0)
        network.cut(A)
        await settle()
        with pytest.raises(NotConnected):
            await sender.send(Message("T", b"y"), sequence=1)
    assert b.stored == []


@pytest.mark.parametrize("producer_id", [None, "me"])
@in_virtual_time
async def test_who_gave_up_repeats_where_the_message_has_gone(
    use_network: Use, producer_id: str | None
) -> None:
    """The broker of the first choice was away, so the send went to the other one."""
    a, b = Store(), Store()
    network = use_network(network_of(BOTH, {A: a.serve, B: b.serve}))
    message, sequence = Message("T", b"x"), None if producer_id is None else 0
    async with producer(producer_id) as sender:
        await sender.were_stored("T", [0])  # asks both brokers
        network.cut(A)
        await settle()
        b.answers = False
        sending = asyncio.ensure_future(sender.send(message, sequence=sequence))
        await asyncio.sleep(1)
        assert b.stored == [0]
        await give_up(sending)
        network.servers[A] = a.serve
        b.release()
        await settle()
        assert (await sender.send(message, sequence=sequence)).queue.broker_name == "b"
    assert (a.stored, b.stored) == ([], [0])


@in_virtual_time
async def test_a_repetition_that_was_given_up_before_it_began_keeps_the_number(
    use_network: Use,
) -> None:
    a = Store()
    use_network(network_of(ONE, {A: a.serve}))
    message = Message("T", b"x")
    async with producer(in_flight_max=1) as sender:
        a.answers = False
        await give_up(asyncio.ensure_future(sender.send(message)))
        first = asyncio.ensure_future(sender.send(message))
        await settle()
        await give_up(first)
        waiting = asyncio.ensure_future(sender.send(message))  # the first is still in flight
        await settle()
        await give_up(waiting)
        a.release()
        await settle()
        await sender.send(message)
    assert a.stored == [0]


@in_virtual_time
async def test_a_batch_that_was_given_up_keeps_every_number(use_network: Use) -> None:
    a = Store()
    use_network(network_of(ONE, {A: a.serve}))
    messages = [Message("T", b"%d" % number) for number in range(3)]
    async with producer(batch_count_max=1, in_flight_max=2) as sender:
        await sender.send(Message("T", b"before"))
        a.answers = False
        sending = asyncio.ensure_future(sender.send_batch(messages))
        await settle()  # two are in flight, the third waits for room
        await give_up(sending)
        a.release()
        await settle()
        await sender.send_batch(messages)
    assert a.stored == [0, 1, 2, 4]  # the third one was not sent at first


@in_virtual_time
async def test_parts_of_a_batch_that_were_answered_keep_their_numbers(use_network: Use) -> None:
    a = Store()
    use_network(network_of(ONE, {A: a.serve}))
    messages = [Message("T", b"%d" % number) for number in range(2)]
    async with producer(batch_count_max=1) as sender:
        await sender.send(Message("T", b"before"))
        a.answers = False
        sending = asyncio.ensure_future(sender.send_batch(messages))
        await settle()
        future, answer = a.held[0]
        future.set_result(answer)
        await settle()
        await give_up(sending)
        a.release()
        await settle()
        await sender.send_batch(messages)
    assert a.stored == [0, 1, 2]


@in_virtual_time
async def test_nothing_follows_a_message_that_was_never_sent(use_network: Use) -> None:
    a = Store()
    use_network(network_of(ONE, {A: a.serve}))
    async with producer(in_flight_max=1) as sender:
        a.answers = False
        first = asyncio.ensure_future(sender.send(Message("T", b"1"), queue=FIRST))
        await settle()
        second = asyncio.ensure_future(sender.send(Message("T", b"2"), queue=FIRST))
        await settle()
        await give_up(second)
        a.release()
        await first
        await sender.send(Message("T", b"3"), queue=FIRST)
    assert a.afters == [None, 0]
