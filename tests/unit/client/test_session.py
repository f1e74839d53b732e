from __future__ import annotations

from collections.abc import Callable

import pytest

from client.brokers import NAMESRV, broker, network_of, route_of
from client.network import Answer, FakeNetwork
from rocketpost.client.config import ClientConfig
from rocketpost.client.session import Session


async def test_a_remark_to_heartbeats_is_logged_once_until_it_changes(
    use_network: Callable[[FakeNetwork], FakeNetwork], caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str | None] = ["no such group", "no such group", None, "no such group"]
    serve = broker(HEART_BEAT=lambda command: Answer(remark=said.pop(0)))
    use_network(network_of({"T": route_of({"a": "a:1"})}, {"a:1": serve}))
    session = Session(ClientConfig(name_servers=NAMESRV))
    session.add_producer("P")
    await session.start()
    try:
        await session.routes.fetch("T")
        while said:
            await session.heartbeat_at("a:1")
    finally:
        await session.stop()
    assert caplog.text.count("broker=a:1 remark=no such group") == 2
