"""The HA port of a master, at which slaves connect."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final

from rocketpost.errors import ConfigError
from rocketpost.server.peer_ports.door import PeerDoor
from rocketpost.transport.listener import bind_problem
from rocketpost.transport.same_host import pace_to_others, put_pace_off
from rocketpost.transport.sockets import make_listening_socket

logger = logging.getLogger(__name__)

_BACKLOG: Final = 64
_MAPPED: Final = "::ffff:"
"""Begins an IPv4 address as sockets for IPv6 show it."""


class HaListener:
    """A listening socket. Owned by the loop.

    Args:
        door: Gets each new socket, which is not blocking, and its peer's host and port.
    """

    def __init__(self, *, door: PeerDoor) -> None:
        self._door = door
        self._socket: socket.socket | None = None
        self._method = b""

    @property
    def port(self) -> int:
        """The bound port; 0 if none is bound."""
        return int(self._socket.getsockname()[1]) if self._socket is not None else 0

    async def start(self, host: str, port: int) -> None:
        """Bind an address and accept connections.

        Raises:
            ConfigError: The address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, _, _, _, address = found[0]
            listening = make_listening_socket(
                str(address[0]), int(address[1]), family=family, backlog=_BACKLOG
            )
        except OSError as error:
            reason = bind_problem(error, port_key="haListenPort")
            raise ConfigError(f"cannot listen for slaves on {host}:{port}: {reason}") from error
        listening.setblocking(False)
        self._method = put_pace_off(listening)
        self._socket = listening
        loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Stop accepting; connections of slaves stay."""
        self._door.close()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            accepted, address = self._socket.accept()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            logger.warning("slave not accepted: reason=%s", error.strerror)
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        pace_to_others(accepted, self._method)
        self._door.admit(accepted, (address[0].removeprefix(_MAPPED), address[1]))
