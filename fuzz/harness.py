"""A server without sockets: bytes go in as a connection would hand them over, answers come out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fuzz.finding import Find, Watch
from rocketpost.codec.command import Command, decode_command
from rocketpost.codec.frames import FrameDecoder
from rocketpost.testing.link import let_arrive
from rocketpost.transport.connection import Connection
from rocketpost.transport.express import Express
from rocketpost.transport.served_connection import Inbox, ServedConnection

PEER = ("192.0.2.7", 4711)
_TURNS_MAX = 5000


class Pipe(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": PEER, "sockname": ("192.0.2.1", 10911)})
        self.written = bytearray()
        self.protocol: asyncio.BaseProtocol | None = None
        self._closing = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Take everything at once."""

    def get_write_buffer_size(self) -> int:
        """Nothing waits here."""
        return 0

    def write(self, data: Any) -> None:
        """Keep the bytes."""
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        """Keep the bytes."""
        for data in list_of_data:
            self.written += data

    def is_closing(self) -> bool:
        """Whether somebody closed it."""
        return self._closing

    def close(self) -> None:
        """Tell the connection in the next turn."""
        if not self._closing:
            self._closing = True
            assert self.protocol is not None
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def pause_reading(self) -> None:
        """Nothing is read by itself."""

    def resume_reading(self) -> None:
        """Nothing is read by itself."""


class Exchange:
    """One connection to a server under test. Belongs to the event loop."""

    def __init__(
        self,
        *,
        on_request: Callable[[Connection, Command], None],
        on_lost: Callable[[Connection], None],
        watch: Watch,
        express: Express[Connection] | None = None,
    ) -> None:
        self._watch = watch
        self._pipe = Pipe()
        self.connection: Connection
        if express is None:
            self.connection = Connection(on_request=on_request, on_lost=on_lost)
        else:
            self.connection = ServedConnection(
                inbox=Inbox(), express=express, on_request=on_request, on_lost=on_lost
            )
        self._pipe.protocol = self.connection
        self.connection.connection_made(self._pipe)
        self._decoder = FrameDecoder()
        self._seen = 0

    @property
    def is_closed(self) -> bool:
        """Whether the server hung up."""
        return self._pipe.is_closing()

    def feed(self, data: bytes) -> None:
        """Let the bytes arrive."""
        if not self.is_closed:
            if isinstance(self.connection, ServedConnection):
                let_arrive(self.connection, data)
            else:
                self.connection.data_received(data)

    def answers(self) -> list[Command]:
        """Return what the server has said since the last call."""
        data = bytes(self._pipe.written[self._seen :])
        self._seen = len(self._pipe.written)
        return [decode_command(frame) for frame in self._decoder.feed(data)]

    async def settle(self, is_idle: Callable[[], bool]) -> None:
        """Return when the server has done what it was asked."""
        for turn in range(_TURNS_MAX):
            await asyncio.sleep(0 if turn < 20 else 0.001)
            if turn >= 3 and is_idle():
                return
        raise Find("a request is still under way after five seconds")

    async def hang_up(self) -> None:
        """Close the connection, and check that a drop by the server was explained."""
        dropped = self.is_closed
        self.connection.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        peer = f"{PEER[0]}:{PEER[1]}"
        if dropped and not any("dropped" in line and peer in line for line in self._watch.lines):
            raise Find("a connection was dropped and no log line names the peer")
