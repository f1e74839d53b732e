"""Streams of the simulated network as sockets, for code that reads and writes them itself."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from rocketpost.testing.sim.machine import Process, current_process
from rocketpost.testing.sim.streams import Address, End, StreamNetwork

_FIRST_NUMBER: Final = 1_000_000
_USER_TIMEOUT: Final = getattr(socket, "TCP_USER_TIMEOUT", -1)


class _Watched:
    """A socket of which the loop says when it can be read or written."""

    def __init__(self, network: StreamNetwork) -> None:
        process = current_process()
        assert process is not None
        self.process: Process = process
        self.context = contextvars.copy_context()
        self.family = socket.AF_INET
        self.network = network
        self.number = _FIRST_NUMBER + len(network.sockets) + network.make_port()
        network.sockets[self.number] = self
        self._on_read: Callable[[], None] | None = None
        self._is_planned = False

    def fileno(self) -> int:
        """Return its number."""
        return self.number

    def getsockopt(self, level: int, name: int, size: int = 0) -> bytes:
        """Return the name of its method of congestion control, the only option asked for."""
        return b"reno"

    def setblocking(self, flag: bool) -> None:
        """Do nothing: it never blocks."""

    def watch_reads(self, callback: Callable[[], None] | None) -> bool:
        """Call back while there is something to read; None to stop. Returns whether it did."""
        before, self._on_read = self._on_read, callback
        self.plan()
        return before is not None

    @property
    def is_readable(self) -> bool:
        """Whether there is something to read."""
        raise NotImplementedError

    def plan(self) -> None:
        """Have the callback called soon, if there is something to read."""
        if self._on_read is not None and self.is_readable and not self._is_planned:
            self._is_planned = True
            self.network.loop.call_soon(self._call, context=self.context)

    def _call(self) -> None:
        self._is_planned = False
        if self._on_read is not None and self.is_readable:
            self._on_read()
            self.plan()


class SimulatedSocket(_Watched):
    """One end of a stream as a socket that never blocks."""

    def __init__(self, network: StreamNetwork, end: End | None = None) -> None:
        super().__init__(network)
        self._end: End | None = None
        self._error: OSError | None = None
        self._give_up_seconds: float | None = None
        self._on_write: Callable[[], None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        if end is not None:
            self._use(end)

    def setsockopt(self, level: int, name: int, value: Any) -> None:
        """Honour the time after which a sender gives up; other options have no effect here."""
        if level == socket.IPPROTO_TCP and name == _USER_TIMEOUT:
            self._give_up_seconds = value / 1000
            if self._end is not None:
                self._end.give_up_seconds = self._give_up_seconds

    def getsockname(self) -> Address:
        """Return its own address."""
        return self._connected().local

    def getpeername(self) -> Address:
        """Return the address of the other end."""
        return self._connected().peer

    async def connect_later(self, address: Address) -> None:
        """Connect."""
        self._use(await self.network.connect(address))

    async def receive_later(self, size: int) -> bytes:
        """Read when there is something to read."""
        while not self.is_readable:
            waiter = self.network.loop.create_future()
            self._waiters.append(waiter)
            await waiter
        return self.recv(size)

    @property
    def is_readable(self) -> bool:
        """Whether there are bytes, an end or an error to read."""
        end = self._end
        return end is not None and bool(end.unread or end.is_ended or not end.is_open)

    def recv(self, size: int) -> bytes:
        """Read bytes; empty at the end of the stream."""
        end = self._connected()
        if end.unread:
            return end.read(size)
        if self._error is not None:
            raise self._error
        if end.is_ended or not end.is_open:
            return b""
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def recv_into(self, buffer: Any) -> int:
        """Read bytes into a buffer; returns how many."""
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def send(self, data: Any, flags: int = 0) -> int:
        """Send as many bytes as there is room for; returns how many."""
        return self.sendmsg([data])

    def sendmsg(self, buffers: Iterable[Any]) -> int:
        """Send as many bytes of buffers as there is room for; returns how many."""
        end = self._connected()
        if not end.is_open:
            raise self._error or BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        data = b"".join(buffers)[: end.room]
        if not data:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        end.send(data)
        return len(data)

    def send_all(self, data: bytes) -> None:
        """Send bytes, even if there is no room."""
        self._connected().send(data)

    def close(self) -> None:
        """Send what waits, then close."""
        self._on_read = self._on_write = None
        self.network.sockets.pop(self.number, None)
        if self._end is not None:
            self._end.close()
            self.network.ends.pop(self._end, None)

    def watch_writes(self, callback: Callable[[], None] | None) -> bool:
        """Call back when there is room; None to stop. Returns whether it did."""
        before, self._on_write = self._on_write, callback
        self.handle_room()
        return before is not None

    # Called by the network.

    def handle_data(self) -> None:
        """Let readers know."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.plan()

    def handle_room(self) -> None:
        """Let writers know."""
        if self._on_write is not None and self._connected().room:
            self.network.loop.call_soon(self._call_writer, context=self.context)

    def handle_lost(self, error: OSError | None) -> None:
        """Let readers know; a writer learns it from its next write."""
        self._error = error
        self.handle_data()
        if self._on_write is not None:
            self.network.loop.call_soon(self._call_writer, context=self.context)

    def _call_writer(self) -> None:
        if self._on_write is not None:
            self._on_write()

    def _use(self, end: End) -> None:
        self._end = end
        end.receiver = self
        end.context = self.context
        if self._give_up_seconds is not None:
            end.give_up_seconds = self._give_up_seconds

    def _connected(self) -> End:
        if self._end is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self._end


class ListeningSocket(_Watched):
    """A socket that accepts connections.

    Args:
        network: The network.
        host: The address to bind.
        port: The port; 0 for any free one.

    Raises:
        OSError: The address cannot be bound.
    """

    def __init__(self, network: StreamNetwork, host: str, port: int) -> None:
        super().__init__(network)
        self._address = network.bind(self, host, port)
        self._waiting: deque[SimulatedSocket] = deque()
        self.is_serving = True

    def getsockname(self) -> Address:
        """Return the bound address."""
        return self._address

    @property
    def is_readable(self) -> bool:
        """Whether a connection can be accepted."""
        return bool(self._waiting)

    def accept_end(self, end: End) -> None:
        """Take a new connection."""
        self._waiting.append(SimulatedSocket(self.network, end))
        self.plan()

    def accept(self) -> tuple[SimulatedSocket, Address]:
        """Return the next connection and its peer's address."""
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        accepted = self._waiting.popleft()
        return accepted, accepted.getpeername()

    def close(self) -> None:
        """Stop listening."""
        self.is_serving = False
        self.network.sockets.pop(self.number, None)
        if self.network.listeners.get(self._address) is self:
            del self.network.listeners[self._address]
