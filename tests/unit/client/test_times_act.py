"""Settings of clients that are times: how long is waited, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from client.brokers import NAMESRV, QueueBroker, network_of, route_of
from client.network import FakeNetwork
from rocketpost.client import (
    MessageModel,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.testing.virtual_time import in_virtual_time

A = "a:1"
ROUTES = {"T": route_of({"a": A}, queues=1), "%RETRY%G": route_of({"a": A}, queues=1)}

Use = Callable[[FakeNetwork], FakeNetwork]


def consumer(**options: object) -> PushConsumer:
    given = {"start_from": StartFrom.FIRST, "stop_seconds": 0.05} | options
    return PushConsumer("G", config=PushConsumerConfig(name_servers=NAMESRV, **given))  # type: ignore[arg-type]


class Failing:
    """A handler that fails twice, and notes when it was called."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.succeeded = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.times.append(asyncio.get_running_loop().time())
        if len(self.times) < 3:
            raise ValueError("not yet")
        self.succeeded.set()

    @property
    def waits(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.times)]


@in_virtual_time
async def test_heartbeat_seconds(use_network: Use) -> None:
    counts = []
    for seconds in (1.0, 100.0):
        network = use_network(network_of(ROUTES, {A: QueueBroker().serve}))
        reader = consumer(heartbeat_seconds=seconds)
        reader.subscribe("T", Failing())
        async with reader:
            await asyncio.sleep(20)
            counts.append(len(network.sent(RequestCode.HEART_BEAT)))
    assert counts[0] > 15 > counts[1]


@pytest.mark.parametrize("seconds", [0.2, 7.0])
def test_suspend_seconds(use_network: Use, tmp_path: Path, seconds: float) -> None:
    @in_virtual_time
    async def run() -> None:
        source = QueueBroker()
        use_network(network_of(ROUTES, {A: source.serve}))
        source.put(b"x")
        handler = Failing()
        reader = consumer(
            suspend_seconds=seconds,
            model=MessageModel.BROADCASTING,  # needs no lock
            offset_directory=str(tmp_path),
        )
        reader.subscribe("T", handler, orderly=True)
        async with reader:
            await handler.succeeded.wait()
        assert handler.waits == pytest.approx([seconds] * 2, rel=0.1)

    run()


@pytest.mark.parametrize("seconds", [0.2, 60.0])
def test_local_retry_seconds(use_network: Use, seconds: float) -> None:
    @in_virtual_time
    async def run() -> None:
        source = QueueBroker()
        source.refuse[RequestCode.CONSUMER_SEND_MSG_BACK] = ResponseCode.SYSTEM_ERROR
        source.refuse[RequestCode.SEND_MESSAGE_V2] = ResponseCode.MESSAGE_ILLEGAL
        use_network(network_of(ROUTES, {A: source.serve}))
        source.put(b"x")
        handler = Failing()
        reader = consumer(local_retry_seconds=seconds)
        reader.subscribe("T", handler)
        async with reader:
            await handler.succeeded.wait()
        assert handler.waits == pytest.approx([seconds] * 2, rel=0.1)

    run()
