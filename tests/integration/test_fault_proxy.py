"""The proxy that tests misbehave through leaves no connection behind itself."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from rocketpost.testing.fault_proxy import FaultProxy


@pytest.mark.parametrize("turns", range(8))
async def test_open_connections_are_closed_on_both_sides_when_the_proxy_ends(turns: int) -> None:
    there: list[asyncio.StreamReader] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there.append(reader)
        await ended(reader)
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        async with FaultProxy(server.sockets[0].getsockname()) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            for _ in range(turns):  # of the loop: before, while and after it connects
                await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await ended(reader)
            for each in there:
                await ended(each)
        writer.close()


async def ended(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
