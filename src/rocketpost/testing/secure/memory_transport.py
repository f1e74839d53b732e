"""Transports in memory, for connections without sockets."""

from __future__ import annotations

import asyncio
from typing import Any


class MemoryTransport(asyncio.Transport):
    """One end of a pipe in memory: keeps what is written, and passes bytes on when told to."""

    def __init__(
        self, protocol: asyncio.BaseProtocol, *, peer: tuple[str, int] = ("10.0.0.7", 5555)
    ) -> None:
        super().__init__()
        self.protocol: Any = protocol
        self.written = bytearray()
        self.is_closed = False
        self.was_aborted = False
        self.wants_bytes = True
        self._peer = peer

    def connect(self) -> MemoryTransport:
        """Begin the connection."""
        self.protocol.connection_made(self)
        return self

    def deliver(self, data: bytes) -> None:
        """Let bytes of the peer arrive, as many at a time as the protocol takes."""
        at = 0
        while at < len(data) and not self.is_closed:
            protocol = self.protocol
            if isinstance(protocol, asyncio.BufferedProtocol):
                room = memoryview(protocol.get_buffer(-1))
                count = min(len(room), len(data) - at)
                room[:count] = data[at : at + count]
                protocol.buffer_updated(count)
            else:
                count = len(data) - at
                protocol.data_received(data[at:])
            at += count

    def take(self) -> bytes:
        """Return and forget what was written."""
        data, self.written = bytes(self.written), bytearray()
        return data

    def lose(self, error: Exception | None = None) -> None:
        """End the connection, as the event loop does later."""
        self.is_closed = True
        self.protocol.connection_lost(error)

    # The transport as protocols see it.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep bytes."""
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        """Keep several buffers."""
        for data in list_of_data:
            self.written += data

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return an address."""
        known = {"peername": self._peer, "sockname": ("10.0.0.1", 10911)}
        return known.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Pass the next bytes to another protocol."""
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that gets the next bytes."""
        protocol: asyncio.BaseProtocol = self.protocol
        return protocol

    def get_write_buffer_size(self) -> int:
        """Return 0: the peer has read everything."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Accept any limits."""
        del high, low

    def pause_reading(self) -> None:
        """Note that no bytes are wanted."""
        self.wants_bytes = False

    def resume_reading(self) -> None:
        """Note that bytes are wanted."""
        self.wants_bytes = True

    def is_closing(self) -> bool:
        """Tell whether this end has closed."""
        return self.is_closed

    def close(self) -> None:
        """Note that this end has closed."""
        self.is_closed = True

    def abort(self) -> None:
        """Note that this end has closed at once."""
        self.is_closed = self.was_aborted = True


def exchange(one: MemoryTransport, other: MemoryTransport, *, rounds_max: int = 20) -> None:
    """Pass on what both ends write, until neither writes more."""
    for _ in range(rounds_max):
        there, back = one.take(), other.take()
        if not there and not back:
            return
        other.deliver(there)
        one.deliver(back)
    raise AssertionError("the two ends never fall silent")
