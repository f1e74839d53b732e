"""Values that both ends of a link between members share."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from rocketpost.codec.group.frames import Framed
from rocketpost.codec.group.hello import History
from rocketpost.server.access.audit import Audit, NoAudit
from rocketpost.server.peer_ports.security import PeerSecurity

HELLO_SECONDS: Final = 3.0
"""Time within which a connection is made, or a member introduces itself."""
_LOST_MS: Final = 3000
_QUIET_SECONDS: Final = 5
_PROBE_SECONDS: Final = 2
_PROBES: Final = 3

EncodeFrame = Callable[[Framed, int], bytes]
"""Returns the head of a message and the given number of bytes that follow it."""


class FrameDecoder(Protocol):
    """Splits the bytes from a member into messages."""

    @property
    def missing(self) -> int:
        """Bytes of the log that the incomplete message still lacks."""

    def feed(self, data: bytes | bytearray | memoryview, /) -> list[tuple[Framed, bytes]]:
        """Return the messages that are complete, each with the bytes of the log in it.

        Raises:
            RemoteProtocolError: The bytes are no messages; drop the connection.
        """


class Framing(NamedTuple):
    """Turns messages into bytes and back."""

    encode: EncodeFrame
    decoder: Callable[[], FrameDecoder]


class Protection(NamedTuple):
    """The protection of the links of a group: TLS and logins, and the record of failed ones."""

    ports: PeerSecurity
    audit: Audit
    purpose: str
    """The purpose for which links log in: those of another group have another one."""

    @classmethod
    def of_group(
        cls, group: str, ports: PeerSecurity | None = None, audit: Audit | None = None
    ) -> Protection:
        """Return the protection of a group; none at all if it has no login and no certificates."""
        return cls(ports or PeerSecurity(), audit or NoAudit(), f"the group {group}")


class Seat(NamedTuple):
    """This member's place in its group, as its peers see it."""

    group: str
    """Name of the group."""
    node: str
    """Id of this member."""
    settings: dict[str, str]
    """Settings that must be equal on all members, by key."""
    address: str = ""
    """Address at which clients reach this broker."""
    history: Callable[[], History] = History
    """Returns what this member has on its disk."""
    recall: Callable[[str], History] = lambda _: History()
    """Returns what a peer must have on its disk, as far as this member remembers."""


def prepare_socket(sock: socket.socket) -> None:
    """Set the options of a connection between members.

    The loss of a peer is noticed after some seconds, so that the next connection is made as soon as
    the peer can be reached again; TCP alone would wait for minutes.
    """
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_USER_TIMEOUT", _LOST_MS),
        ("TCP_KEEPIDLE", _QUIET_SECONDS),
        ("TCP_KEEPINTVL", _PROBE_SECONDS),
        ("TCP_KEEPCNT", _PROBES),
    ):
        if hasattr(socket, name):  # Linux has all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
