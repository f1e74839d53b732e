"""The front of a gRPC port that serves TLS and plain connections.

A port of the gRPC library serves one kind. So the front listens, looks at the first byte of each
connection, and passes all bytes on to one of two ports of the library that only this process knows.
A TLS handshake begins with 0x16, and a plain connection with the ``P`` of HTTP/2's preface; nothing
else is let in. The library does TLS itself.

The library sees the front as its peer. The front knows the address of the real peer.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import sys
from collections.abc import Callable
from typing import Final, cast

from rocketpost.errors import ConfigError
from rocketpost.transport.entrance import STRANGERS_MAX
from rocketpost.transport.host import address_text, parse_address
from rocketpost.transport.listener import bind_problem
from rocketpost.transport.tls_layer import HANDSHAKE_SECONDS

logger = logging.getLogger(__name__)

_TLS: Final = 0x16
_PLAIN: Final = ord("P")
_HAS_ABSTRACT_NAMES: Final = sys.platform == "linux"
"""Whether sockets can have names outside of the file system."""
_BACKLOG: Final = 1024


class InnerPort:
    """The name of a port of the library that the front alone connects to."""

    def __init__(self) -> None:
        self._name = f"rocketpost-{secrets.token_hex(16)}"
        self.bound = 0
        """The bound port, where sockets have no names."""

    @property
    def target(self) -> str:
        """The name for the library to listen on."""
        return f"unix-abstract:{self._name}" if _HAS_ABSTRACT_NAMES else "127.0.0.1:0"

    async def connect(self) -> tuple[socket.socket, str]:
        """Return a connected socket, and the name that the library has for its peer.

        Raises:
            OSError: The library accepts no more connections.
        """
        family = socket.AF_UNIX if _HAS_ABSTRACT_NAMES else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if _HAS_ABSTRACT_NAMES:
                sock.bind("")  # the kernel chooses an unused name
                sock.connect(f"\0{self._name}")
                return sock, "unix-abstract:" + sock.getsockname()[1:].decode()
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", self.bound))
            return sock, f"ipv4:127.0.0.1:{sock.getsockname()[1]}"
        except BaseException:
            sock.close()
            raise


class Front:
    """Passes connections on to the two ports of the library. Belongs to the event loop.

    Args:
        connections_max: Most connections at a time.
        seconds: Time for the first byte of a connection.
    """

    def __init__(self, *, connections_max: int, seconds: float = HANDSHAKE_SECONDS) -> None:
        self.plain = InnerPort()
        self.secure = InnerPort()
        self.seconds = seconds
        self.port = 0
        """The bound port."""
        self._connections_max = connections_max
        self._guests: set[Guest] = set()
        self._strangers: dict[Guest, None] = {}
        self._peers: dict[str, tuple[str, int]] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def peer_of(self, name: str) -> tuple[str, int] | None:
        """Return the real peer of a connection that the front made under this name, if it did."""
        return self._peers.get(name)

    async def start(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            ConfigError: The address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Guest(self), host, port, backlog=_BACKLOG, reuse_port=False
            )
        except OSError as error:
            why = bind_problem(error, port_key="grpcServerPort")
            raise ConfigError(f"cannot listen on {host}:{port} for gRPC: {why}") from None
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_listening(self) -> None:
        """Accept no more connections."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        """Close all connections."""
        self.stop_listening()
        for guest in list(self._guests):
            guest.abort()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # Called by guests.

    def add(self, guest: Guest) -> None:
        """Count a new connection; close those that are too many."""
        if len(self._guests) >= self._connections_max:
            guest.refuse("too many connections")
            return
        self._guests.add(guest)
        self._strangers[guest] = None
        if len(self._strangers) > STRANGERS_MAX:
            next(iter(self._strangers)).refuse("too many connections have sent nothing yet")

    def note_first_byte(self, guest: Guest) -> None:
        """Count a connection among the strangers no longer."""
        self._strangers.pop(guest, None)

    def remove(self, guest: Guest) -> None:
        """Forget a connection that is lost."""
        self._guests.discard(guest)
        self._strangers.pop(guest, None)

    def introduce(self, guest: Guest, port: InnerPort) -> None:
        """Connect a guest to a port of the library."""
        task = asyncio.create_task(self._introduce(guest, port), name="connection to gRPC")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _introduce(self, guest: Guest, port: InnerPort) -> None:
        loop = asyncio.get_running_loop()
        connect = loop.create_unix_connection if _HAS_ABSTRACT_NAMES else loop.create_connection
        try:
            sock, name = await port.connect()
            self._peers[name] = guest.peer
            inner = End(lambda: self._peers.pop(name, None))
            inner.other = guest  # the library may speak at once
            await connect(lambda: inner, sock=sock)
        except OSError as error:
            guest.refuse(f"the gRPC library does not accept it: {error}")
            return
        guest.join(inner)


class End(asyncio.Protocol):
    """One end of a passed-on connection: what it receives, the other end sends."""

    def __init__(self, on_lost: Callable[[], object]) -> None:
        self.other: End | None = None
        self.transport: asyncio.Transport | None = None
        self._on_lost = on_lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to send."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Pass bytes on."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        """Pass on that no more bytes follow; those of the other end still do."""
        if self.other is None or self.other.transport is None:
            return False
        self.other.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        """Make the other end wait until this peer has read."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Let the other end continue."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other end too."""
        self._on_lost()
        self.transport = None
        other, self.other = self.other, None
        if other is not None and other.transport is not None:
            other.transport.close()


class Guest(End):
    """A connection from outside."""

    def __init__(self, front: Front) -> None:
        super().__init__(self._forget)
        self.peer = ("", 0)
        """Its address."""
        self._front = front
        self._first = b""
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first byte."""
        super().connection_made(transport)
        self.peer = parse_address(transport.get_extra_info("peername"))
        seconds = self._front.seconds
        self._deadline = asyncio.get_running_loop().call_later(
            seconds, self.refuse, f"it sent nothing in {seconds:g} s"
        )
        self._front.add(self)

    def data_received(self, data: bytes) -> None:
        """Look at the first byte; pass on everything."""
        if self.other is not None:
            super().data_received(data)
            return
        assert self.transport is not None
        self._no_deadline()
        self._front.note_first_byte(self)
        self._first += data
        ports = {_TLS: self._front.secure, _PLAIN: self._front.plain}
        port = ports.get(self._first[0])
        if port is None:
            self.refuse("it speaks neither TLS nor HTTP/2")
            return
        self.transport.pause_reading()
        self._front.introduce(self, port)

    def join(self, inner: End) -> None:
        """Pass on the bytes received so far, and all others."""
        if self.transport is None or self.transport.is_closing():
            assert inner.transport is not None
            inner.transport.abort()
            return
        self.other = inner
        super().data_received(self._first)
        self._first = b""
        self.transport.resume_reading()

    def refuse(self, reason: str) -> None:
        """Close the connection before it is made."""
        logger.warning("connection refused: peer=%s reason=%s", address_text(self.peer), reason)
        self.abort()

    def abort(self) -> None:
        """Close the connection at once."""
        self._no_deadline()
        if self.transport is not None:
            self.transport.abort()

    def _no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _forget(self) -> None:
        self._no_deadline()
        self._front.remove(self)
