"""Clients that fall silent."""

from __future__ import annotations

import asyncio
from typing import Any

from rocketpost.proxy.backend import Identity
from rocketpost.proxy.clients import ClientTable, GrpcClient
from rocketpost.proxy.settings import ProxyConfig


class _Backend:
    """A way to brokers that are never asked."""

    def link(self, identity: Identity, on_request: Any) -> Any:
        return self

    def close(self) -> None:
        pass


async def _silent(table: ClientTable, seconds: float) -> GrpcClient:
    client = table.note(Identity("id", ("127.0.0.1", 1), "JAVA", "5"))
    client.seen_at = asyncio.get_running_loop().time() - seconds
    await table._look_at(client)
    return client


async def test_a_client_that_missed_two_heartbeats_without_a_stream_gives_back_its_messages() -> (
    None
):
    table = ClientTable(_Backend(), ProxyConfig())  # type: ignore[arg-type]
    left = []

    async def note_leave(client: GrpcClient) -> None:
        left.append(client)

    table.on_leave = note_leave
    client = await _silent(table, 20)
    assert not left
    await _silent(table, 30)
    await table._look_at(client)
    assert left == [client], "only once"
    assert table.find("id") is client, "its settings are kept"
    await _silent(table, 30)
    assert left == [client, client], "it was back meanwhile"
    client.streams.append(object())  # type: ignore[arg-type]
    await _silent(table, 100)
    assert len(left) == 2, "it has a stream"
    await _silent(table, 130)
    await table._look_at(client)
    assert len(left) == 3
    assert client.is_gone
    assert table.find("id") is client, "it may go on with its stream"
    assert not table.note(client.identity).is_gone
    client.streams.clear()
    await _silent(table, 130)
    assert table.find("id") is None
    assert client.is_gone


async def test_the_producer_that_was_heard_last_is_asked() -> None:
    table = ClientTable(_Backend(), ProxyConfig())  # type: ignore[arg-type]
    now = asyncio.get_running_loop().time()
    for name, seconds in (("paused", 100), ("awake", 1), ("earlier", 10)):
        client = table.note(Identity(name, ("127.0.0.1", 1), "JAVA", "5"))
        client.seen_at = now - seconds
        client.note_topic("topic")
        client.streams.append(object())  # type: ignore[arg-type]
    assert table.producer_of("topic", lambda _: True) is table.find("awake")
    allowed = table.find("paused")
    assert table.producer_of("topic", lambda each: each is allowed) is allowed
    assert table.producer_of("another", lambda _: True) is None
