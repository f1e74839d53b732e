"""One connection, as seen from either end.

A connection cuts frames, pairs responses with requests, and gathers everything that is sent during
one turn of the event loop into one write. It does not know what commands mean: requests of the peer
go to ``on_request``.

Back-pressure: while the socket is not writable, or more than ``pending_max`` requests of the peer
are unanswered, the connection stops reading. One read may bring thousands of small requests for
large answers, so once ``WRITE_BYTES_HIGH`` are queued the rest of them waits, still undecoded,
until the answers are gone. A peer that does not read what it asked for is cut off once
``write_bytes_max`` wait for it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

from rocketpost.codec.command import (
    BINARY,
    JSON,
    ONEWAY,
    RESPONSE,
    Command,
    decode_commands,
    encode_command,
)
from rocketpost.codec.frames import FrameDecoder
from rocketpost.codec.record import pack_host
from rocketpost.errors import ConnectionLost, NotConnected, RemoteProtocolError, RequestTimeout

logger = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview
Sign = Callable[[Mapping[str, str] | None, Sequence[Buffer]], Mapping[str, str]]

PENDING_MAX: Final = 8192
WRITE_BYTES_HIGH: Final = 4 * 1024 * 1024
WRITE_BYTES_MAX: Final = 64 * 1024 * 1024
PARTIAL_BYTES_FREE: Final = 64 * 1024
"""Every connection may hold so much of a frame that is not whole yet; more is counted."""


class Room:
    """What all connections of a server may take together, whichever port they came by.

    Each may hold 16 MiB of a frame that is not whole and 64 MiB that its peer does not read, so
    without this a thousand silent peers could hold 80 GiB.
    """

    __slots__ = (
        "connections",
        "connections_max",
        "partial_bytes",
        "partial_bytes_max",
        "unwritten_bytes",
        "unwritten_bytes_max",
    )

    def __init__(
        self, *, connections_max: int, partial_bytes_max: int, unwritten_bytes_max: int
    ) -> None:
        self.connections_max = connections_max
        self.partial_bytes_max = partial_bytes_max
        self.unwritten_bytes_max = unwritten_bytes_max
        self.connections = 0
        self.partial_bytes = 0
        """Bytes of unfinished frames, but for the first 64 KiB of each connection."""
        self.unwritten_bytes = 0
        """Bytes that wait for peers that read too slowly."""


class Connection(asyncio.Protocol):
    """One connection. Belongs to the event loop.

    Args:
        on_request: Called with every request of the peer.
        on_lost: Called once, when the connection is gone.
        on_made: Called once, when it is there.
        pending_max: Requests of the peer that may be unanswered.
        write_bytes_max: Bytes that may wait for the peer.
        room: What it may take together with others.
        sign: Returns the header fields of our requests with a signature, given fields and body.
    """

    def __init__(
        self,
        *,
        on_request: Callable[[Connection, Command], None],
        on_lost: Callable[[Connection], None] | None = None,
        on_made: Callable[[Connection], None] | None = None,
        pending_max: int = PENDING_MAX,
        write_bytes_max: int = WRITE_BYTES_MAX,
        room: Room | None = None,
        sign: Sign | None = None,
    ) -> None:
        self._on_request = on_request
        self._on_lost = on_lost
        self._on_made = on_made
        self._pending_max = pending_max
        self._write_bytes_max = write_bytes_max
        self._room = room
        self._sign = sign
        self._partial_bytes = 0
        self._unwritten_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._postponed: Iterator[Command] | None = None
        self._flush_scheduled = False
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._opaque = 0
        self._unanswered = 0
        self._writable = True
        self._paused = False
        self._closed = self._loop.create_future()
        self.last_active = self._loop.time()
        self.peer: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.peer_host = b""
        """The peer's address as records carry it."""
        self.encoding = JSON
        """The header encoding that the peer used last."""

    def __repr__(self) -> str:
        return f"<connection {self.peer_text}>"

    @property
    def peer_text(self) -> str:
        """The peer's address as ``host:port``."""
        host, port = self.peer
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def is_open(self) -> bool:
        """Whether something can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    # What the event loop calls.

    @property
    def is_writable(self) -> bool:
        """Whether the peer takes what it is sent."""
        return self._writable

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport and both addresses."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)
        self.peer = _address(transport.get_extra_info("peername"))
        self.local = _address(transport.get_extra_info("sockname"))
        self.peer_host = pack_host(*self.peer) if self.peer[0] else bytes(8)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._on_made is not None:
            self._on_made(self)

    def data_received(self, data: bytes) -> None:
        """Cut frames and pass each on; bytes that are no frames end the connection."""
        self.last_active = self._loop.time()
        try:
            frames = self._decoder.feed(data)
        except RemoteProtocolError as error:
            logger.warning("connection dropped: peer=%s reason=%s", self.peer_text, error)
            self.abort()
            return
        if self._decoder.held > PARTIAL_BYTES_FREE or self._partial_bytes:
            self._count_partial()
        self._unanswered += len(frames)  # those that want no answer are taken off again
        commands = decode_commands(frames)
        if self._postponed is None:
            self._pass_on(commands)
        else:
            self._postponed = itertools.chain(self._postponed, commands)

    def _count_partial(self) -> None:
        room, held = self._room, self._decoder.held
        if room is None:
            return
        counted = held if held > PARTIAL_BYTES_FREE else 0
        room.partial_bytes += counted - self._partial_bytes
        self._partial_bytes = counted
        if room.partial_bytes > room.partial_bytes_max and counted:
            logger.warning(
                "connection dropped: peer=%s reason=unfinished frames take %s bytes in all",
                self.peer_text,
                room.partial_bytes,
            )
            self.abort()

    def _pass_on(self, commands: Iterator[Command]) -> None:
        on_request = self._on_request
        try:
            for command in commands:
                flag = command.flag
                if flag & RESPONSE:
                    self._unanswered -= 1
                    self._response_received(command)
                    continue
                if flag & ONEWAY:
                    self._unanswered -= 1
                self.encoding = command.encoding
                on_request(self, command)
                if self._out_bytes > WRITE_BYTES_HIGH:
                    self._postponed = commands
                    break
        except RemoteProtocolError as error:
            logger.warning("connection dropped: peer=%s reason=%s", self.peer_text, error)
            self.abort()
            return
        except Exception:
            logger.exception("connection dropped: peer=%s", self.peer_text)
            self.abort()
            return
        if self._unanswered > self._pending_max or self._postponed is not None:
            self._regulate()

    def eof_received(self) -> bool:
        """Close when the peer has said all it will say."""
        return False

    def pause_writing(self) -> None:
        """Stop reading while the peer does not take what it was sent."""
        self._writable = False
        self._regulate()

    def resume_writing(self) -> None:
        """Read again."""
        self._writable = True
        self._count_unwritten(0)
        if self._postponed is not None:
            self._loop.call_soon(self._go_on)
        self._regulate()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whoever waits for a response."""
        self._transport = None
        self._out.clear()
        self._postponed = None
        if self._room is not None:
            self._room.partial_bytes -= self._partial_bytes
            self._partial_bytes = 0
            self._count_unwritten(0)
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost(f"connection to {self.peer_text} was lost"))
        if not self._closed.done():
            self._closed.set_result(None)
        if self._on_lost is not None:
            self._on_lost(self)

    # Sending.

    def send(self, *buffers: Buffer) -> None:
        """Queue bytes; all that one turn of the loop queues leaves in one write.

        A ``memoryview`` is handed to the socket as it is and must stay unchanged.
        """
        self._out += buffers
        self._out_bytes += sum(map(len, buffers))
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def answer(self, *buffers: Buffer) -> None:
        """Send the response to a request of the peer."""
        self._unanswered -= 1
        self._out += buffers
        self._out_bytes += sum(map(len, buffers))
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)
        if self._paused:
            self._regulate()

    def answer_all(self, responses: list[bytes]) -> None:
        """Send whole responses to as many requests of the peer."""
        self._unanswered -= len(responses)
        joined = b"".join(responses)
        self._out.append(joined)
        self._out_bytes += len(joined)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)
        if self._paused:
            self._regulate()

    def no_answer(self) -> None:
        """Count a request of the peer as answered that will get no response."""
        self._unanswered -= 1

    async def request(
        self,
        code: int,
        *,
        fields: Mapping[str, str] | None = None,
        body: Iterable[Buffer] | Buffer = b"",
        timeout: float,
        encoding: int | None = None,
    ) -> Command:
        """Send a request and return the response, whatever its code.

        Raises:
            RequestTimeout: No response within ``timeout`` seconds.
            ConnectionLost: The connection broke first.
            LocalProtocolError: The request does not fit a frame.
        """
        future = self.start_request(code, fields=fields, body=body, encoding=encoding)
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            raise RequestTimeout(
                f"no response from {self.peer_text} to request {code} in {timeout:g} s"
            ) from None

    def start_request(
        self,
        code: int,
        *,
        fields: Mapping[str, str] | None = None,
        body: Iterable[Buffer] | Buffer = b"",
        encoding: int | None = None,
    ) -> asyncio.Future[Command]:
        """Send a request; the future gets the response. Cancel it to stop waiting.

        Raises:
            NotConnected: The connection is closed.
            LocalProtocolError: The request does not fit a frame.
        """
        if self._transport is None or self._transport.is_closing():
            raise NotConnected(f"connection to {self.peer_text} is closed")
        opaque = self._opaque = (self._opaque + 1) & 0x7FFF_FFFF
        buffers, size = _body_buffers(body)
        if self._sign is not None:
            fields = self._sign(fields, buffers)
        head = encode_command(
            code,
            opaque=opaque,
            fields=fields,
            body_bytes=size,
            encoding=self._encoding_for(code, encoding),
        )
        future: asyncio.Future[Command] = self._loop.create_future()
        self._waiting[opaque] = future
        future.add_done_callback(lambda _: self._waiting.pop(opaque, None))
        self.send(head, *buffers)
        return future

    def send_oneway(
        self,
        code: int,
        *,
        fields: Mapping[str, str] | None = None,
        body: Iterable[Buffer] | Buffer = b"",
        encoding: int | None = None,
    ) -> None:
        """Send a request that gets no response.

        Raises:
            NotConnected: The connection is closed.
            LocalProtocolError: The request does not fit a frame.
        """
        if not self.is_open:
            raise NotConnected(f"connection to {self.peer_text} is closed")
        opaque = self._opaque = (self._opaque + 1) & 0x7FFF_FFFF
        buffers, size = _body_buffers(body)
        if self._sign is not None:
            fields = self._sign(fields, buffers)
        head = encode_command(
            code,
            opaque=opaque,
            flag=ONEWAY,
            fields=fields,
            body_bytes=size,
            encoding=self._encoding_for(code, encoding),
        )
        self.send(head, *buffers)

    # Closing.

    def close(self) -> None:
        """Send what is queued, then close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what is queued is dropped."""
        self._out.clear()
        self._postponed = None
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Return once the connection is gone."""
        await asyncio.shield(self._closed)

    # Inside.

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._out_bytes = 0
        transport, out = self._transport, self._out
        if transport is None or not out:
            out.clear()
            return
        self._out = []
        self.last_active = self._loop.time()
        if len(out) == 1:
            transport.write(out[0])
        else:
            transport.writelines(out)
        if not self._writable and not self._may_wait(transport.get_write_buffer_size()):
            self.abort()
        elif self._postponed is not None and self._writable:
            self._loop.call_soon(self._go_on)

    def _may_wait(self, size: int) -> bool:
        """Count what waits for a peer that reads too slowly; return whether that is bearable."""
        self._count_unwritten(size)
        room = self._room
        if size > self._write_bytes_max:
            reason = "does not read"
        elif room is not None and room.unwritten_bytes > room.unwritten_bytes_max:
            reason = f"does not read, while {room.unwritten_bytes} bytes wait for all"
        else:
            return True
        logger.warning(
            "connection dropped: peer=%s reason=%s, waiting_bytes=%s", self.peer_text, reason, size
        )
        return False

    def _count_unwritten(self, size: int) -> None:
        if self._room is not None:
            self._room.unwritten_bytes += size - self._unwritten_bytes
            self._unwritten_bytes = size

    def _go_on(self) -> None:
        """Take up requests that were postponed, unless there is a reason to do so later."""
        commands = self._postponed
        if commands is not None and self._writable and not self._out_bytes:
            self._postponed = None
            self._pass_on(commands)
            self._regulate()

    def _response_received(self, command: Command) -> None:
        future = self._waiting.pop(command.opaque, None)
        if future is None or future.done():
            logger.debug("late response dropped: peer=%s code=%s", self.peer_text, command.code)
        else:
            future.set_result(command)

    def _regulate(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        paused = (
            not self._writable
            or self._unanswered > self._pending_max
            or self._postponed is not None
        )
        if paused != self._paused:
            self._paused = paused
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _encoding_for(self, code: int, wanted: int | None) -> int:
        encoding = self.encoding if wanted is None else wanted
        # POP's codes do not fit the binary header.
        return JSON if encoding == BINARY and code > 0x7FFF else encoding


def _body_buffers(body: Iterable[Buffer] | Buffer) -> tuple[list[Buffer], int]:
    if isinstance(body, bytes | bytearray | memoryview):
        return ([body], len(body)) if len(body) else ([], 0)
    buffers = list(body)
    return buffers, sum(map(len, buffers))


def _address(value: object) -> tuple[str, int]:
    if isinstance(value, tuple) and len(value) >= 2:
        host, port = str(value[0]), int(value[1])
        # A dual-stack socket shows IPv4 peers in IPv6 clothes; ids and records need the plain form.
        return host.removeprefix("::ffff:") if "." in host else host, port
    return "", 0
