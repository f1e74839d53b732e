"""Connections between two parts of one process: bytes are passed in memory, without a socket.

Both ends are ordinary connections, so requests, answers, back-pressure and the loss of the other
end work as over TCP. Bytes that are written in one loop iteration arrive together in the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from rocketpost.codec.command import Command
from rocketpost.transport.connection import Connection
from rocketpost.transport.express import Express, offer
from rocketpost.transport.requesting import Buffer
from rocketpost.transport.room import Room
from rocketpost.transport.turns import BUDGET_SECONDS

HIGH_BYTES: Final = 64 * 1024
"""Undelivered bytes above which an end must stop writing."""

Address = tuple[str, int]


class MemoryTransport(asyncio.Transport):
    """One end of a link. Belongs to the event loop.

    Args:
        protocol: The connection at this end.
        local: The address that this end shows as its own.
        peer: The address that this end shows as the other's.
    """

    def __init__(self, protocol: Connection, *, local: Address, peer: Address) -> None:
        super().__init__({"peername": peer, "sockname": local})
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._high = HIGH_BYTES
        self._inbox: list[bytes] = []
        self._inbox_bytes = 0
        self._is_reading = True
        self._is_scheduled = False
        self._is_closing = False
        self._is_paused = False
        self.other: MemoryTransport | None = None
        """The other end; None once either end is closed."""

    def is_closing(self) -> bool:
        """Tell whether this end is closed, or about to be."""
        return self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the undelivered bytes above which this end must stop writing."""
        self._high = HIGH_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the other end has not received yet."""
        return 0 if self.other is None else self.other._inbox_bytes

    def write(self, data: Buffer) -> None:
        """Hand bytes to the other end."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Hand bytes to the other end; they are copied, since they may be views of a file."""
        other = self.other
        if other is None or self._is_closing:
            return
        other._take(b"".join(list_of_data))
        if other._inbox_bytes > self._high and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def pause_reading(self) -> None:
        """Keep bytes back until :meth:`resume_reading`."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Deliver bytes again."""
        self._is_reading = True
        self._schedule()

    def close(self) -> None:
        """Close both ends once the other has received everything."""
        if self._is_closing:
            return
        self._is_closing = True
        if self.other is None or not self.other._inbox:
            self._loop.call_soon(self._end)

    def abort(self) -> None:
        """Close both ends at once."""
        self._is_closing = True
        self._loop.call_soon(self._end)

    def _take(self, data: bytes) -> None:
        self._inbox.append(data)
        self._inbox_bytes += len(data)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled and self._inbox and self._is_reading:
            self._is_scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._is_scheduled = False
        if not self._is_reading or not self._inbox or self._is_closing:
            return
        data = self._inbox[0] if len(self._inbox) == 1 else b"".join(self._inbox)
        self._inbox.clear()
        self._inbox_bytes = 0
        self._protocol.data_received(data)
        other = self.other
        if other is None:
            return
        if other._is_paused:
            other._is_paused = False
            other._protocol.resume_writing()
        if other._is_closing:
            other._end()

    def _end(self) -> None:
        """Notify both connections that they are lost."""
        other, self.other = self.other, None
        if other is None:
            return
        other.other = None
        for end in (self, other):
            end._is_closing = True
            end._inbox.clear()
            end._inbox_bytes = 0
            end._protocol.connection_lost(None)


class LinkedConnection(Connection):
    """The server's end of a link, whose requests may be taken before they are decoded.

    Belongs to the event loop.

    Args:
        express: Takes requests before they are decoded; None if all of them are.
        on_request: Called with every other request of the client.
        on_lost: Called when the connection is gone and none of its requests is left to serve.
        room: The limits shared with other connections.
    """

    def __init__(
        self,
        *,
        express: Express[Connection] | None,
        on_request: Callable[[Connection, Command], None],
        on_lost: Callable[[Connection], None],
        room: Room,
    ) -> None:
        super().__init__(on_request=on_request, on_lost=on_lost, room=room)
        self._express = express

    def data_received(self, data: bytes) -> None:
        """Take or serve the requests in the bytes."""
        if self._express is None or self._decoder.held:
            super().data_received(data)
            return
        self.last_active = self.heard_at = self._loop.time()
        offer(self, self._express, data, 0, len(data), BUDGET_SECONDS)
        if self._unanswered > self._pending_max:
            self._regulate()


def link(
    *,
    on_request: Callable[[Connection, Command], None],
    on_lost: Callable[[Connection], None],
    room: Room,
    on_server_request: Callable[[Connection, Command], None],
    client: Address,
    server: Address,
    express: Express[Connection] | None = None,
) -> Connection:
    """Connect to a server in this process; return the client's end.

    Args:
        on_request: The server's function for requests of the client.
        on_lost: The server's function for a lost connection.
        room: The limits of the server's connections.
        on_server_request: Called with requests that the server sends to the client.
        client: The client's address, as the server sees it.
        server: The server's address, as the client sees it.
        express: Takes requests of the client before they are decoded.
    """
    serving = LinkedConnection(express=express, on_request=on_request, on_lost=on_lost, room=room)
    serving.is_trusted = True
    calling = Connection(on_request=on_server_request)
    server_end = MemoryTransport(serving, local=server, peer=client)
    client_end = MemoryTransport(calling, local=client, peer=server)
    server_end.other, client_end.other = client_end, server_end
    serving.connection_made(server_end)
    calling.connection_made(client_end)
    return calling
