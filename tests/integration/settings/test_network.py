"""Settings of a broker's addresses, names and registration."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from rocketpost.codec.bodies.cluster import decode_cluster
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig

from .harness import broker, peer_at, until


class ListingServer:
    """A small HTTP address server: one line of name servers."""

    def __init__(self) -> None:
        self.line = ""
        self.asked: list[str] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(request.split()[1])
        body = f"{self.line}\n".encode()
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()


async def brokers_of(server: NameServer) -> set[str]:
    """Return the names of the brokers that a name server knows."""
    async with peer_at("127.0.0.1", server.port) as peer:
        answer = await peer.ok(Code.GET_BROKER_CLUSTER_INFO)
    return set(decode_cluster(answer.body).broker_addr_table)


async def test_fetchNamesrvAddrByAddressServer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=None)
    first, second = NameServer(config), NameServer(config)
    await first.start()
    await second.start()
    listing = ListingServer()
    http = await asyncio.start_server(listing.answer, "127.0.0.1", 0)
    port = http.sockets[0].getsockname()[1]
    listing.line = f"127.0.0.1:{first.port}"
    try:
        async with broker(
            tmp_path,
            fetchNamesrvAddrByAddressServer="true",
            rmqAddressServerDomain=f"127.0.0.1:{port}",
            rmqAddressServerSubGroup="ours",
            fetchNamesrvAddrInterval=50,
        ):
            assert set(listing.asked) == {"/rocketmq/ours"}
            assert await brokers_of(first) == {"broker-a"}
            listing.line = f"127.0.0.1:{second.port}"  # the broker moves
            await until(lambda: knows(second, {"broker-a"}))
            await until(lambda: knows(first, set()))
            count = len(listing.asked)
            listing.line = ""  # nothing listed: it stays where it is
            await until(lambda: asked_more(listing, count + 2))
            assert await brokers_of(second) == {"broker-a"}
    finally:
        http.close()
        await first.stop()
        await second.stop()


async def knows(server: NameServer, names: set[str]) -> bool:
    return await brokers_of(server) == names


async def asked_more(listing: ListingServer, count: int) -> bool:
    return len(listing.asked) >= count


async def test_an_address_server_is_not_asked_where_name_servers_are_given(
    tmp_path: Path,
) -> None:
    listing = ListingServer()
    http = await asyncio.start_server(listing.answer, "127.0.0.1", 0)
    port = http.sockets[0].getsockname()[1]
    async with broker(
        tmp_path,
        namesrvAddr="127.0.0.1:1",
        fetchNamesrvAddrByAddressServer="true",
        rmqAddressServerDomain=f"127.0.0.1:{port}",
    ):
        assert listing.asked == []
    http.close()


async def test_serverChannelMaxIdleTimeSeconds(tmp_path: Path) -> None:
    async with broker(tmp_path, serverChannelMaxIdleTimeSeconds=1) as peer:
        await peer.ok(Code.GET_BROKER_RUNTIME_INFO)
        async with asyncio.timeout(60):
            await peer.connection.wait_closed()  # by default after two minutes


async def test_names_and_addresses(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with broker(
        tmp_path,
        host="127.0.0.2",
        bindAddress="127.0.0.2",
        listenPort=port,
        brokerIP1="127.0.0.9",
        brokerName="mine",
        brokerClusterName="Ours",
        regionId="here",
    ) as peer:
        assert peer.server.address == f"127.0.0.9:{port}"
        for topic in ("mine", "Ours"):
            await peer.ok(Code.GET_TOPIC_CONFIG, topic=topic)
        sent = await peer.send("T")
        assert sent.fields["msgId"].lower().startswith("7f000009")
        [record] = await peer.records("T")
        assert record.properties["CLUSTER"] == "Ours"
        assert record.properties["MSG_REGION"] == "here"
        with pytest.raises(OSError, match="failed"):
            await asyncio.open_connection("127.0.0.1", port)


async def test_namesrvAddr(tmp_path: Path) -> None:
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=None)
    server = NameServer(config)
    await server.start()
    try:
        async with broker(tmp_path, namesrvAddr=f"127.0.0.1:{server.port}"):
            assert await brokers_of(server) == {"broker-a"}
    finally:
        await server.stop()


async def test_registerBrokerTimeoutMills(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(read, "127.0.0.1", 0)
    address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    async with broker(tmp_path, namesrvAddr=address, registerBrokerTimeoutMills=100):

        async def is_given_up() -> bool:
            return f"not registered: name_server={address}" in caplog.text

        await until(is_given_up)  # by default after 24 seconds
    silent.close()


@pytest.mark.parametrize(("given_ms", "seconds"), [(1, 10), (40_000, 40), (10**9, 60)])
async def test_registerNameServerPeriod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_ms: int, seconds: float
) -> None:
    asked: list[float] = []
    twice, never = asyncio.Event(), asyncio.Event()

    async def sleep(self: object, seconds: float) -> None:
        asked.append(seconds)
        if len(asked) == 2:
            twice.set()
            await never.wait()

    monkeypatch.setattr("rocketpost.server.name_servers.registration._Link.sleep", sleep)
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=None)
    server = NameServer(config)
    await server.start()
    address = f"127.0.0.1:{server.port}"
    try:
        async with broker(tmp_path, namesrvAddr=address, registerNameServerPeriod=given_ms):
            async with asyncio.timeout(30):
                await twice.wait()
            assert asked == [seconds] * 2  # between registrations, within RocketMQ's bounds
    finally:
        await server.stop()
