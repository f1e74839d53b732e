"""Connections of a server to other servers: name servers, masters, members of its group.

The needs of all these connections are met here: the signature of requests, TLS, and the protection
of the ports by which brokers copy their log.
"""

from __future__ import annotations

from collections.abc import Callable

from rocketpost.server.peer_ports.security import PeerSecurity
from rocketpost.server.routes.dispatch import Dispatcher
from rocketpost.server.secure.certificates import PortSecurity
from rocketpost.transport.connection import Connection, Sign
from rocketpost.transport.connector import CONNECT_SECONDS, Connector
from rocketpost.transport.tls_contexts import ClientContext


class Peers:
    """Makes connectors to other servers.

    Args:
        sign: Signs requests; None if access control is off.
        log_ports: The protection of connections that carry the log.
    """

    def __init__(self, sign: Sign | None = None, log_ports: PeerSecurity | None = None) -> None:
        self.sign = sign
        """Signs requests; None if access control is off."""
        self.log_ports = log_ports or PeerSecurity()
        """The protection of connections that carry the log."""
        self.tls: ClientContext | None = None
        """TLS of connectors that are made from now on; plain connections if None."""

    def use_tls(self, security: PortSecurity) -> None:
        """Use the certificates of this server for everything that begins from now on."""
        self.tls = self.log_ports.client = security.client
        self.log_ports.rules = security.entrance

    def connector(
        self,
        *,
        on_lost: Callable[[str, Connection], None] | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        signs: bool = True,
    ) -> Connector:
        """Return a new connector; peers can make no requests over its connections.

        Args:
            on_lost: Called when a connection is gone.
            connect_seconds: Time limit for opening a connection.
            signs: Whether requests are signed; those of clients that are passed on are not.
        """
        return Connector(
            on_request=Dispatcher().handle,
            on_lost=on_lost,
            connect_seconds=connect_seconds,
            sign=self.sign if signs else None,
            tls=self.tls,
        )
