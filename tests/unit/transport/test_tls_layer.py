from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketpost.codec.command import ONEWAY, Command, encode_command
from rocketpost.testing.secure.certificates import CertificateFolder
from rocketpost.testing.secure.memory_transport import MemoryTransport, exchange
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.transport.connection import Connection
from rocketpost.transport.served_connection import Inbox, ServedConnection
from rocketpost.transport.tls_contexts import ClientTls, ServerTls
from rocketpost.transport.tls_layer import CipherInbox, TlsLayer

BODIES = [b"", b"x", b"y" * 1000, b"z" * 40_000, b"w" * 300_000]


class Upper:
    """A connection that notes everything."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.data = bytearray()
        self.events: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.events.append("made")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> bool | None:
        self.events.append("eof")
        return None

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class BufferedUpper(Upper, asyncio.BufferedProtocol):
    """The same, with a buffer of its own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._buffer = memoryview(bytearray(size))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self._buffer[:nbytes]


class Ends:
    """A client and a server in memory."""

    def __init__(
        self,
        folder: CertificateFolder,
        *,
        server_upper: Upper | None = None,
        client_tls: ClientTls | None = None,
        cipher_bytes: int = 4096,
    ) -> None:
        self.failures: list[str] = []
        self.client_upper, self.server_upper = Upper(), server_upper or Upper()
        client = client_tls or ClientTls(trusted=folder.root)
        keys = folder.issue()
        self.server_layer = self._layer(
            ServerTls(keys=keys).make_context_blocking(), self.server_upper, True, cipher_bytes
        )
        self.client_layer = self._layer(
            client.make_context_blocking(), self.client_upper, False, cipher_bytes
        )
        self.server, self.client = (
            MemoryTransport(self.server_layer).connect(),
            MemoryTransport(self.client_layer).connect(),
        )

    def _layer(self, context: ssl.SSLContext, upper: Upper, is_server: bool, size: int) -> TlsLayer:
        return TlsLayer(
            context,
            upper,
            inbox=CipherInbox(size),
            server_side=is_server,
            server_name=None if is_server else "localhost",
            on_secure=lambda layer: None,
            on_failed=lambda layer, reason: self.failures.append(reason),
        )

    def shake_hands(self) -> Ends:
        exchange(self.client, self.server)
        return self


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> CertificateFolder:
    return CertificateFolder(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize("buffer_bytes", [0, 100, 512 * 1024])
async def test_bytes_pass_in_both_directions(folder: CertificateFolder, buffer_bytes: int) -> None:
    upper = BufferedUpper(buffer_bytes) if buffer_bytes else Upper()
    ends = Ends(folder, server_upper=upper).shake_hands()
    assert ends.client_upper.transport is not None
    assert upper.transport is not None
    ends.client_upper.transport.writelines(BODIES)
    upper.transport.writelines([memoryview(body) for body in BODIES])
    wire = bytes(ends.client.written)
    exchange(ends.client, ends.server)
    assert bytes(upper.data) == bytes(ends.client_upper.data) == b"".join(BODIES)
    assert b"y" * 100 not in wire
    assert upper.transport.get_extra_info("ssl_object").version() == "TLSv1.3"


async def test_nothing_is_made_before_the_handshake_is_done(folder: CertificateFolder) -> None:
    ends = Ends(folder)
    hello = ends.client.take()
    for at in range(len(hello)):
        assert ends.server_upper.events == []
        ends.server.deliver(hello[at : at + 1])
    ends.client.deliver(ends.server.take())
    assert ends.client_upper.events == ["made"]
    assert ends.server_upper.events == []
    exchange(ends.client, ends.server)
    assert ends.server_upper.events == ["made"]


async def test_an_unknown_authority_is_refused_by_the_client(
    folder: CertificateFolder, tmp_path: Path
) -> None:
    strange = CertificateFolder(tmp_path)
    ends = Ends(folder, client_tls=ClientTls(trusted=strange.root)).shake_hands()
    assert any("unable to get local issuer certificate" in each for each in ends.failures)
    assert ends.client_upper.events == ends.server_upper.events == []
    assert ends.client.is_closed
    assert ends.server.is_closed


async def test_java_like_trust_accepts_any_certificate(
    folder: CertificateFolder, tmp_path: Path
) -> None:
    strange = CertificateFolder(tmp_path)
    careless = ClientTls(trusted=strange.root, check_server=False)
    assert Ends(folder, client_tls=careless).shake_hands().client_upper.events == ["made"]


async def test_a_certificate_for_another_host_is_refused(
    folder: CertificateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "issue", lambda: CertificateFolder.issue(folder, "x", "other.host"))
    assert "Hostname mismatch" in Ends(folder).shake_hands().failures[0]
    lenient = ClientTls(trusted=folder.root, check_host=False)
    assert Ends(folder, client_tls=lenient).shake_hands().failures == []


@in_virtual_time
async def test_a_handshake_has_a_time_limit(folder: CertificateFolder) -> None:
    ends = Ends(folder)
    ends.server.deliver(ends.client.take()[:50])
    await asyncio.sleep(9.9)
    assert not ends.server.is_closed
    await asyncio.sleep(0.2)
    assert ends.server.is_closed
    assert "no TLS handshake in 10 s" in ends.failures
    assert ends.server_upper.events == []


async def test_closing_tells_the_peer(folder: CertificateFolder) -> None:
    ends = Ends(folder).shake_hands()
    assert ends.client_upper.transport is not None
    ends.client_upper.transport.write(b"the last words")
    ends.client_upper.transport.close()
    ends.server.deliver(ends.client.take())
    assert bytes(ends.server_upper.data) == b"the last words"
    assert ends.server_upper.events == ["made", "eof"]
    assert ends.server.is_closed
    ends.server.lose()
    assert ends.server_upper.events == ["made", "eof", "lost"]


async def test_altered_bytes_end_the_connection(folder: CertificateFolder) -> None:
    ends = Ends(folder).shake_hands()
    assert ends.client_upper.transport is not None
    ends.client_upper.transport.write(b"pay 10 coins")
    wire = bytearray(ends.client.take())
    wire[-3] ^= 1
    ends.server.deliver(bytes(wire))
    assert ends.server.was_aborted
    assert not ends.server_upper.data


async def test_back_pressure_reaches_the_connection_above(folder: CertificateFolder) -> None:
    ends = Ends(folder).shake_hands()
    ends.server_layer.pause_writing()
    ends.server_layer.resume_writing()
    assert ends.server_upper.events == ["made", "pause", "resume"]
    assert ends.server_upper.transport is not None
    ends.server_upper.transport.pause_reading()
    assert not ends.server.wants_bytes


def frames(sizes: list[int]) -> Iterator[bytes]:
    for number, size in enumerate(sizes):
        body = bytes([number % 251]) * size
        yield encode_command(10, opaque=number, flag=ONEWAY, body_bytes=size) + body


@settings(max_examples=20)
@given(
    sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 20_000), min_size=1, max_size=8),
)
def test_requests_are_served_in_order_however_tls_is_cut(
    folder: CertificateFolder, sizes: list[int], cuts: list[int]
) -> None:
    async def run() -> None:
        got: list[Command] = []
        served = ServedConnection(
            inbox=Inbox(),
            express=lambda connection, data, at, end: at,
            on_request=lambda connection, command: got.append(command),
        )
        ends = Ends(folder, server_upper=served)  # type: ignore[arg-type]
        ends.shake_hands()
        assert ends.client_upper.transport is not None
        for frame in frames(sizes):
            ends.client_upper.transport.write(frame)
        wire, at, turn = ends.client.take(), 0, 0
        while at < len(wire):
            cut = cuts[turn % len(cuts)]
            ends.server.deliver(wire[at : at + cut])
            at, turn = at + cut, turn + 1
        assert [len(command.body) for command in got] == sizes
        assert [command.opaque for command in got] == list(range(len(sizes)))

    asyncio.run(run())


async def test_a_connection_knows_that_it_is_encrypted(folder: CertificateFolder) -> None:
    plain = Connection(on_request=lambda connection, command: None)
    MemoryTransport(plain).connect()
    assert not plain.is_encrypted
    secure = Connection(on_request=lambda connection, command: None)
    Ends(folder, server_upper=secure).shake_hands()  # type: ignore[arg-type]
    assert secure.is_encrypted
