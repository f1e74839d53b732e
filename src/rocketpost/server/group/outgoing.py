"""A member's connection to one peer, which carries its messages there.

It is made again whenever it is lost, first at once, then after pauses that double. Messages that
find no connection, or no room, are dropped: the group's protocol repeats what matters. Bytes of the
log are sent as views, without a copy.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from rocketpost.codec.group.frames import Framed
from rocketpost.codec.group.hello import Answer, Hello, encode_hello, take_hello
from rocketpost.errors import NotConnected, ReplicationError, RocketpostError
from rocketpost.server.group.link_values import (
    HELLO_SECONDS,
    Framing,
    Protection,
    Seat,
    prepare_socket,
)
from rocketpost.transport.connector import split_address
from rocketpost.transport.same_host import pace_to_others, put_pace_off
from rocketpost.transport.sockets import make_socket
from rocketpost.transport.tls_socket import StreamSocket, receive, send_all

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.1
"""Pause after the first failure; doubles with each one."""
BACKOFF_SECONDS: Final = 1.0
"""Longest pause between two attempts."""
UNSENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes that may wait for a peer's socket."""
TURN_BYTES_MAX: Final = 1024 * 1024
"""Bytes after which the loop does other work first."""
_PIECES_MAX: Final = 64
_READ_BYTES: Final = 4096

_Piece = bytes | memoryview


class OutgoingLink:
    """The link to one peer. Owned by the loop.

    Args:
        peer: The peer's id.
        address: The peer's host and port.
        seat: This member's place in the group.
        framing: Encodes messages.
        on_up: Called with the peer's id and its answer when messages can be sent.
        on_down: Called with the peer's id when a connection that was up is lost.
        protection: TLS and logins.
    """

    def __init__(
        self,
        peer: str,
        address: str,
        *,
        seat: Seat,
        framing: Framing,
        on_up: Callable[[str, Answer], None],
        on_down: Callable[[str], None],
        protection: Protection,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.peer = peer
        self.address = address
        self._seat = seat
        self._encode = framing.encode
        self._on_up = on_up
        self._on_down = on_down
        self._protection = protection
        self._socket: StreamSocket | None = None
        self._pieces: deque[_Piece] = deque()
        self._unsent = 0
        self._log_bytes = 0
        self._is_scheduled = False
        self._is_waiting = False
        self._lost: asyncio.Future[str] | None = None
        self.problem = "not connected yet"
        """Reason why the peer cannot be reached; empty if it can."""

    @property
    def is_up(self) -> bool:
        """Whether messages can be sent."""
        return self._socket is not None

    @property
    def room(self) -> int:
        """Bytes that may be sent now; 0 if there is no connection."""
        return max(0, UNSENT_BYTES_MAX - self._unsent) if self.is_up else 0

    async def run(self) -> None:
        """Keep the connection; ends when it is cancelled."""
        pause = 0.0
        while True:
            await asyncio.sleep(pause)
            try:
                sock, answer = await self._dial()
            except RocketpostError as error:
                self._note_problem(str(error))
                pause = min(max(2 * pause, RETRY_SECONDS), BACKOFF_SECONDS)
                continue
            await self._serve(sock, answer)
            pause = RETRY_SECONDS

    def send(self, message: Framed, body: memoryview | None = None) -> bool:
        """Send a message, and bytes of the log that belong to it; tells whether it had room."""
        size = 0 if body is None else len(body)
        if not self.is_up or self._unsent + size > UNSENT_BYTES_MAX:
            return False
        head = self._encode(message, size)
        self._pieces.append(head)
        self._unsent += len(head) + size
        if body is not None:
            self._pieces.append(body)
            self._log_bytes += size
        if self._is_scheduled or self._is_waiting:
            return True
        if body is not None:
            self._pump()  # a sender waits for it
        else:
            self._is_scheduled = True
            self._loop.call_soon(self._pump)
        return True

    def drop_log_bytes(self) -> None:
        """Close the connection if it has bytes of the log to send: they are about to be replaced.

        It is made again at once.
        """
        if self._log_bytes:
            self._end("this member does not lead any more")

    # Connecting.

    async def _dial(self) -> tuple[StreamSocket, Answer]:
        """Connect and introduce this member; returns the socket and the peer's answer.

        Raises:
            RocketpostError: The peer cannot be reached, or refuses the connection.
        """
        sock: socket.socket | None = None
        link: StreamSocket | None = None
        is_done = False
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                host, port = split_address(self.address)
                found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                family, kind, protocol, _, target = found[0]
                sock = make_socket(family, kind, protocol)
                prepare_socket(sock)
                method = put_pace_off(sock)
                await self._loop.sock_connect(sock, target)
                pace_to_others(sock, method)
                link = await self._protection.ports.call(sock, host, self._protection.purpose)
                answer = await self._introduce(link)
                is_done = True
        except TimeoutError:
            raise NotConnected(f"no answer in {HELLO_SECONDS:g} s") from None
        except OSError as error:
            number = error.errno or 0  # of an unknown name it is negative
            raise NotConnected(os.strerror(number) if number > 0 else str(error)) from error
        finally:
            if not is_done:
                for each in (sock, link):
                    if each is not None:
                        each.close()
        return link, answer

    async def _introduce(self, sock: StreamSocket) -> Answer:
        seat = self._seat
        hello = Hello(
            group=seat.group,
            sender=seat.node,
            receiver=self.peer,
            settings=seat.settings,
            address=seat.address,
            history=seat.history(),
            remembered=seat.recall(self.peer),
        )
        await send_all(sock, encode_hello(hello))
        received = bytearray()
        while True:
            answer = take_hello(Answer, received) if received else None
            if answer is not None:
                break
            data = await receive(sock, _READ_BYTES)
            if not data:
                raise ReplicationError("it closed the connection without an answer")
            received += data
        if answer.problem:
            raise ReplicationError(f"it refuses this member: {answer.problem}")
        return answer

    async def _serve(self, sock: StreamSocket, answer: Answer) -> None:
        """Let messages be sent until the connection is lost."""
        lost = self._lost = self._loop.create_future()
        self._socket = sock
        self._loop.add_reader(sock, self._read)
        self.problem = ""
        logger.info("connected to member: peer=%s address=%s", self.peer, self.address)
        self._on_up(self.peer, answer)
        reason = "it was closed"
        try:
            reason = await lost
        finally:
            self._close()
            self._note_problem(reason)
            self._on_down(self.peer)

    def _close(self) -> None:
        sock = self._socket
        assert sock is not None
        self._socket = None
        self._loop.remove_reader(sock)
        if self._is_waiting:
            self._loop.remove_writer(sock)
            self._is_waiting = False
        self._pieces.clear()
        self._unsent = self._log_bytes = 0
        sock.close()

    def _end(self, reason: str) -> None:
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(reason)

    def _note_problem(self, problem: str) -> None:
        """Log the first problem of an outage, and each one that differs from the one before."""
        if problem != self.problem:
            logger.warning(
                "no connection to member: peer=%s address=%s reason=%s",
                self.peer, self.address, problem,
            )  # fmt: skip
        self.problem = problem

    # Sending.

    def _read(self) -> None:
        """Notice that the peer closes the connection; it sends nothing here."""
        if self._socket is None:
            return
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(f"lost: {error.strerror}")
            return
        self._end("it sent something after its answer" if data else "it closed the connection")
        self._loop.remove_reader(self._socket)

    def _pump(self) -> None:
        self._is_scheduled = False
        if self._socket is None or self._is_waiting:
            return
        left = TURN_BYTES_MAX
        try:
            while self._pieces and left > 0:
                left -= self._send_some(self._socket)
        except (BlockingIOError, InterruptedError):
            self._is_waiting = True
            self._loop.add_writer(self._socket, self._continue)
            return
        except OSError as error:
            self._end(f"lost: {error.strerror}")
            return
        if self._pieces:
            self._is_scheduled = True
            self._loop.call_soon(self._pump)

    def _continue(self) -> None:
        self._is_waiting = False
        if self._socket is not None:
            self._loop.remove_writer(self._socket)
            self._pump()

    def _send_some(self, sock: StreamSocket) -> int:
        """Send the first pieces with one call; returns the number of bytes that were taken."""
        pieces = self._pieces
        sent = left = sock.sendmsg(list(islice(pieces, _PIECES_MAX)))
        if sent == self._unsent:  # usually everything
            pieces.clear()
            self._unsent = self._log_bytes = 0
            return sent
        while left:
            first = pieces[0]
            taken = min(left, len(first))
            if isinstance(first, memoryview):
                self._log_bytes -= taken
            if taken == len(first):
                pieces.popleft()
            else:
                pieces[0] = first[taken:]
            left -= taken
        self._unsent -= sent
        return sent
