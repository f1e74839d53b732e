"""TLS of the gRPC port, and plain connections beside it."""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from rocketpost.errors import ConfigError
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.proxy.wire.enums import Code
from rocketpost.server.proxy.broker import ProxiedBroker
from rocketpost.server.proxy.keys import choose_keys_blocking
from rocketpost.server.secure.authority import Authority
from rocketpost.transport.entrance import TlsMode

from .calls import Client, proxied_broker

pytestmark = pytest.mark.slow

TOPICS = {"normal": "NORMAL"}


async def _send_and_receive(client: Client) -> None:
    await client.produce("normal")
    await client.consume("group", "normal")
    await client.send("normal", b"x" * 300_000)
    (received,) = await client.receive("normal", "group")
    assert len(received.body) == 300_000
    assert await client.ack("group", received) == Code.OK


async def _served_certificate(port: int) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return ssl.DER_cert_to_PEM_cert(certificate).encode()


async def _is_ended(port: int, data: bytes) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True
    finally:
        writer.close()


def _addresses(broker: ProxiedBroker) -> set[tuple[str, int]]:
    assert broker._proxy is not None
    return {client.identity.address for client in broker._proxy.clients._clients.values()}


async def test_one_port_serves_tls_with_a_made_up_certificate_and_plain(tmp_path: Path) -> None:
    async with proxied_broker(tmp_path / "store", topics=TOPICS) as broker:
        port = broker.grpc_port
        trusted = await _served_certificate(port)
        async with Client(port) as plain, Client(port, trusted=trusted) as secure:
            await _send_and_receive(plain)
            await _send_and_receive(secure)
            # Both are known by their own addresses, not by that of the front.
            assert {host for host, _ in _addresses(broker)} == {"127.0.0.1"}
            assert len(_addresses(broker) - {("127.0.0.1", 0)}) == 2


async def test_other_bytes_and_silence_end_a_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxied_broker(tmp_path / "store", topics=TOPICS) as broker:
        assert await _is_ended(broker.grpc_port, b"GET / HTTP/1.1\r\n\r\n")
        assert "it speaks neither TLS nor HTTP/2" in caplog.text
        assert broker._proxy is not None
        front = broker._proxy._server._front
        assert front is not None
        front.seconds = 0.05
        assert await _is_ended(broker.grpc_port, b"")
        assert "it sent nothing in 0.05 s" in caplog.text
        assert not front._guests


async def test_an_enforcing_port_serves_the_files_as_they_are_and_nobody_without_tls(
    tmp_path: Path,
) -> None:
    authority = Authority.make("test")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"

    def issue() -> bytes:
        issued = authority.issue("localhost", hosts=("localhost", "127.0.0.1"))
        issued.write_blocking(certificate, key)
        return issued.certificate

    first = issue()
    settings = {
        "tlsServerMode": "enforcing",
        "tlsCertPath": str(certificate),
        "tlsKeyPath": str(key),
    }
    proxy = json.dumps(settings)
    async with proxied_broker(tmp_path / "store", proxy=proxy, topics=TOPICS) as broker:
        port = broker.grpc_port
        assert await _served_certificate(port) == first
        async with Client(port) as plain:
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await plain.send("normal", b"")
        second = issue()
        assert await _served_certificate(port) == second
        certificate.write_bytes(first)  # does not belong to the key
        assert await _served_certificate(port) == second
        async with Client(port, trusted=authority.pem.certificate) as secure:
            await _send_and_receive(secure)


async def test_the_broker_lends_its_certificate_and_is_as_strict(tmp_path: Path) -> None:
    authority = Authority.make("test")
    issued = authority.issue("localhost", hosts=("127.0.0.1",))
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    issued.write_blocking(certificate, key)
    settings = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(certificate),
        "tls.server.keyPath": str(key),
    }
    async with proxied_broker(tmp_path / "store", topics=TOPICS, **settings) as broker:
        assert await _served_certificate(broker.grpc_port) == issued.certificate
        async with Client(broker.grpc_port) as plain:
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await plain.send("normal", b"")


async def test_a_port_without_a_certificate_must_say_so() -> None:
    config = ProxyConfig(tls_test_mode=False)
    with pytest.raises(ConfigError, match="set tlsCertPath and tlsKeyPath, or tlsServerMode"):
        choose_keys_blocking(config, "127.0.0.1")
    assert choose_keys_blocking(replace(config, tls_mode=TlsMode.DISABLED), "127.0.0.1") is None
