"""Clients of one instance name: one connection to each server, and requests find their client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from client.brokers import NAMESRV, QueueBroker, broker, network_of, route_of, stored
from client.network import Answer, FakeNetwork
from rocketpost.client import (
    ClientError,
    Message,
    Producer,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    RequestTimeout,
    SendStatus,
)
from rocketpost.codec.bodies.client import decode_heartbeat
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.lenient_json import decode_any
from rocketpost.testing.virtual_time import in_virtual_time

A = "a:1"
ROUTES = {
    "T": route_of({"a": A}),
    "%RETRY%G": route_of({"a": A}, queues=1),
    "%RETRY%H": route_of({"a": A}, queues=1),
}
Use = Callable[[FakeNetwork], FakeNetwork]


def producer(group: str, name: str = "web", **options: object) -> Producer:
    config = ProducerConfig(name_servers=NAMESRV, instance_name=name, **options)  # type: ignore[arg-type]
    return Producer(group, config=config)


async def test_producers_of_one_name_share_their_connections(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: QueueBroker().serve}))
    first, second = producer("one"), producer("two")
    async with first:
        async with second:
            for each in (first, second, first):
                assert (await each.send(Message("T", b"x"))).status is SendStatus.SEND_OK
            assert first.client_id == second.client_id
            assert {address: len(links) for address, links in network.links.items()} == {
                NAMESRV: 1,
                A: 1,
            }
        # The other one goes on with the same connections.
        assert (await first.send(Message("T", b"x"))).status is SendStatus.SEND_OK
        assert len(network.links[A]) == 1
    groups = {
        group.group_name
        for command in network.sent(RequestCode.HEART_BEAT)
        for group in decode_heartbeat(command.body).producer_data_set
    }
    assert groups == {"one", "two"}
    left = [c.fields["producerGroup"] for c in network.sent(RequestCode.UNREGISTER_CLIENT)]
    assert left == ["two", "one"]
    async with producer("three") as third:  # after the last one has closed them
        assert (await third.send(Message("T", b"x"))).status is SendStatus.SEND_OK


async def test_clients_without_a_name_share_nothing(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: QueueBroker().serve}))
    async with producer("one", "") as first, producer("one", "") as second:
        await first.send(Message("T", b"x"))
        await second.send(Message("T", b"x"))
        assert len(network.links[A]) == 2


async def test_clients_that_brokers_could_not_tell_apart_are_refused(use_network: Use) -> None:
    use_network(network_of(ROUTES, {A: QueueBroker().serve}))
    async with producer("one") as first:
        with pytest.raises(ClientError, match="producer group one is in use"):
            await producer("one").start()
        other = ProducerConfig(name_servers="other:1", instance_name="web")
        with pytest.raises(ClientError, match="same name servers"):
            await Producer("two", config=other).start()
        assert (await first.send(Message("T", b"x"))).status is SendStatus.SEND_OK
        assert (await first.send(Message("T", b"x"))).status is SendStatus.SEND_OK
    async with producer("one") as again:
        assert again._session is not None
        assert len(again._session._hub._members) == 1


async def test_requests_of_brokers_reach_the_client_of_their_group(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: QueueBroker().serve}))
    config = PushConsumerConfig(name_servers=NAMESRV, instance_name="web")
    consumers = {group: PushConsumer(group, config=config) for group in ("G", "H")}
    for consumer in consumers.values():
        consumer.subscribe("T", print)
    async with producer("one"), consumers["G"], consumers["H"]:
        (link,) = network.links[A]
        for group in consumers:
            response = await link.request(
                RequestCode.GET_CONSUMER_RUNNING_INFO,
                fields={"consumerGroup": group, "clientId": consumers[group].client_id},
                timeout=5,
            )
            assert response.code == 0, response.remark
            topics = {each["topic"] for each in decode_any(response.body)["subscriptionSet"]}
            assert topics == {"T", f"%RETRY%{group}"}
        response = await link.request(
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            fields={"consumerGroup": "Other", "clientId": "c"},
            timeout=5,
        )
        assert response.code != 0
    await asyncio.sleep(0)


@in_virtual_time
async def test_one_client_that_waits_in_vain_does_not_break_the_connection_of_another(
    use_network: Use,
) -> None:
    def answer(command: Command) -> Answer | None:
        return None if bytes(command.body) == b"unlucky" else stored(command)

    network = use_network(network_of(ROUTES, {A: broker(answer)}))
    async with producer("one") as first, producer("two") as second:
        await first.send(Message("T", b"x"))
        await asyncio.sleep(0.1)
        waiting = asyncio.ensure_future(first.send(Message("T", b"unlucky"), timeout=0.5))
        for _ in range(10):
            await asyncio.sleep(0.1)
            await second.send(Message("T", b"x"))
        with pytest.raises(RequestTimeout):
            await waiting
        assert len(network.links[A]) == 1
