"""The port for clients of the remoting protocol."""

from __future__ import annotations

from rocketpost.client.session import Session
from rocketpost.codec.command import Command
from rocketpost.proxy.masters import Masters
from rocketpost.proxy.remoting.guest import Guest
from rocketpost.transport.connection import Connection
from rocketpost.transport.listener import Listener, room_of_process

_CONNECTIONS_OF_A_CLIENT = 8
"""Open files of a client: its connection, and those to name servers and brokers."""


class RemotingPort:
    """Serves clients of the remoting protocol. Belongs to the event loop.

    Args:
        session: The proxy's own connections; knows routes and name servers.
        masters: Finds the masters of brokers.
        host: The address of the proxy in routes.

    Attributes:
        listener: The port, for its TLS settings.
    """

    def __init__(self, session: Session, masters: Masters, *, host: str) -> None:
        self._session = session
        self._masters = masters
        self._host = host
        room = room_of_process()
        room.connections_max //= _CONNECTIONS_OF_A_CLIENT
        self.listener = Listener(on_request=self._serve, on_lost=self._forget, room=room)
        self._guests: dict[Connection, Guest] = {}

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"{self._host}:{self.listener.port}"

    async def start(self, host: str, port: int) -> None:
        """Return when requests are served.

        Raises:
            ConfigError: The port cannot be bound.
        """
        await self.listener.start(host, port)

    async def stop(self) -> None:
        """Serve no more requests."""
        await self.listener.stop()
        for guest in list(self._guests.values()):
            guest.close()
        self._guests.clear()

    def _serve(self, connection: Connection, command: Command) -> None:
        guest = self._guests.get(connection)
        if guest is None:
            guest = self._guests[connection] = Guest(
                connection,
                session=self._session,
                masters=self._masters,
                address=lambda: self.address,
            )
        guest.serve(command)

    def _forget(self, connection: Connection) -> None:
        guest = self._guests.pop(connection, None)
        if guest is not None:
            guest.close()
