"""A TCP proxy that cuts, delays or swallows data on purpose.

A client connects to the proxy instead of a server. :attr:`FaultProxy.fault` is read for every piece
of data, so a test may change it at any time; :meth:`FaultProxy.cut` cuts open connections.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

PIECE_BYTES: Final = 64 * 1024
_PIECES_PER_SECOND: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """The faults to inject; none without arguments.

    Attributes:
        refuse: Close new connections at once.
        delay_s: Delay each piece of data this long.
        bytes_per_second: Forward no more than this in each direction of a connection.
        swallow_requests: Discard what clients send; they wait in vain.
        swallow_answers: Discard what the server sends; it did the work, and the client never
            learns of it.
        cut_after_bytes: Cut a connection when this many bytes were sent to the server, most likely
            in the middle of a frame.
        cut_answers_after_bytes: The same for bytes sent to the client.
    """

    refuse: bool = False
    delay_s: float = 0.0
    bytes_per_second: int | None = None
    swallow_requests: bool = False
    swallow_answers: bool = False
    cut_after_bytes: int | None = None
    cut_answers_after_bytes: int | None = None


NONE: Final = InjectedFault()


class FaultProxy:
    """Forwards connections as :attr:`fault` allows. An async context manager.

    Args:
        target: Host and port of the server.
        listen: The address for clients; port 0 takes a free one. A server that announces an address
            to its clients can announce another one of 127.0.0.0/8, where the proxy listens.
    """

    def __init__(
        self, target: tuple[str, int], *, listen: tuple[str, int] = ("127.0.0.1", 0)
    ) -> None:
        self._target = target
        self._listen = listen
        self._server: asyncio.Server | None = None
        self._sessions: set[asyncio.Task[None]] = set()
        self.fault = NONE
        self.connection_count = 0
        """Number of connections so far."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, *self._listen)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self.cut()
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        """The port of the proxy."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def cut(self) -> None:
        """Cut all open connections on both sides."""
        sessions = list(self._sessions)
        for session in sessions:
            session.cancel()
        await asyncio.gather(*sessions, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Registered here, not in the first step of its task, so that a cut cannot miss it.
        assert self._server is not None
        self.connection_count += 1
        if self.fault.refuse or not self._server.is_serving():
            writer.transport.abort()
            return
        session = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._sessions.add(session)

        def end(session: asyncio.Task[None]) -> None:
            self._sessions.discard(session)
            writer.transport.abort()  # also if the task was cancelled before it began

        session.add_done_callback(end)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # One side is gone, or the test has cut the connection: then both end.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._forward(reader, writer)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        pumps = [
            asyncio.create_task(
                self._pump(
                    reader,
                    there_writer,
                    swallow=lambda: self.fault.swallow_requests,
                    limit=lambda: self.fault.cut_after_bytes,
                )
            ),
            asyncio.create_task(
                self._pump(
                    there_reader,
                    writer,
                    swallow=lambda: self.fault.swallow_answers,
                    limit=lambda: self.fault.cut_answers_after_bytes,
                )
            ),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            there_writer.transport.abort()

    def _piece_bytes(self) -> int:
        rate = self.fault.bytes_per_second
        return PIECE_BYTES if rate is None else max(1, rate // _PIECES_PER_SECOND)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        swallow: Callable[[], bool],
        limit: Callable[[], int | None],
    ) -> None:
        """Forward data in one direction until its end, or until a fault cuts it."""
        carried = 0
        while data := await reader.read(self._piece_bytes()):
            if self.fault.delay_s:
                await asyncio.sleep(self.fault.delay_s)
            if (rate := self.fault.bytes_per_second) is not None:
                await asyncio.sleep(len(data) / rate)
            if swallow():
                continue
            cut_at = limit()
            if cut_at is not None and carried + len(data) >= cut_at:
                writer.write(data[: max(0, cut_at - carried)])
                with contextlib.suppress(OSError):
                    await writer.drain()
                return
            writer.write(data)
            await writer.drain()
            carried += len(data)
