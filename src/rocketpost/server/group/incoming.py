"""The port at which the peers of a member connect, and the connections that carry their messages.

A peer introduces itself first. The connection is refused if the caller is not a member, belongs to
another group, or has other settings. The caller gets the reason, and this side logs it once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Final

from rocketpost.codec.group.frames import Framed
from rocketpost.codec.group.hello import (
    Answer,
    Hello,
    History,
    encode_hello,
    take_hello,
    why_refuse,
)
from rocketpost.errors import ConfigError, RemoteProtocolError, RocketpostError
from rocketpost.server.group.link_values import (
    HELLO_SECONDS,
    Framing,
    Protection,
    Seat,
    prepare_socket,
)
from rocketpost.server.peer_ports.door import PeerDoor
from rocketpost.transport.listener import bind_problem
from rocketpost.transport.sockets import make_listening_socket
from rocketpost.transport.tls_socket import StreamSocket

logger = logging.getLogger(__name__)

READ_BYTES: Final = 1024 * 1024
"""Most bytes read from a peer in one loop iteration."""
WAKE_BYTES_MAX: Final = 256 * 1024
"""Bytes of an incomplete message after which the loop is woken at the latest."""
STRANGERS_MAX: Final = 32
"""Most connections that have not introduced themselves."""
_BACKLOG: Final = 64
_REASONS_MAX: Final = 100

TakeMessage = Callable[[str, Framed, bytes], None]
"""Takes a message of a peer, and the bytes of the log that came with it.

It raises a ``RocketpostError`` if the message cannot be true; the connection is closed then.
"""


class IncomingLinks:
    """The listening socket and the connections of all peers. Owned by the loop.

    Args:
        seat: This member's place in the group.
        peers: The ids of the other members.
        framing: Decodes messages.
        on_message: Takes each message.
        on_hello: Called with a peer's introduction when it has connected.
        protection: TLS and logins.
    """

    def __init__(
        self,
        *,
        seat: Seat,
        peers: Iterable[str],
        framing: Framing,
        on_message: TakeMessage,
        on_hello: Callable[[Hello], None],
        protection: Protection,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.seat = seat
        """This member's place in the group."""
        self.peers = frozenset(peers)
        """The ids of the other members."""
        self.framing = framing
        """Decodes messages."""
        self.on_message = on_message
        """Takes each message."""
        self._on_hello = on_hello
        self._door = PeerDoor(
            protection.ports,
            purpose=protection.purpose,
            audit=protection.audit,
            on_peer=self._add,
        )
        self._listening: socket.socket | None = None
        self._links: set[_IncomingLink] = set()
        self._by_peer: dict[str, _IncomingLink] = {}
        self._reasons: set[tuple[str, str]] = set()
        self.buffer = memoryview(bytearray(READ_BYTES))
        """Memory for one read."""

    def set_peers(self, peers: Iterable[str]) -> None:
        """Let these members connect, and no others; connections of others are closed."""
        self.peers = frozenset(peers)
        for peer, link in list(self._by_peer.items()):
            if peer not in self.peers:
                link.end(f"{peer} is not a member of the group any more")

    @property
    def port(self) -> int:
        """The bound port; 0 if none is bound."""
        return int(self._listening.getsockname()[1]) if self._listening is not None else 0

    @property
    def connected(self) -> frozenset[str]:
        """The peers whose messages arrive."""
        return frozenset(self._by_peer)

    async def start(self, host: str, port: int) -> None:
        """Bind an address and accept connections.

        Raises:
            ConfigError: The address cannot be bound.
        """
        try:
            found = await self._loop.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, _, _, _, address = found[0]
            listening = make_listening_socket(
                str(address[0]), int(address[1]), family=family, backlog=_BACKLOG
            )
        except OSError as error:
            reason = bind_problem(error, port_key="dLegerPeers")
            raise ConfigError(
                f"cannot listen for the members of the group on {host}:{port}: {reason}"
            ) from error
        listening.setblocking(False)
        self._listening = listening
        self._loop.add_reader(listening, self._accept)

    def read_slow(self) -> None:
        """Read the parts of messages that do not wake the loop; to be called at every tick."""
        for link in list(self._links):
            link.read_slow()

    def close(self) -> None:
        """Stop listening and end all connections."""
        if self._listening is not None:
            self._loop.remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        self._door.close()
        for link in list(self._links):
            link.end("")

    # Called by connections.

    def judge(self, hello: Hello) -> str:
        """Return the reason to refuse a connection; empty if it is accepted."""
        seat = self.seat
        return why_refuse(
            hello, group=seat.group, receiver=seat.node, peers=self.peers, settings=seat.settings
        )

    def note_peer(self, link: _IncomingLink, hello: Hello) -> None:
        """Note the introduction of a peer; a connection that it had before is closed."""
        before = self._by_peer.get(hello.sender)
        self._by_peer[hello.sender] = link
        if before is not None:
            before.end("")
        self._reasons = {each for each in self._reasons if each[0] != link.host}
        logger.info("member connected: peer=%s from=%s", hello.sender, link.host)
        self._on_hello(hello)

    def note_end(self, link: _IncomingLink, reason: str) -> None:
        """Forget a connection, and log the reason of its end, once for each host and reason."""
        self._links.discard(link)
        if self._by_peer.get(link.peer) is link:
            del self._by_peer[link.peer]
        news = (link.host, reason)
        if not reason or news in self._reasons:
            return
        if len(self._reasons) < _REASONS_MAX:
            self._reasons.add(news)
        who = f"member {link.peer}" if link.peer else "a connection"
        logger.warning("%s is closed: from=%s reason=%s", who, link.host, reason)

    def _accept(self) -> None:
        assert self._listening is not None
        try:
            sock, address = self._listening.accept()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            logger.warning("member not accepted: reason=%s", error.strerror)
            return
        prepare_socket(sock)
        self._door.admit(sock, (str(address[0]), int(address[1])))

    def _add(self, sock: StreamSocket, address: tuple[str, int]) -> None:
        """Expect the introduction of a broker that has passed TLS and login."""
        if sum(not link.peer for link in self._links) >= STRANGERS_MAX:
            sock.close()
            return
        self._links.add(_IncomingLink(self, sock, address[0]))


class _IncomingLink:
    """One connection. Owned by the loop."""

    def __init__(self, owner: IncomingLinks, sock: StreamSocket, host: str) -> None:
        self._owner = owner
        self._socket = sock
        self.host = host
        self.peer = ""
        self._received = bytearray()
        self._decoder = owner.framing.decoder()
        self._wake_bytes = 1
        self._is_open = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read)
        self._deadline = self._loop.call_later(
            HELLO_SECONDS, self.end, f"it did not introduce itself in {HELLO_SECONDS:g} s"
        )

    def end(self, reason: str) -> None:
        """Close the connection; a reason is logged."""
        if not self._is_open:
            return
        self._is_open = False
        self._deadline.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._owner.note_end(self, reason)

    def read_slow(self) -> None:
        """Read the part of an incomplete message that has arrived: the rest may take long."""
        if self._wake_bytes > 1:
            self._read()

    def _choose_wake(self) -> None:
        """Wait for the rest of a message, or for much of it: a wake-up costs its sender too."""
        wake_bytes = min(self._decoder.missing, WAKE_BYTES_MAX) or 1
        if wake_bytes != self._wake_bytes and self._is_open:
            self._wake_bytes = wake_bytes
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes)

    def _read(self) -> None:
        buffer = self._owner.buffer
        try:
            size = self._socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.end(f"lost: {error.strerror}" if self.peer else "")
            return
        if not size:
            self.end("it closed the connection" if self.peer else "")
            return
        try:
            if self.peer:
                self._take(buffer[:size])
            else:
                self._meet(buffer[:size])
        except RocketpostError as error:
            self.end(str(error))
        else:
            self._choose_wake()

    def _meet(self, data: memoryview) -> None:
        self._received += data
        hello = take_hello(Hello, self._received)
        if hello is None:
            return
        problem = self._owner.judge(hello)
        seat = self._owner.seat
        answer = Answer(
            problem=problem,
            address=seat.address,
            history=seat.history(),
            remembered=History() if problem else seat.recall(hello.sender),
        )
        try:
            self._socket.send(encode_hello(answer))  # a new connection has room for it
        except OSError as error:
            self.end(f"lost: {error.strerror}")
            return
        if problem:
            raise RemoteProtocolError(f"it is refused: {problem}")
        self._deadline.cancel()
        self.peer = hello.sender
        self._owner.note_peer(self, hello)
        rest, self._received = self._received, bytearray()
        if rest:
            self._take(memoryview(rest))

    def _take(self, data: memoryview) -> None:
        on_message = self._owner.on_message
        for message, body in self._decoder.feed(data):
            if not self._is_open:
                return  # a message before has ended the connection
            on_message(self.peer, message, body)
