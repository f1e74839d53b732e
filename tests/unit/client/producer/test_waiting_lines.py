"""Sends while brokers are away: what waits, in which order it leaves, and when it gives up."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable

import pytest

from client.brokers import NAMESRV, broker, network_of, route_of
from client.network import Answer, FakeConnector, FakeNetwork
from rocketpost.client import (
    Message,
    MessageQueue,
    NotConnected,
    Producer,
    ProducerConfig,
    PullConsumer,
    RequestTimeout,
    RouteNotFound,
    SendResult,
    SendStatus,
)
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import SystemBusy
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.transport.connection import Connection

A, B = "a:1", "b:1"
SEND = RequestCode.SEND_MESSAGE_V2
ONE = {"T": route_of({"a": A})}
BOTH = {"T": route_of({"a": A, "b": B})}
QUEUE = MessageQueue("a", 1, "T")

Use = Callable[[FakeNetwork], FakeNetwork]


def producer(**options: object) -> Producer:
    config = ProducerConfig(name_servers=NAMESRV, **options)  # type: ignore[arg-type]
    return Producer("G", config=config)


def come_back(network: FakeNetwork, address: str, seconds: float) -> None:
    """Let a broker serve the address, so many seconds from now."""
    serve = functools.partial(network.servers.__setitem__, address, broker())
    asyncio.get_running_loop().call_later(seconds, serve)


@in_virtual_time
async def test_a_broker_that_is_away_for_less_than_the_budget_costs_nothing(
    use_network: Use,
) -> None:
    network = use_network(network_of(ONE, {A: broker()}))
    async with producer(retries=0) as sender:
        await sender.send(Message("T", b"x"))
        network.cut(A)
        come_back(network, A, 2.5)
        sends = [
            sender.send(Message("T", b"x")),
            sender.send(Message("T", b"x"), queue=QUEUE),
            sender.send(Message("T", b"x", sharding_key="k")),
        ]
        results = await asyncio.gather(*sends)
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    assert len(network.sent(SEND)) == 4


@pytest.mark.parametrize("is_idempotent", [False, True])
@in_virtual_time
async def test_a_machine_that_has_vanished_is_not_called_for_long(
    use_network: Use, is_idempotent: bool
) -> None:
    """Its connection is not refused, but another member of the group leads by now."""
    routes = dict(ONE)
    stores = broker(GET_PRODUCER_STATES=lambda _: Answer(body=b'{"producers":[]}'))
    network = use_network(network_of(routes, {A: stores, B: stores}))
    loop = asyncio.get_running_loop()
    config = ProducerConfig(name_servers=NAMESRV)
    async with Producer("G", config=config, idempotent=is_idempotent) as sender:
        await sender.send(Message("T", b"x"), queue=QUEUE)
        network.cut(A)
        network.vanished.add(A)
        loop.call_later(1.0, routes.update, {"T": route_of({"a": B})})
        began = loop.time()
        bodies = [b"%d" % number for number in range(20)]
        await asyncio.gather(*(sender.send(Message("T", b), queue=QUEUE) for b in bodies))
        assert loop.time() - began < 2.5
    assert [command.body for command in network.sent(SEND, B)] == bodies


@in_virtual_time
async def test_any_broker_that_comes_back_first_is_taken(use_network: Use) -> None:
    network = use_network(network_of(BOTH, {}))
    async with producer() as sender:
        come_back(network, B, 2.0)
        results = await asyncio.gather(*(sender.send(Message("T", b"x")) for _ in range(4)))
    assert {result.queue.broker_name for result in results} == {"b"}


@in_virtual_time
async def test_sends_to_one_queue_leave_in_the_order_of_the_calls(use_network: Use) -> None:
    network = use_network(network_of(ONE, {}))
    async with producer() as sender:
        come_back(network, A, 1.0)
        futures = []
        for n in range(200):  # until some time after the broker is back
            await asyncio.sleep(0.01)
            futures.append(await sender.send_soon(Message("T", b"%d" % n), queue=QUEUE))
        await asyncio.gather(*futures)
    assert [int(bytes(command.body)) for command in network.sent(SEND)] == list(range(200))


@in_virtual_time
async def test_when_the_budget_is_used_up_the_error_says_that_nothing_was_sent(
    use_network: Use,
) -> None:
    network = use_network(network_of(ONE, {}))
    loop = asyncio.get_running_loop()
    async with producer() as sender:
        for options in ({}, {"queue": QUEUE}):
            began = loop.time()
            with pytest.raises(NotConnected, match="cannot connect to a:1") as raised:
                await sender.send(Message("T", b"x"), **options)  # type: ignore[arg-type]
            assert loop.time() - began == pytest.approx(3.0, abs=0.3)
            assert "brokers tried: a" in raised.value.__notes__[0]
    assert network.sent(SEND) == []


@in_virtual_time
async def test_a_send_that_may_be_stored_times_out_although_the_broker_is_gone(
    use_network: Use,
) -> None:
    network = use_network(network_of(ONE, {A: broker(lambda command: None)}))
    async with producer() as sender:
        future = await sender.send_soon(Message("T", b"x"))
        while not network.sent(SEND):
            await asyncio.sleep(0)
        network.cut(A)
        with pytest.raises(RequestTimeout, match="may have been stored or not"):
            await future


@in_virtual_time
async def test_a_refusal_by_the_only_broker_is_followed_by_a_pause(use_network: Use) -> None:
    times: list[float] = []

    def busy(command: Command) -> Answer:
        times.append(asyncio.get_running_loop().time())
        return Answer(ResponseCode.SYSTEM_BUSY)

    use_network(network_of(ONE, {A: broker(busy)}))
    async with producer() as sender:
        with pytest.raises(SystemBusy):
            await sender.send(Message("T", b"x"))
    first, second, third = times
    assert 0 < second - first < third - second


@in_virtual_time
async def test_closing_fails_what_waits_in_line(use_network: Use) -> None:
    use_network(network_of(ONE, {}))
    sender = producer()
    await sender.start()
    future = await sender.send_soon(Message("T", b"x"), queue=QUEUE)
    assert sender._sender is not None
    sender._sender.close()
    with pytest.raises(NotConnected, match="closed"):
        await future
    await sender.stop()


@in_virtual_time
async def test_calls_that_can_be_repeated_are_repeated(use_network: Use) -> None:
    answers = broker(GET_MAX_OFFSET=lambda command: Answer(fields={"offset": "5"}))
    network = use_network(network_of(ONE, {}))

    async def back() -> None:
        await asyncio.sleep(2.0)
        network.servers[A] = answers

    async with PullConsumer("G", name_servers=NAMESRV) as consumer:
        coming = asyncio.ensure_future(back())
        assert await consumer.max_offset(QUEUE) == 5
        await coming
        network.cut(A)
        with pytest.raises(NotConnected):
            await consumer.max_offset(QUEUE)


@in_virtual_time
async def test_a_silent_name_server_does_not_prolong_a_wait_in_line(use_network: Use) -> None:
    network = use_network(network_of(ONE, {}))
    loop = asyncio.get_running_loop()
    async with producer() as sender:
        began = loop.time()
        patient = await sender.send_soon(Message("T", b"x"), queue=QUEUE, timeout=8.0)
        hurried = await sender.send_soon(Message("T", b"x"), queue=QUEUE, timeout=2.0)
        network.servers[NAMESRV] = lambda command: None
        with pytest.raises(NotConnected):
            await hurried
        assert loop.time() - began == pytest.approx(2.0, abs=0.1)
        network.servers[A] = broker()
        assert (await patient).status is SendStatus.SEND_OK


@in_virtual_time
async def test_a_topic_that_nobody_may_write_to_is_asked_for_with_pauses(use_network: Use) -> None:
    routes = dict(ONE)

    def refuse(command: Command) -> Answer:
        routes["T"] = route_of({"a": A}, perm=4)
        return Answer(ResponseCode.NO_PERMISSION)

    network = use_network(network_of(routes, {A: broker(refuse)}))
    async with producer() as sender:
        with pytest.raises(RouteNotFound):
            await sender.send(Message("T", b"x"))
    assert len(network.sent(RequestCode.GET_ROUTEINFO_BY_TOPIC)) < 30


@in_virtual_time
async def test_a_connection_that_closes_at_once_costs_no_attempt(use_network: Use) -> None:
    class Flaky(FakeNetwork):
        def pipe(self, address: str, client_end: Connection) -> None:
            super().pipe(address, client_end)
            if len(self.links[address]) == 1 and address == A:
                client_end.close()

    network = Flaky()
    network.servers = network_of(ONE, {A: broker()}).servers
    use_network(network)
    async with producer() as sender:
        result = await sender.send(Message("T", b"x"), queue=QUEUE)
    assert result.status is SendStatus.SEND_OK
    assert len(network.links[A]) == 2


class SlowNetwork(FakeNetwork):
    """A network on which connecting takes some turns of the loop, as it does with sockets."""

    def connector(self, **options: object) -> FakeConnector:
        return _SlowConnector(self, **options)


class _SlowConnector(FakeConnector):
    async def _make(self, address: str) -> Connection:
        for _ in range(7):
            await asyncio.sleep(0)
        return await super()._make(address)


async def start_each_turn(
    send: Callable[[int], Awaitable[asyncio.Future[SendResult]]], count: int
) -> None:
    """Start sends from tasks of their own, one more in each turn of the loop."""
    tasks = []
    for n in range(count):
        tasks.append(asyncio.create_task(send(n)))
        await asyncio.sleep(0)
    await asyncio.gather(*await asyncio.gather(*tasks))


def order_of(network: FakeNetwork) -> list[int]:
    return [int(bytes(command.body)) for command in network.sent(SEND)]


@pytest.mark.parametrize("wish", ["queue", "sharding key", "single queue"])
@pytest.mark.parametrize("idempotent", [False, True])
@in_virtual_time
async def test_nobody_overtakes_those_who_wait_for_the_first_connection(
    use_network: Use, wish: str, idempotent: bool
) -> None:
    network = SlowNetwork()
    states = {"GET_PRODUCER_STATES": lambda command: Answer(body=b'{"producers":[]}')}
    route = route_of({"a": A}, queues=1 if wish == "single queue" else 4)
    network.servers = network_of({"T": route}, {A: broker(**states)}).servers
    use_network(network)
    queue = MessageQueue("a", 0, "T") if wish == "queue" else None
    key = "k" if wish == "sharding key" else None
    config = ProducerConfig(name_servers=NAMESRV)
    async with Producer("G", config=config, idempotent=idempotent) as sender:
        await start_each_turn(
            lambda n: sender.send_soon(Message("T", b"%d" % n, sharding_key=key), queue=queue), 60
        )
    assert order_of(network) == list(range(60))


@in_virtual_time
async def test_nobody_overtakes_those_who_wait_for_room(use_network: Use) -> None:
    network = use_network(network_of(ONE, {A: broker()}))
    async with producer(in_flight_max=3) as sender:
        await start_each_turn(lambda n: sender.send_soon(Message("T", b"%d" % n), queue=QUEUE), 90)
    assert order_of(network) == list(range(90))


@in_virtual_time
async def test_a_send_given_up_while_connecting_is_not_sent_and_holds_up_nobody(
    use_network: Use,
) -> None:
    network = SlowNetwork()
    network.servers = network_of(ONE, {A: broker()}).servers
    use_network(network)
    async with producer() as sender:
        await sender.queues("T")
        first = await sender.send_soon(Message("T", b"0"), queue=QUEUE)
        second = await sender.send_soon(Message("T", b"1"), queue=QUEUE)
        first.cancel()
        assert (await second).status is SendStatus.SEND_OK
    assert order_of(network) == [1]
    assert first.cancelled()


@in_virtual_time
async def test_a_send_given_up_while_its_route_is_asked_for_lets_nobody_overtake(
    use_network: Use,
) -> None:
    network = use_network(network_of(ONE, {A: broker()}))
    async with producer() as sender:
        tasks = [
            asyncio.create_task(sender.send_soon(Message("T", b"%d" % n), queue=QUEUE))
            for n in range(4)
        ]
        await asyncio.sleep(0)
        tasks[1].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(each for each in done if isinstance(each, asyncio.Future)))
    assert isinstance(done[1], asyncio.CancelledError)
    assert order_of(network) == [0, 2, 3]
