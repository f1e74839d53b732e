"""Listening sockets: accept connections, close the idle ones."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Callable
from typing import Final

from rocketpost.codec.command import Command
from rocketpost.errors import ConfigError
from rocketpost.transport.connection import Connection
from rocketpost.transport.entrance import STRANGERS_MAX, Entrance, EntranceRules, Stranger
from rocketpost.transport.express import Express
from rocketpost.transport.host import memory_bytes
from rocketpost.transport.memory_link import link
from rocketpost.transport.room import Room
from rocketpost.transport.served_connection import Inbox, ServedConnection

logger = logging.getLogger(__name__)

IDLE_SECONDS: Final = 120.0
BYTES_MIN: Final = 256 * 1024 * 1024
"""Minimum of the bounds on incomplete frames and on unread bytes (an eighth of the memory each)."""
FILES_KEPT: Final = 768
"""Descriptors reserved for files, unless half of the limit is less."""
_BACKLOG: Final = 1024


class Listener:
    """One listening address and its connections. Belongs to the event loop.

    Args:
        on_request: Called with every request on any connection.
        on_lost: Called when a connection is gone.
        idle_seconds: A connection without traffic for this long is closed.
        room: Limits of all connections together, shared with other listeners of the process; own
            limits by default.
        express: Takes requests of any connection before they are decoded.
    """

    def __init__(
        self,
        *,
        on_request: Callable[[Connection, Command], None],
        on_lost: Callable[[Connection], None] | None = None,
        idle_seconds: float = IDLE_SECONDS,
        room: Room | None = None,
        express: Express[Connection] | None = None,
    ) -> None:
        self._express = express
        self._inbox = Inbox() if express is not None else None
        self._on_request = on_request
        self._on_lost = on_lost
        self._idle_seconds = idle_seconds
        self._room = room or room_of_process()
        self._entrance: Entrance | None = None
        self._server: asyncio.Server | None = None
        self._scan: asyncio.TimerHandle | None = None
        self.connections: set[Connection] = set()

    @property
    def port(self) -> int:
        """The bound port; differs from the requested one if that was 0."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def use_entrance(self, rules: EntranceRules) -> None:
        """Serve TLS and PROXY headers by rules; only called before the port is bound."""
        assert self._server is None
        strangers_max = min(STRANGERS_MAX, max(self._room.connections_max // 4, 1))
        if rules.are_needed:
            self._entrance = Entrance(rules, self._make, strangers_max=strangers_max)

    def note_users(self, are_known: bool) -> None:
        """Note whether peers log in; then those that have not are closed first to make room."""
        self._room.knows_users = are_known

    @property
    def stranger_count(self) -> int:
        """Number of connections that have not finished their handshake."""
        return self._entrance.count if self._entrance is not None else 0

    async def start(self, host: str, port: int) -> None:
        """Bind and accept.

        Raises:
            ConfigError: The address cannot be bound.
        """
        await self.bind(host, port)
        await self.accept()

    async def bind(self, host: str, port: int) -> None:
        """Bind the address, so that :attr:`port` is known, without accepting connections yet.

        A port that the kernel chooses is not shared meanwhile: it gives a socket that may share its
        address, and does not listen yet, the same port as another one.

        Raises:
            ConfigError: The address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._admit if self._entrance is not None else self._make,
                host or None,
                port,
                backlog=_BACKLOG,
                reuse_address=port != 0,
                start_serving=False,
            )
        except OSError as error:
            reason = bind_problem(error)
            raise ConfigError(f"cannot listen on {host or '*'}:{port}: {reason}") from error

    async def accept(self) -> None:
        """Start accepting connections."""
        assert self._server is not None
        await self._server.start_serving()
        for each in self._server.sockets:  # a successor may bind while old connections linger
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._schedule_scan()

    async def stop(self) -> None:
        """Stop accepting, close all connections and return when they are gone."""
        if self._scan is not None:
            self._scan.cancel()
            self._scan = None
        if self._server is not None:
            self._server.close()
        if self._entrance is not None:
            self._entrance.close()
        connections = list(self.connections)
        for connection in connections:
            connection.close()
        if connections:
            waits = [asyncio.ensure_future(each.wait_closed()) for each in connections]
            _, late = await asyncio.wait(waits, timeout=2.0)
            for wait in late:
                wait.cancel()
            for connection in list(self.connections):
                connection.abort()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def link(
        self,
        *,
        client: tuple[str, int],
        on_request: Callable[[Connection, Command], None],
        sees: Callable[[Command], None] = lambda command: None,
    ) -> Connection:
        """Connect a part of this process, and return its end of the connection.

        Its requests are served like those of other connections, but need no login.

        Args:
            client: The address for which that part sends requests.
            on_request: Called with requests of this server.
            sees: Called with every request before it is served.
        """

        def serve(connection: Connection, command: Command) -> None:
            sees(command)
            self._on_request(connection, command)

        return link(
            on_request=serve,
            on_lost=self._on_lost or _nobody,
            room=self._room,
            on_server_request=on_request,
            client=client,
            server=("127.0.0.1", self.port),
            express=self._express,
        )

    def _admit(self) -> Stranger:
        assert self._entrance is not None
        return self._entrance.admit()

    def _make(self) -> Connection:
        if self._express is None or self._inbox is None:
            return Connection(
                on_request=self._on_request,
                on_lost=self._lost,
                on_made=self._made,
                room=self._room,
            )
        return ServedConnection(
            inbox=self._inbox,
            express=self._express,
            on_request=self._on_request,
            on_lost=self._lost,
            on_made=self._made,
            room=self._room,
        )

    def _made(self, connection: Connection) -> None:
        self.connections.add(connection)
        if not self._room.enter(connection):
            logger.warning(
                "connection refused: peer=%s reason=%s are open already",
                connection.peer_text,
                self._room.connections_max,
            )
            connection.abort()

    def _lost(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._room.leave(connection)
        if self._on_lost is not None:
            self._on_lost(connection)

    def _schedule_scan(self) -> None:
        loop = asyncio.get_running_loop()
        self._scan = loop.call_later(self._idle_seconds / 4, self._close_idle)

    def _close_idle(self) -> None:
        limit = asyncio.get_running_loop().time() - self._idle_seconds
        for connection in list(self.connections):
            if connection.last_active < limit:
                if connection.is_open:
                    logger.info("idle connection closed: peer=%s", connection.peer_text)
                    connection.close()
                else:  # closing since the last scan, but the peer reads nothing
                    connection.abort()
        self._schedule_scan()


def _nobody(connection: Connection) -> None:
    """Ignore a lost connection."""


def room_of_process(*, unwritten_bytes_max: int = 0, sharers: int = 1) -> Room:
    """Return the limits of connections, derived from those of this process and its machine.

    Connections may use at most seven eighths of the open files allowed, or less under a low limit,
    so that files can always be opened.

    Args:
        unwritten_bytes_max: Bytes that may wait for all peers; 0 for an eighth of the memory.
        sharers: Number of servers among which that eighth is divided.
    """
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    bytes_max = max(memory_bytes() // 8 // sharers, BYTES_MIN)
    return Room(
        connections_max=_connections_max(files_max) if files_max > 0 else 1_000_000,
        partial_bytes_max=bytes_max,
        unwritten_bytes_max=unwritten_bytes_max or bytes_max,
    )


def _connections_max(files_max: int) -> int:
    """Return the maximum of connections; queues and segments need the other descriptors."""
    kept = max(files_max // 8, min(FILES_KEPT, files_max // 2))
    return max(files_max - kept, 16)


def bind_problem(error: OSError, *, port_key: str = "listenPort") -> str:
    """Explain why an address cannot be bound, and what to do about it.

    Args:
        error: The error of the attempt.
        port_key: The setting that names the port.
    """
    if error.errno == errno.EADDRINUSE:
        return f"it is in use; is another server running there? Set {port_key} to a free port"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return "this machine does not have that address; set bindAddress to one that it has"
    if error.errno == errno.EACCES:
        return f"ports below 1024 need privileges; set {port_key} to a higher one"
    return error.strerror or str(error)
