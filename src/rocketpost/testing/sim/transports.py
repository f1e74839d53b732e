"""Streams of the simulated network as ``asyncio``'s transports and servers."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from typing import Any, Final

from rocketpost.testing.sim.machine import current_process
from rocketpost.testing.sim.streams import Address, End, StreamNetwork

_HIGH_BYTES: Final = 64 * 1024


class SimulatedTransport(asyncio.Transport):
    """One end of a stream as a transport.

    Args:
        end: The end.
        protocol: The protocol that uses it.
    """

    def __init__(self, end: End, protocol: asyncio.BaseProtocol) -> None:
        super().__init__({"peername": end.peer, "sockname": end.local})
        self._end = end
        self._protocol = protocol
        self._is_closing = False
        self._is_paused = False
        self._is_lost = False
        self._has_ended = False
        self._high, self._low = _HIGH_BYTES, _HIGH_BYTES // 4
        self._is_full = False

    def begin(self) -> None:
        """Tell the protocol that it is connected; then pass on what has arrived."""
        self._end.receiver = self
        self._protocol.connection_made(self)
        if self._end.unread or self._end.is_ended:
            self._end.network.call(self._end, self.handle_data)

    # Called by the protocol.

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Use another protocol from now on."""
        self._protocol = protocol

    def is_closing(self) -> bool:
        """Tell whether it is closed or about to be."""
        return self._is_closing

    def is_reading(self) -> bool:
        """Tell whether bytes that arrive are passed on."""
        return not self._is_paused and not self._is_closing

    def pause_reading(self) -> None:
        """Let bytes wait."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Pass on bytes again."""
        self._is_paused = False
        if self._end.unread or self._end.is_ended:
            self._end.network.call(self._end, self.handle_data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set how many bytes may wait before the protocol is asked to pause."""
        self._high = _HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait for room."""
        return self._end.unsent_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        if self._is_closing or not self._end.is_open:
            return
        self._end.send(bytes(data))
        if self._end.unsent_bytes > self._high and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send buffers, one after the other."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Tell that only both directions can be closed."""
        return False

    def close(self) -> None:
        """Send what waits, then close."""
        if not self._is_closing:
            self._is_closing = True
            self._end.close()
            self._lose_soon(None)

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = True
        self._end.reset()
        self._lose_soon(None)

    # Called by the network.

    def handle_data(self) -> None:
        """Pass on bytes, then the end of the stream."""
        while not self._is_paused and not self._is_closing and self._end.unread:
            self._pass_on(self._end.read(1 << 30))
        if self._is_paused or self._is_closing or self._end.unread or self._has_ended:
            return
        if self._end.is_ended:
            self._has_ended = True
            if not self._protocol.eof_received():  # type: ignore[attr-defined]
                self.close()

    def handle_room(self) -> None:
        """Let the protocol write again."""
        if self._is_full and self._end.unsent_bytes <= self._low and not self._is_closing:
            self._is_full = False
            self._protocol.resume_writing()

    def handle_lost(self, error: OSError | None) -> None:
        """Tell the protocol that the connection is gone."""
        self._is_closing = True
        self._lose_soon(error)

    def _pass_on(self, data: bytes) -> None:
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(data)  # type: ignore[attr-defined]
            return
        view = memoryview(data)
        while view:
            buffer = protocol.get_buffer(len(view))
            size = min(len(view), len(buffer))  # type: ignore[arg-type]
            buffer[:size] = view[:size]  # type: ignore[index]
            view = view[size:]
            protocol.buffer_updated(size)

    def _lose_soon(self, error: OSError | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._end.network.call(self._end, self._lose, error)

    def _lose(self, error: OSError | None) -> None:
        self._end.network.ends.pop(self._end, None)
        self._protocol.connection_lost(error)


class SimulatedServer:
    """A listening address, as ``loop.create_server`` returns one.

    Args:
        network: The network.
        factory: Makes the protocol of each connection.
        host: The address to bind.
        port: The port; 0 for any free one.

    Raises:
        OSError: The address cannot be bound.
    """

    def __init__(
        self, network: StreamNetwork, factory: Callable[[], Any], host: str, port: int
    ) -> None:
        process = current_process()
        assert process is not None
        self.process = process
        self.context = contextvars.copy_context()
        self.is_serving = False
        self._network = network
        self._factory = factory
        self._address = network.bind(self, host, port)

    @property
    def sockets(self) -> tuple[SimulatedServer]:
        """The listening sockets: itself."""
        return (self,)

    def getsockname(self) -> Address:
        """Return the bound address."""
        return self._address

    def setsockopt(self, *_: object) -> None:
        """Accept options that the simulated network does not need."""

    def accept_end(self, end: End) -> None:
        """Take a new connection."""
        SimulatedTransport(end, self._factory()).begin()

    def close(self) -> None:
        """Stop listening; connections stay."""
        self.is_serving = False
        if self._network.listeners.get(self._address) is self:
            del self._network.listeners[self._address]

    async def start_serving(self) -> None:
        """Accept connections."""
        self.is_serving = True

    async def wait_closed(self) -> None:
        """Return at once."""


async def open_transport(
    network: StreamNetwork, factory: Callable[[], Any], host: str, port: int
) -> tuple[SimulatedTransport, Any]:
    """Connect the current process; returns transport and protocol.

    Raises:
        OSError: The connection cannot be made.
    """
    end = await network.connect((host, port))
    protocol = factory()
    transport = SimulatedTransport(end, protocol)
    transport.begin()
    return transport, protocol
