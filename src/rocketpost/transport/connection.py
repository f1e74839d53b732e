"""One connection, at either end.

A connection splits bytes into frames, pairs responses with requests, and gathers all bytes sent in
one loop iteration into one write. It passes the peer's requests to ``on_request``.

Back-pressure: while the socket is not writable, or more than ``pending_max`` requests of the peer
are unanswered, the connection stops reading. One read may bring thousands of small requests for
large answers or much work. Once ``WRITE_BYTES_HIGH`` are queued, or the time budget of a turn is
spent, the remaining requests wait, undecoded and in order, until the answers are written or the
next turn comes (``transport.turns``). Requests behind a long one, served in steps, wait for it. A
peer that does not read is disconnected once ``write_bytes_max`` bytes wait for it, or too many for
all peers (``transport.room``).

Oneway requests are served even if their peer has gone: a server's lost connection calls ``on_lost``
when the requests it received are served. One closed at this end serves nothing more.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import Callable, Iterator
from typing import Final, cast

from rocketpost.codec.command import ONEWAY, RESPONSE, Command, decode_commands
from rocketpost.codec.frames import FrameDecoder
from rocketpost.codec.record import pack_host
from rocketpost.errors import RemoteProtocolError
from rocketpost.transport.host import parse_address
from rocketpost.transport.leftover import read_leftover
from rocketpost.transport.requesting import Buffer, ReadAnswers, Recipient, Requesting, Sign
from rocketpost.transport.room import UNWRITTEN_BYTES_FREE, Room
from rocketpost.transport.turns import BUDGET_SECONDS, Steps, advance

__all__ = ["PENDING_MAX", "WRITE_BYTES_HIGH", "WRITE_BYTES_MAX", "Buffer", "Connection", "Sign"]

logger = logging.getLogger(__name__)

PENDING_MAX: Final = 8192
WRITE_BYTES_HIGH: Final = 4 * 1024 * 1024
WRITE_BYTES_MAX: Final = 64 * 1024 * 1024
NEVER: Final = float("inf")
_END_OF_TURN: Final[Steps] = (_ for _ in ())
_ANSWER_BYTES_MAX: Final = 4096
PARTIAL_BYTES_FREE: Final = 64 * 1024
"""Bytes of an incomplete frame that a connection may hold uncounted."""


class Connection(Requesting):
    """One connection. Belongs to the event loop.

    Args:
        on_request: Called with every request of the peer.
        on_lost: Called once, when the connection is gone and none of its requests is left to serve.
        on_made: Called once, when the connection is open.
        pending_max: Maximum of unanswered requests of the peer.
        write_bytes_max: Maximum of bytes that wait for the peer.
        room: The limits shared with other connections. Without them, as in a client, everything
            that was read is served at once.
        sign: Returns the header fields of a request with a signature, given fields and body.
        read_answers: Reads plain answers to requests that their sender encoded.
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
        read_answers: ReadAnswers | None = None,
    ) -> None:
        super().__init__(sign, read_answers)
        self._on_request = on_request
        self._on_lost = on_lost
        self._on_made = on_made
        self._pending_max = pending_max
        self._write_bytes_max = write_bytes_max
        self._room = room
        self.partial_bytes = 0
        """Bytes of an incomplete frame of the peer, as counted by the room."""
        self._handed_bytes = 0
        self.counted_bytes = 0
        """Bytes that the peer has not read, as counted by the room."""
        self._written_bytes = 0
        self._moved_at = 0.0
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._postponed: Iterator[Command] | None = None
        self._steps: Steps | None = None
        self._flush_scheduled = False
        self._is_given_up = False  # closed by this end
        self._is_lost = False
        """Whether the connection is lost, although some of its requests are still to be served."""
        self._unanswered = 0
        self._writable = True
        self._paused = False
        self._closed = self._loop.create_future()
        self.last_active = self.heard_at = self._loop.time()
        """Times of the last bytes in either direction, and of the last bytes from the peer."""
        self.local: tuple[str, int] = ("", 0)
        self.peer_host = b""
        """The peer's address in the form of a record."""

    def __repr__(self) -> str:
        return f"<connection {self.peer_text}>"

    @property
    def is_open(self) -> bool:
        """Whether the connection can still send."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_writable(self) -> bool:
        """Whether the peer reads fast enough."""
        return self._writable

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport and both addresses."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)
        self.peer = self.source or parse_address(transport.get_extra_info("peername"))
        self.is_encrypted = transport.get_extra_info("sslcontext") is not None
        self.local = parse_address(transport.get_extra_info("sockname"))
        self.peer_host = pack_host(*self.peer) if self.peer[0] else bytes(8)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._on_made is not None:
            self._on_made(self)

    def data_received(self, data: bytes) -> None:
        """Split bytes into frames and serve them; bytes that are not frames end the connection."""
        self.last_active = self.heard_at = self._loop.time()
        self.receive(data, NEVER if self._room is None else time.monotonic() + BUDGET_SECONDS)
        if self._decoder.held > PARTIAL_BYTES_FREE or self.partial_bytes:
            self._count_partial()

    @property
    def is_behind(self) -> bool:
        """Whether requests that arrive now must wait, or are not served at all."""
        is_full = self._out_bytes > WRITE_BYTES_HIGH
        return self._postponed is not None or is_full or self._is_given_up

    def receive(self, data: bytes, deadline: float) -> None:
        """Decode bytes of the peer and serve its requests until ``deadline``."""
        if self._is_given_up:
            return
        try:
            if self._reads_answers and self._encoded and self._postponed is None:
                if 0 < self._decoder.held <= _ANSWER_BYTES_MAX:
                    data = self._decoder.release() + data
                if not self._decoder.held and not (data := self._take_answers(data)):
                    return
            frames = self._decoder.feed(data)
        except RemoteProtocolError as error:
            logger.warning("connection dropped: peer=%s reason=%s", self.peer_text, error)
            self.abort()
            return
        self._unanswered += len(frames)  # oneway requests are subtracted again
        commands = decode_commands(frames)
        if self._postponed is None:
            self._pass_on(commands, deadline)
        else:
            self._postponed = itertools.chain(self._postponed, commands)

    def _count_partial(self) -> None:
        room, held = self._room, self._decoder.held
        if room is None:
            return
        counted = held if held > PARTIAL_BYTES_FREE else 0
        room.partial_bytes += counted - self.partial_bytes
        self.partial_bytes = counted
        is_full = counted and room.partial_bytes > room.partial_bytes_max
        if is_full and not (self.is_known and room.drop_unfinished_strangers()):
            self.drop(f"unfinished frames take {room.partial_bytes} bytes in all")

    def work(self, steps: Steps) -> None:
        """Serve the current request in steps; later requests wait for it.

        Only called from within ``on_request``.
        """
        assert self._steps is None
        self._steps = steps

    def end_turn(self) -> None:
        """Serve no more in this turn, so that work begun by this request can proceed first."""
        self._steps = _END_OF_TURN

    def _pass_on(self, commands: Iterator[Command], deadline: float) -> None:
        on_request = self._on_request
        try:
            if self._steps is not None and not self._advance(deadline):
                self._postpone(commands)
                return
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
                if (
                    (self._steps is not None and not self._advance(deadline))
                    or self._out_bytes > WRITE_BYTES_HIGH
                    or time.monotonic() > deadline
                ):
                    self._postpone(commands)
                    return
        except RemoteProtocolError as error:
            logger.warning("connection dropped: peer=%s reason=%s", self.peer_text, error)
            self.abort()
            return
        except Exception:
            logger.exception("connection dropped: peer=%s", self.peer_text)
            self.abort()
            return
        if self._unanswered > self._pending_max:
            self._regulate()

    def _advance(self, deadline: float) -> bool:
        """Continue the current request; return whether it is done."""
        steps = self._steps
        assert steps is not None
        if steps is _END_OF_TURN:
            self._steps = None
            return False
        if advance(steps, deadline):
            self._steps = None
            return True
        return False

    def _postpone(self, commands: Iterator[Command]) -> None:
        if self.is_open or self._is_lost:
            self._postponed = commands
            self._continue_soon()
            self._regulate()

    def _continue_soon(self) -> None:
        if self._room is not None:
            self._room.turns.add(self)
        else:
            self._loop.call_soon(self.go_on)

    def eof_received(self) -> bool:
        """Close when the peer has closed its side."""
        return False

    def pause_writing(self) -> None:
        """Stop reading while the peer does not read its answers."""
        self._writable = False
        self._regulate()

    def resume_writing(self) -> None:
        """Resume reading."""
        self._writable = True
        if self._postponed is not None:
            self._continue_soon()
        self._regulate()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail our pending requests; serve the peer's oneway requests."""
        transport, self._transport = self._transport, None
        left = self._postponed
        self._out.clear()
        self._stop_work()
        if self._room is not None:
            self._room.count_unwritten(self, 0)
            if transport is not None and exc is not None and not self._is_given_up:
                left = self._with_leftover(left, transport, self._room)
        self._fail_requests()
        if left is None or self._room is None or self._is_given_up:
            self._end()
            return
        self._is_lost = self._writable = True
        self._postponed = (command for command in left if command.flag & ONEWAY)
        self._continue_soon()

    def _with_leftover(
        self, left: Iterator[Command] | None, transport: asyncio.Transport, room: Room
    ) -> Iterator[Command] | None:
        """Return the requests left to serve, with those still in the socket's buffer."""
        data = read_leftover(transport, room.partial_bytes_max - room.partial_bytes)
        if not data:
            return left
        room.partial_bytes += len(data)
        self.partial_bytes += len(data)
        try:
            more = decode_commands(self._decoder.feed(data))
        except RemoteProtocolError as error:
            logger.warning("peer's last bytes ignored: peer=%s reason=%s", self.peer_text, error)
            return left
        return more if left is None else itertools.chain(left, more)

    def _end(self) -> None:
        """Report that the connection is gone and all its requests are served."""
        if self._closed.done():
            return
        self._is_lost = False
        self._stop_work()
        if self._room is not None:
            self._room.partial_bytes -= self.partial_bytes
            self.partial_bytes = 0
        self._closed.set_result(None)
        if self._on_lost is not None:
            self._on_lost(self)

    # Sending.

    def send(self, *buffers: Buffer) -> None:
        """Queue bytes; everything queued in one loop iteration is written at once.

        A ``memoryview`` is passed to the socket without a copy and must stay unchanged.
        """
        self._out += buffers
        self._out_bytes += sum(map(len, buffers))
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def send_encoded(self, opaque: int, recipient: Recipient, head: bytes, body: Buffer) -> None:
        """Send a request that its sender has encoded; the response goes to ``recipient``.

        Only called in the same loop iteration as :meth:`next_opaque`.
        """
        self._encoded[opaque] = recipient
        self._out += (head, body)
        self._out_bytes += len(head) + len(body)
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

    def expect_answers(self, count: int) -> None:
        """Count requests that were taken undecoded and will be answered."""
        self._unanswered += count

    def answer_at_once(self, responses: bytes, count: int) -> None:
        """Write responses, after what is queued; ``count`` of them were expected."""
        self._unanswered -= count
        transport = self._transport
        if self._out or transport is None:
            self.send_at_once([responses])
        else:
            # The request was active a moment ago, so the clock is read only if bytes are left.
            self._handed_bytes += len(responses)
            transport.write(responses)
            if self._postponed is not None or transport.get_write_buffer_size():
                self.last_active = self._loop.time()
                self._check_written(transport)
        if self._paused:
            self._regulate()

    def send_at_once(self, buffers: list[bytes]) -> None:
        """Write bytes, after the queued ones, which may be in the next loop iteration."""
        self._out += buffers
        self._out_bytes += sum(map(len, buffers))
        if not self._flush_scheduled:
            self._flush()

    def no_answer(self) -> None:
        """Count a request as answered that gets no response."""
        self._unanswered -= 1

    # Closing.

    def close(self) -> None:
        """Send what is queued, then close."""
        self._is_given_up = True
        self._flush()
        if self._transport is not None:
            self._transport.close()
        elif self._is_lost:
            self._end()

    def abort(self) -> None:
        """Close at once and drop everything queued."""
        self._is_given_up = True
        self._out.clear()
        self._stop_work()
        if self._transport is not None:
            self._transport.abort()
        elif self._is_lost:
            self._end()

    async def wait_closed(self) -> None:
        """Return once the connection is gone."""
        await asyncio.shield(self._closed)

    # Inside.

    def _flush(self) -> None:
        self._flush_scheduled = False
        transport, out = self._transport, self._out
        if transport is None or not out:
            self._out_bytes = 0
            out.clear()
            return
        self._handed_bytes += self._out_bytes
        self._out_bytes = 0
        self._out = []
        self.last_active = self._loop.time()
        if len(out) == 1:
            transport.write(out[0])
        else:
            transport.writelines(out)
        self._check_written(transport)

    def _check_written(self, transport: asyncio.Transport) -> None:
        """Count the bytes that the socket did not take; serve requests that waited for room."""
        size = transport.get_write_buffer_size()
        if size > UNWRITTEN_BYTES_FREE and size > self.counted_bytes:
            self._count_unwritten(size)
        if self._postponed is not None and self._writable:
            self._continue_soon()

    def _count_unwritten(self, size: int) -> None:
        """Count the bytes that wait for the peer; disconnect it if there are too many."""
        written = self._handed_bytes - size
        if written != self._written_bytes:
            self._written_bytes = written
            self._moved_at = self.last_active
        if size > self._write_bytes_max and not self._writable:
            self.drop("does not read")
        elif self._room is not None:
            self._room.count_unwritten(self, size)

    @property
    def unwritten_bytes(self) -> int:
        """Bytes that the peer has not read yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def stuck_seconds(self) -> float:
        """Seconds for which the peer has read nothing."""
        if self._handed_bytes - self.unwritten_bytes != self._written_bytes:
            return 0.0  # the peer has read something since the last write
        return self._loop.time() - self._moved_at

    def drop(self, reason: str) -> None:
        """Disconnect the peer."""
        text = "connection dropped: peer=%s reason=%s, waiting_bytes=%s"
        logger.warning(text, self.peer_text, reason, self.unwritten_bytes)
        self.abort()

    def go_on(self) -> None:
        """Serve postponed requests, unless back-pressure delays them further."""
        commands = self._postponed
        if commands is None or not (self.is_open or self._is_lost):
            return
        if self._writable and self._out_bytes <= WRITE_BYTES_HIGH:
            self._postponed = None
            self._pass_on(
                commands, NEVER if self._room is None else time.monotonic() + BUDGET_SECONDS
            )
            if self._is_lost and self._postponed is None:
                self._end()
            self._regulate()

    def _stop_work(self) -> None:
        self._postponed = None
        self._steps = None

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
