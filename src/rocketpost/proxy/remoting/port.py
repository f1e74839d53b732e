"""The port for clients of the remoting protocol."""

from __future__ import annotations

from collections.abc import Callable

from rocketpost.access.signature import ACCESS_KEY
from rocketpost.client.session import Session
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.proxy.cluster.masters import Masters
from rocketpost.proxy.remoting.guest import Guest, Refused, refuse
from rocketpost.transport.connection import Connection
from rocketpost.transport.listener import Listener, room_of_process

_CONNECTIONS_OF_A_CLIENT = 8
"""Open files of a client: its connection, and those to name servers and brokers."""
_NOT_SIGNED = (
    "username cannot be null. The request is not signed; the proxy has a certificate of its own, "
    "for which brokers would take this client"
)

Admit = Callable[[Connection, Command], bool]
"""Tells whether a request is passed on; it has answered the others."""


class RemotingPort:
    """Serves clients of the remoting protocol. Belongs to the event loop.

    Brokers may take the certificate of the proxy for a login. So if it has one, requests without a
    signature are not passed on.

    Args:
        session: The proxy's own connections; knows routes and name servers.
        masters: Finds the masters of brokers.
        host: The address of the proxy in routes.
        admit: Checks the users of requests; None if brokers alone check them.

    Attributes:
        listener: The port, for its TLS settings.
    """

    def __init__(
        self, session: Session, masters: Masters, *, host: str, admit: Admit | None = None
    ) -> None:
        self._session = session
        self._masters = masters
        self._host = host
        self._admit = admit
        tls = session.config.tls
        self._has_certificate = tls is not None and bool(tls.certificate)
        room = room_of_process()
        room.connections_max //= _CONNECTIONS_OF_A_CLIENT
        self.listener = Listener(on_request=self._serve, on_lost=self._forget, room=room)
        self.listener.note_users(admit is not None)
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
        if self._has_certificate and not command.fields.get(ACCESS_KEY):
            if not command.is_oneway:
                refuse(connection, command, Refused(ResponseCode.NO_PERMISSION, _NOT_SIGNED))
            return
        if self._admit is not None and not self._admit(connection, command):
            return
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
