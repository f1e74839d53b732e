"""Stopping a client: what goes on meanwhile, and what is left when it is interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from client.brokers import NAMESRV, QueueBroker, network_of, route_of
from client.network import Answer, FakeNetwork
from rocketpost.client import (
    ClientError,
    LitePullConsumer,
    LitePullConsumerConfig,
    Message,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
    TransactionProducer,
)
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command

A = "a:1"
ROUTES = {"T": route_of({"a": A}), "%RETRY%G": route_of({"a": A}, queues=1)}

Use = Callable[[FakeNetwork], FakeNetwork]


def tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def test_a_push_consumer_leaves_its_group_although_stopping_is_interrupted(
    use_network: Use,
) -> None:
    broker = QueueBroker()
    broker.put(b"x")
    network = use_network(network_of(ROUTES, {A: broker.serve}))
    began = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        began.set()
        await asyncio.Event().wait()

    config = PushConsumerConfig(
        name_servers=NAMESRV, instance_name="web", start_from=StartFrom.FIRST
    )
    consumer = PushConsumer("G", config=config)
    consumer.subscribe("T", handle)
    await consumer.start()
    await began.wait()
    stopping = asyncio.ensure_future(consumer.stop())
    while "rebalance" in tasks():
        await asyncio.sleep(0)
    assert "show that the loop moves" in tasks()  # or it would be reported as standing still
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert tasks() == set()
    [leave] = network.sent(RequestCode.UNREGISTER_CLIENT)
    assert leave.fields["consumerGroup"] == "G"
    again = PushConsumer("G", config=config)  # nobody of this name has the group any more
    again.subscribe("T", print)
    async with again:
        pass


async def test_a_push_consumer_leaves_its_group_although_storing_is_interrupted(
    use_network: Use,
) -> None:
    broker = QueueBroker()
    broker.put(b"x")
    storing, handled = asyncio.Event(), asyncio.Event()

    def serve(command: Command) -> Answer | asyncio.Future[Answer] | None:
        if command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            storing.set()
            return None
        return broker.serve(command)

    network = use_network(network_of(ROUTES, {A: serve}))

    async def handle(message: ReceivedMessage) -> None:
        handled.set()

    config = PushConsumerConfig(name_servers=NAMESRV, start_from=StartFrom.FIRST)
    consumer = PushConsumer("G", config=config)
    consumer.subscribe("T", handle)
    await consumer.start()
    await handled.wait()
    stopping = asyncio.ensure_future(consumer.stop())
    await storing.wait()
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert tasks() == set()
    assert network.sent(RequestCode.UNREGISTER_CLIENT)


async def test_a_lite_pull_consumer_leaves_its_group_although_stopping_is_interrupted(
    use_network: Use,
) -> None:
    broker = QueueBroker()
    broker.put(b"x")
    committing = asyncio.Event()

    def serve(command: Command) -> Answer | asyncio.Future[Answer] | None:
        if command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            committing.set()
            return None
        return broker.serve(command)

    network = use_network(network_of(ROUTES, {A: serve}))
    config = LitePullConsumerConfig(name_servers=NAMESRV, start_from=StartFrom.FIRST)
    consumer = LitePullConsumer("G", config=config)
    consumer.subscribe("T")
    await consumer.start()
    assert len(await consumer.poll(timeout=5)) == 1
    stopping = asyncio.ensure_future(consumer.stop())
    await committing.wait()
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert tasks() == set()
    [leave] = network.sent(RequestCode.UNREGISTER_CLIENT)
    assert leave.fields["consumerGroup"] == "G"


async def test_a_transaction_producer_whose_start_is_interrupted_leaves_nothing(
    use_network: Use,
) -> None:
    network = use_network(network_of(ROUTES, {A: QueueBroker().serve}))
    network.servers[NAMESRV] = lambda command: None
    producer = TransactionProducer(
        "G",
        checker=lambda message: None,
        topics=["T"],
        config=ProducerConfig(name_servers=NAMESRV),
    )
    starting = asyncio.ensure_future(producer.start())
    while not network.sent(RequestCode.GET_ROUTEINFO_BY_TOPIC):
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert tasks() == set()
    with pytest.raises(ClientError, match="not running"):
        await producer.send(Message("T", b"x"))
