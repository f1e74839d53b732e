"""Calls to masters whose addresses change, in virtual time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketpost.client.session import Session
from rocketpost.errors import RouteNotFound
from rocketpost.proxy.cluster.masters import Masters
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.testing.waiting import settle


class Routes:
    """The addresses that a session knows."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def peek_master(self, broker: str) -> str | None:
        return self.known.get(broker)

    def replicas(self, broker: str) -> list[str]:
        return [self.known[broker]] if broker in self.known else []

    def learn(self, broker: Any) -> None:
        self.known[broker.name] = broker.address


class NameServer:
    """Answers questions for brokers after a while, as it knew them when it was asked."""

    def __init__(self) -> None:
        self.brokers: dict[str, Any] = {}
        self.questions = 0

    def register(self, name: str) -> None:
        self.brokers[name] = SimpleNamespace(name=name, address=f"{name}:10911")

    async def info(self) -> Any:
        self.questions += 1
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        info = SimpleNamespace(broker_addr_table=dict(self.brokers))
        loop.call_later(0.01, answer.set_result, info)
        return await answer


def masters_of(name_server: NameServer) -> Masters:
    masters = Masters(cast(Session, SimpleNamespace(routes=Routes())))
    masters._cluster = cast(Any, name_server)
    return masters


async def called(address: str) -> str:
    return address


@in_virtual_time
async def test_a_broker_that_has_just_registered_is_found() -> None:
    """The addresses were asked for a moment before, so they may not be asked for at once."""
    name_server = NameServer()
    masters = masters_of(name_server)
    await masters.refresh()
    name_server.register("a")
    assert await masters.call("a", called) == "a:10911"
    assert name_server.questions == 2


@in_virtual_time
async def test_the_answer_to_an_earlier_question_refuses_nobody() -> None:
    name_server = NameServer()
    masters = masters_of(name_server)
    earlier = asyncio.create_task(masters.refresh())
    await settle()
    name_server.register("a")
    assert await masters.call("a", called) == "a:10911"
    await earlier


@in_virtual_time
async def test_an_unknown_broker_is_refused_soon() -> None:
    masters = masters_of(NameServer())
    await masters.refresh()
    began = asyncio.get_running_loop().time()
    with pytest.raises(RouteNotFound, match="'b' is unknown"):
        await masters.call("b", called)
    assert asyncio.get_running_loop().time() - began < 1
