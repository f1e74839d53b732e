"""Attempts at orderly pops: one whose answer was lost is repeated with the same id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from client.brokers import NAMESRV, broker, network_of, record, route_of
from client.network import Answer, FakeNetwork
from rocketpost.client import ClientConfig
from rocketpost.client.consumer.simple_consumer import SimpleConsumer
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.testing.waiting import until

A, B = "a:1", "b:1"
POP = RequestCode.POP_MESSAGE

Use = Callable[[FakeNetwork], FakeNetwork]


def found(command: Command) -> Answer:
    fields = {"popTime": "1", "invisibleTime": "60000", "reviveQid": "999", "restNum": "0"}
    return Answer(0, fields, body=record())


def failed(command: Command) -> Answer:
    return Answer(ResponseCode.SYSTEM_ERROR, remark="no")


def silent(command: Command) -> None:
    return None


def consumer() -> SimpleConsumer:
    return SimpleConsumer("G", orderly=True, config=ClientConfig(name_servers=NAMESRV))


def attempts(network: FakeNetwork, address: str) -> list[str]:
    return [command.fields["attemptId"] for command in network.sent(POP, address)]


async def test_a_lost_attempt_is_repeated_even_if_another_broker_has_messages_first(
    use_network: Use,
) -> None:
    served: dict[str, Any] = {
        A: broker(None, POP_MESSAGE=failed),
        B: broker(None, POP_MESSAGE=found),
    }
    network = use_network(network_of({"T": route_of({"a": A, "b": B})}, served))
    async with consumer() as receiver:
        await receiver.subscribe("T")
        while len(attempts(network, A)) < 3:
            assert await receiver.receive(await_seconds=0)
            if attempts(network, A):
                network.servers[A] = broker(None, POP_MESSAGE=found)
    first, again, fresh = attempts(network, A)
    assert first == again
    assert fresh != again
    assert len(set(attempts(network, B))) == len(attempts(network, B))


async def test_an_attempt_that_was_given_up_is_repeated(use_network: Use) -> None:
    served: dict[str, Any] = {A: broker(None, POP_MESSAGE=silent)}
    network = use_network(network_of({"T": route_of({"a": A})}, served))
    async with consumer() as receiver:
        await receiver.subscribe("T")
        receiving = asyncio.ensure_future(receiver.receive())
        await until(lambda: bool(attempts(network, A)))
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        network.servers[A] = broker(None, POP_MESSAGE=found)
        assert await receiver.receive()
        assert await receiver.receive()
    first, again, fresh = attempts(network, A)
    assert first == again
    assert fresh != again
