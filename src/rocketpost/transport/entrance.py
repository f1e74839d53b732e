"""The first bytes of a server's connections: PROXY headers, and the choice of TLS or plain.

A port may serve TLS and plain connections: the first byte decides. A TLS handshake begins with
0x16, and a plain frame with 0x00. Other bytes end the connection, as do plain frames if TLS is
required, and no byte of these is decoded. A PROXY header is required from the networks listed, and
is not understood from anywhere else.

Connections that have sent nothing yet, or are in their handshake, are strangers: each has a time
limit, and if there are too many, the one that has waited longest is closed. An honest peer needs a
few milliseconds, so a thousand silent peers do not keep it out.
"""

from __future__ import annotations

import asyncio
import enum
import ipaddress
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from rocketpost.codec.proxy_protocol import parse_proxy_header
from rocketpost.errors import RemoteProtocolError
from rocketpost.transport.connection import Connection
from rocketpost.transport.host import address_text, parse_address
from rocketpost.transport.tls_layer import HANDSHAKE_SECONDS, CipherInbox, TlsLayer

logger = logging.getLogger(__name__)

STRANGERS_MAX: Final = 1024
"""Most connections of a port that have not finished their handshake."""
_TLS: Final = 0x16
_PLAIN: Final = 0x00

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TlsMode(enum.Enum):
    """The kinds of connections that a port accepts."""

    DISABLED = "disabled"
    """Plain ones."""
    PERMISSIVE = "permissive"
    """Both kinds."""
    ENFORCING = "enforcing"
    """TLS."""


class Certificates(Protocol):
    """The certificates of a server, which may change while it runs."""

    @property
    def server_context(self) -> ssl.SSLContext:
        """The context for the next connection."""
        ...

    def find_user(self, tls: ssl.SSLObject) -> str:
        """Return the user that a peer's certificate stands for; empty if it stands for no user.

        Raises:
            RemoteProtocolError: The certificate stands for no user, but must.
        """
        ...


class EntranceRules:
    """The rules for the first bytes of a port's connections.

    Args:
        mode: The kinds of connections accepted.
        certificates: The certificates; None if TLS is disabled.
        proxies: Networks that must send PROXY headers.
        seconds: Time for the first byte, and then for the handshake.
        certifies_clients: Whether only clients with a certificate get in.
    """

    def __init__(
        self,
        *,
        mode: TlsMode = TlsMode.DISABLED,
        certificates: Certificates | None = None,
        proxies: Sequence[Network] = (),
        seconds: float = HANDSHAKE_SECONDS,
        certifies_clients: bool = False,
    ) -> None:
        assert certificates is not None or mode is TlsMode.DISABLED
        self.mode = mode
        self.certificates = certificates
        self.proxies = tuple(proxies)
        self.seconds = seconds
        self.certifies_clients = certifies_clients

    @property
    def are_needed(self) -> bool:
        """Whether the first bytes of connections have to be looked at."""
        return self.mode is not TlsMode.DISABLED or bool(self.proxies)

    def needs_header(self, host: str) -> bool:
        """Tell whether a peer must send a PROXY header."""
        if not self.proxies or not host:
            return False
        address = ipaddress.ip_address(host.partition("%")[0])
        return any(address in network for network in self.proxies)


class Entrance:
    """The strangers of one port. Belongs to the event loop.

    Args:
        rules: The rules.
        make: Makes the connection above the bytes that follow.
        strangers_max: Most connections that have not finished their handshake.
    """

    def __init__(
        self,
        rules: EntranceRules,
        make: Callable[[], Connection],
        *,
        strangers_max: int = STRANGERS_MAX,
    ) -> None:
        self.rules = rules
        self.make = make
        self._strangers_max = strangers_max
        self._strangers: dict[Stranger, None] = {}
        self.cipher_inbox = CipherInbox()
        """The buffer for ciphertext of all connections of this port."""
        self.refused_count = 0
        """Connections that were closed before they were made."""

    @property
    def count(self) -> int:
        """Number of connections that have not finished their handshake."""
        return len(self._strangers)

    def admit(self) -> Stranger:
        """Return the protocol of a new connection."""
        return Stranger(self)

    def close(self) -> None:
        """Close all strangers."""
        for stranger in list(self._strangers):
            stranger.abort()

    # Called by strangers.

    def add(self, stranger: Stranger) -> None:
        """Count a new connection; close the oldest if there are too many."""
        self._strangers[stranger] = None
        if len(self._strangers) > self._strangers_max:
            next(iter(self._strangers)).refuse("too many connections wait for their handshake")

    def remove(self, stranger: Stranger) -> None:
        """Forget a connection that has been made or is gone."""
        self._strangers.pop(stranger, None)

    def note_refusal(self, peer: str, reason: str) -> None:
        """Count and log a connection that is closed before it is made."""
        self.refused_count += 1
        logger.warning("connection refused: peer=%s reason=%s", peer, reason)


class Stranger(asyncio.Protocol):
    """One connection until its kind is known and its handshake is done."""

    def __init__(self, entrance: Entrance) -> None:
        self._entrance = entrance
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._peer = ("", 0)
        self._source: tuple[str, int] | None = None
        self._needs_header = False
        self._deadline: asyncio.TimerHandle | None = None

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first bytes."""
        self._transport = cast(asyncio.Transport, transport)
        self._peer = parse_address(transport.get_extra_info("peername"))
        rules = self._entrance.rules
        self._needs_header = rules.needs_header(self._peer[0])
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(
            rules.seconds, self.refuse, f"it sent nothing in {rules.seconds:g} s"
        )
        self._entrance.add(self)

    def data_received(self, data: bytes) -> None:
        """Look at the first bytes."""
        data = self._received + data if self._received else data
        try:
            data = self._take_header(data)
        except RemoteProtocolError as error:
            self.refuse(str(error))
            return
        if not data:
            return
        mode = self._entrance.rules.mode
        if data[0] == _TLS and mode is not TlsMode.DISABLED:
            self._begin_tls(data)
        elif data[0] == _TLS:
            self.refuse("TLS is disabled here (tls.server.mode)")
        elif mode is TlsMode.ENFORCING:
            self.refuse("it does not use TLS, which is required here (tls.server.mode)")
        elif data[0] != _PLAIN:
            self.refuse("its first bytes are neither TLS nor a frame")
        else:
            self._begin_plain(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._leave()

    # Called by the entrance.

    def refuse(self, reason: str) -> None:
        """Close the connection, and log why."""
        if self._transport is not None:
            self._entrance.note_refusal(address_text(self._peer), reason)
            self.abort()

    def abort(self) -> None:
        """Close the connection."""
        transport = self._transport
        self._leave()
        if transport is not None:
            transport.abort()

    def _leave(self) -> None:
        self._transport = None
        self._received = b""
        if self._deadline is not None:
            self._deadline.cancel()
        self._entrance.remove(self)

    def _take_header(self, data: bytes) -> bytes:
        """Return the bytes after a PROXY header, or nothing if it is incomplete."""
        if not self._needs_header:
            return data
        header = parse_proxy_header(data)
        if header is None:
            self._received = data
            return b""
        self._needs_header = False
        self._received = b""
        self._source = header.source
        return data[header.size :]

    def _begin_plain(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        self._leave()
        connection = self._entrance.make()
        connection.source = self._source
        replace_protocol(transport, connection)
        connection.connection_made(transport)
        deliver(connection, data)

    def _begin_tls(self, data: bytes) -> None:
        transport, entrance = self._transport, self._entrance
        assert transport is not None
        certificates = entrance.rules.certificates
        assert certificates is not None
        if self._deadline is not None:
            self._deadline.cancel()  # the handshake has a time limit of its own
        connection = entrance.make()
        connection.source = self._source
        layer = TlsLayer(
            certificates.server_context,
            connection,
            inbox=entrance.cipher_inbox,
            server_side=True,
            seconds=entrance.rules.seconds,
            on_secure=lambda layer: self._greet(layer, connection, certificates),
            on_failed=self._fail,
        )
        replace_protocol(transport, layer)
        layer.connection_made(transport)
        layer.feed(data)

    def _greet(self, layer: TlsLayer, connection: Connection, certificates: Certificates) -> None:
        self._leave()
        try:
            connection.certificate_user = certificates.find_user(layer.tls)
        except RemoteProtocolError as error:
            self._entrance.note_refusal(address_text(self._peer), str(error))
            layer.refuse()

    def _fail(self, layer: TlsLayer, reason: str) -> None:
        if self._transport is not None:  # else it was refused before
            self._entrance.note_refusal(address_text(self._peer), reason)
            self._leave()


def replace_protocol(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    """Make a transport pass its next bytes to another protocol."""
    transport.pause_reading()  # uvloop decides here whether a protocol has a buffer of its own
    transport.set_protocol(protocol)
    transport.resume_reading()


def deliver(connection: Connection, data: bytes) -> None:
    """Pass bytes to a connection as if it had read them itself."""
    if not isinstance(connection, asyncio.BufferedProtocol):
        connection.data_received(data)
        return
    at = 0
    while at < len(data) and connection.is_open:
        room = cast(memoryview, connection.get_buffer(-1))
        count = min(len(room), len(data) - at)
        room[:count] = data[at : at + count]
        connection.buffer_updated(count)
        at += count
