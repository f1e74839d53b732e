"""Outgoing connections: one per address, opened on first use and shared."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final

from rocketpost.codec.codes import OURS, Sender
from rocketpost.codec.command import Command
from rocketpost.errors import ConnectionLost, NotConnected
from rocketpost.transport.connection import Connection, Sign
from rocketpost.transport.inheritance import release_in_child
from rocketpost.transport.requesting import ReadAnswers
from rocketpost.transport.tls_contexts import ClientContext
from rocketpost.transport.tls_layer import CipherInbox, TlsLayer

logger = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 3.0


class Connector:
    """Keeps one open connection per address. Belongs to the event loop.

    Args:
        on_request: Called with requests that a server sends to us.
        on_made: Called with every new connection and its address.
        on_lost: Called when a connection is gone.
        connect_seconds: Time limit for opening a connection.
        sign: Signs our requests, if they need a signature.
        read_answers: Reads plain answers to requests that their sender encoded; see ``Connection``.
        tls: TLS for all connections; plain ones if None.
        sender: The program whose requests these are, if this process speaks for another one.
    """

    def __init__(
        self,
        *,
        on_request: Callable[[Connection, Command], None],
        on_made: Callable[[str, Connection], None] | None = None,
        on_lost: Callable[[str, Connection], None] | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        sign: Sign | None = None,
        read_answers: ReadAnswers | None = None,
        tls: ClientContext | None = None,
        sender: Sender = OURS,
    ) -> None:
        self._on_request = on_request
        self._on_made = on_made
        self._on_lost = on_lost
        self._connect_seconds = connect_seconds
        self._sign = sign
        self._read_answers = read_answers
        self._tls = tls
        self._sender = sender
        self._cipher_inbox = CipherInbox() if tls is not None else None
        self.connections: dict[str, Connection] = {}
        """Connections by address; one may just be closing."""
        self._making: dict[str, asyncio.Task[Connection]] = {}
        self._transports: dict[Connection, asyncio.Transport] = {}
        self._closed = False
        release_in_child(self)

    def descriptors(self) -> list[int]:
        """Return the descriptors of the sockets, which a forked child releases."""
        return [
            transport.get_extra_info("socket").fileno()
            for transport in self._transports.values()
            if not transport.is_closing()
        ]

    def peek(self, address: str) -> Connection | None:
        """Return the open connection to ``address``, if there is one."""
        connection = self.connections.get(address)
        return connection if connection is not None and connection.is_open else None

    async def connect(self, address: str) -> Connection:
        """Return the connection to ``address``; open it if necessary.

        Raises:
            NotConnected: It could not be opened in time.
            ConnectionLost: The client is closed.
        """
        connection = self.peek(address)
        if connection is not None:
            return connection
        if self._closed:
            raise ConnectionLost("the client is closed")
        task = self._making.get(address)
        if task is None:
            task = self._making[address] = asyncio.ensure_future(self._make(address))
            task.add_done_callback(lambda done: self._made(address, done))
        # Shielded: one impatient caller must not cancel the connection that others wait for.
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._closed:
                raise ConnectionLost("the client is closed") from None
            raise

    def drop(self, address: str) -> None:
        """Close the connection to ``address``, if there is one."""
        connection = self.connections.pop(address, None)
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        """Close all connections and return when they are gone."""
        self._closed = True
        for task in list(self._making.values()):
            task.cancel()
        if self._making:
            await asyncio.gather(*self._making.values(), return_exceptions=True)
        connections = list(self.connections.values())
        for connection in connections:
            connection.close()
        if connections:
            waits = [asyncio.ensure_future(each.wait_closed()) for each in connections]
            _, late = await asyncio.wait(waits, timeout=2.0)
            for wait in late:
                wait.cancel()
            for connection in connections:
                connection.abort()

    async def _make(self, address: str) -> Connection:
        connection = Connection(
            on_request=self._on_request,
            on_lost=lambda lost: self._on_lost_connection(address, lost),
            sign=self._sign,
            read_answers=self._read_answers,
        )
        connection.sender = self._sender
        try:
            async with asyncio.timeout(self._connect_seconds):
                transport = await self._open(connection, address)
        except TimeoutError:
            raise NotConnected(
                f"cannot connect to {address} in {self._connect_seconds:g} s"
            ) from None
        except OSError as error:
            raise NotConnected(f"cannot connect to {address}: {reason_of(error)}") from error
        self.connections[address] = connection
        self._transports[connection] = transport
        if self._on_made is not None:
            self._on_made(address, connection)
        return connection

    async def _open(self, connection: Connection, address: str) -> asyncio.Transport:
        """Return the TCP transport of a connection that is open and, with TLS, secure."""
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        if self._tls is None or self._cipher_inbox is None:
            transport, _ = await loop.create_connection(lambda: connection, host, port)
            return transport
        secure: asyncio.Future[None] = loop.create_future()
        layer = TlsLayer(
            self._tls.current(),
            connection,
            inbox=self._cipher_inbox,
            server_side=False,
            server_name=self._tls.config.server_name(host),
            seconds=self._connect_seconds,
            on_secure=lambda _: _settle(secure, None),
            on_failed=lambda _, reason: _settle(secure, OSError(reason)),
        )
        transport, _ = await loop.create_connection(lambda: layer, host, port)
        try:
            await secure
        except BaseException:
            transport.abort()
            raise
        return transport

    def _made(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._making.pop(address, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Read the error here, because every waiter may have given up.
            logger.debug("no connection: address=%s reason=%s", address, error)

    def _on_lost_connection(self, address: str, connection: Connection) -> None:
        if self.connections.get(address) is connection:
            del self.connections[address]
        self._transports.pop(connection, None)
        if self._on_lost is not None:
            self._on_lost(address, connection)


def _settle(future: asyncio.Future[None], error: OSError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def reason_of(error: OSError) -> str:
    """Return the reason of a failed connection in words, such as "connection refused"."""
    number = error.errno
    if number is None or number < 0 or isinstance(error, socket.gaierror | ssl.SSLError):
        return str(error)
    return os.strerror(number).lower()


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port``; an IPv6 host may stand in brackets.

    Raises:
        ConnectionLost: ``address`` has another form.
    """
    host, _, port = address.strip().rpartition(":")
    try:
        number = int(port)
    except ValueError:
        number = -1
    if not host or not 0 < number < 65536:
        raise ConnectionLost(f"{address!r} is not host:port")
    host = host.strip("[]")
    try:
        host.encode("idna")  # look-ups do this, and fail with an error that is no OSError
    except UnicodeError as error:
        raise ConnectionLost(f"{address!r} has no possible host name: {error}") from None
    return host, number
