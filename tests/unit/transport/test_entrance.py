from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.command import ONEWAY, encode_command
from rocketpost.errors import RemoteProtocolError
from rocketpost.testing.secure.certificates import CertificateFolder
from rocketpost.testing.secure.memory_transport import MemoryTransport, exchange
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.transport.connection import Connection
from rocketpost.transport.entrance import Entrance, EntranceRules, Network, TlsMode
from rocketpost.transport.tls_contexts import ClientTls, ServerTls
from rocketpost.transport.tls_layer import CipherInbox, TlsLayer

FRAME = encode_command(10, opaque=7, flag=ONEWAY, body_bytes=5) + b"hello"
LINE = b"PROXY TCP4 192.0.2.9 10.0.0.1 4711 10911\r\n"


class Certificates:
    """A certificate whose clients are all the same user."""

    def __init__(self, folder: CertificateFolder) -> None:
        self.server_context: ssl.SSLContext = ServerTls(keys=folder.issue()).make_context_blocking()
        self.user = "root"

    def find_user(self, tls: ssl.SSLObject) -> str:
        if not self.user:
            raise RemoteProtocolError("its certificate stands for several users")
        return self.user


class Port:
    """A port without a socket, and the requests that were served there."""

    def __init__(
        self,
        folder: CertificateFolder,
        mode: TlsMode = TlsMode.PERMISSIVE,
        *,
        proxies: Sequence[Network] = (),
        strangers_max: int = 4,
    ) -> None:
        self.folder = folder
        self.certificates = Certificates(folder)
        self.bodies: list[bytes] = []
        self.made: list[Connection] = []
        rules = EntranceRules(mode=mode, certificates=self.certificates, proxies=proxies)
        self.entrance = Entrance(rules, self._make, strangers_max=strangers_max)

    def _make(self) -> Connection:
        return Connection(
            on_request=lambda connection, command: self.bodies.append(command.body),
            on_made=self.made.append,
        )

    def accept(self, host: str = "10.0.0.7") -> MemoryTransport:
        return MemoryTransport(self.entrance.admit(), peer=(host, 5555)).connect()

    def secure(self, server: MemoryTransport, front: bytes = b"") -> MemoryTransport:
        """Let a client shake hands and send a frame."""
        connection = Connection(on_request=lambda connection, command: None)
        layer = TlsLayer(
            ClientTls(trusted=self.folder.root).make_context_blocking(),
            connection,
            inbox=CipherInbox(4096),
            server_side=False,
            server_name="localhost",
            on_secure=lambda layer: None,
            on_failed=lambda layer, reason: None,
        )
        client = MemoryTransport(layer).connect()
        client.written[:0] = front
        exchange(client, server)
        connection.send_at_once([FRAME])
        exchange(client, server)
        return client


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> CertificateFolder:
    return CertificateFolder(tmp_path_factory.mktemp("certificates"))


async def test_the_first_byte_decides(folder: CertificateFolder) -> None:
    port = Port(folder)
    port.accept().deliver(FRAME)
    port.secure(port.accept())
    assert port.bodies == [b"hello", b"hello"]
    assert [each.is_encrypted for each in port.made] == [False, True]
    assert [each.certificate_user for each in port.made] == ["", "root"]
    assert port.entrance.count == 0


async def test_enforcing_decodes_no_plain_byte(folder: CertificateFolder) -> None:
    port = Port(folder, TlsMode.ENFORCING)
    for first in range(256):
        if first != 0x16:
            plain = port.accept()
            plain.deliver(bytes([first]) + FRAME[1:])
            assert plain.was_aborted
            assert plain.take() == b""
    assert port.made == port.bodies == []
    assert port.entrance.refused_count == 255
    port.secure(port.accept())
    assert port.bodies == [b"hello"]


async def test_other_first_bytes_are_refused(folder: CertificateFolder) -> None:
    port = Port(folder)
    for first in (b"GET / HTTP/1.1\r\n", LINE, b"\x80\x00"):
        stranger = port.accept()
        stranger.deliver(first)
        assert stranger.was_aborted
    assert port.made == []


async def test_tls_is_refused_where_it_is_disabled(folder: CertificateFolder) -> None:
    networks = (ipaddress.ip_network("10.9.0.0/16"),)
    port = Port(folder, TlsMode.DISABLED, proxies=networks)
    stranger = port.accept()
    stranger.deliver(b"\x16\x03\x01\x00\x10")
    assert stranger.was_aborted


async def test_a_header_is_required_from_listed_networks_alone(folder: CertificateFolder) -> None:
    networks = (ipaddress.ip_network("10.9.0.0/16"), ipaddress.ip_network("2001:db8::/32"))
    port = Port(folder, proxies=networks)
    for host in ("10.9.0.1", "2001:db8::5"):
        balancer = port.accept(host)
        for at in range(len(LINE)):  # in pieces
            balancer.deliver(LINE[at : at + 1])
        balancer.deliver(FRAME)
    port.secure(port.accept("10.9.0.2"), LINE)
    assert [each.peer for each in port.made] == 3 * [("192.0.2.9", 4711)]
    assert port.bodies == 3 * [b"hello"]
    for host, data in (("10.9.0.1", FRAME), ("10.8.0.1", LINE + FRAME), ("::1", LINE + FRAME)):
        stranger = port.accept(host)
        stranger.deliver(data)
        assert stranger.was_aborted
    port.accept("10.8.0.1").deliver(FRAME)
    assert port.made[-1].peer == ("10.8.0.1", 5555)


async def test_a_header_without_an_address_keeps_that_of_the_socket(
    folder: CertificateFolder,
) -> None:
    port = Port(folder, proxies=(ipaddress.ip_network("10.0.0.0/8"),))
    port.accept().deliver(b"PROXY UNKNOWN\r\n" + FRAME)
    assert port.made[0].peer == ("10.0.0.7", 5555)


@in_virtual_time
async def test_silence_and_half_handshakes_end_in_time(folder: CertificateFolder) -> None:
    port = Port(folder)
    silent, half = port.accept(), port.accept()
    await asyncio.sleep(9.9)
    half.deliver(b"\x16\x03\x01\x02\x00\x01")
    await asyncio.sleep(0.2)
    assert silent.was_aborted
    assert not half.is_closed
    await asyncio.sleep(10)
    assert half.is_closed
    assert port.entrance.count == 0


async def test_many_strangers_do_not_keep_an_honest_peer_out(folder: CertificateFolder) -> None:
    port = Port(folder, strangers_max=16)
    strangers = [port.accept() for _ in range(5000)]
    for stranger in strangers[::2]:
        if not stranger.is_closed:
            stranger.deliver(b"\x16\x03\x01\x02\x00\x01")
    assert port.entrance.count == 16
    assert sum(each.was_aborted for each in strangers) == 5000 - 16
    port.secure(port.accept())
    assert port.bodies == [b"hello"]


async def test_a_certificate_of_several_users_is_refused(folder: CertificateFolder) -> None:
    port = Port(folder)
    port.certificates.user = ""
    server = port.accept()
    port.secure(server)
    assert server.was_aborted
    server.lose()
    assert port.made == port.bodies == []


async def test_a_swapped_certificate_serves_the_next_connection(folder: CertificateFolder) -> None:
    port = Port(folder)
    first = port.accept()
    client = port.secure(first)
    port.certificates.server_context = ServerTls(keys=folder.issue()).make_context_blocking()
    second = port.secure(port.accept())
    serials = [each.protocol.tls.getpeercert()["serialNumber"] for each in (client, second)]
    assert serials[0] != serials[1]
    client.protocol.upper.send_at_once([FRAME])
    exchange(client, first)
    assert port.bodies == 3 * [b"hello"]


async def test_closing_the_port_closes_strangers(folder: CertificateFolder) -> None:
    port = Port(folder)
    silent, half = port.accept(), port.accept()
    half.deliver(b"\x16\x03")
    port.entrance.close()
    assert silent.was_aborted
    assert half.was_aborted


@given(st.lists(st.binary(min_size=1, max_size=400), max_size=5), st.booleans())
def test_any_first_bytes_are_served_or_refused(
    folder: CertificateFolder, parts: list[bytes], through_proxy: bool
) -> None:
    async def run() -> None:
        proxies = (ipaddress.ip_network("10.0.0.0/8"),) if through_proxy else ()
        port = Port(folder, proxies=proxies)
        stranger = port.accept()
        for part in parts:
            if not stranger.is_closed:
                stranger.deliver(part)
        stranger.lose()
        assert port.entrance.count == 0

    asyncio.run(run())
