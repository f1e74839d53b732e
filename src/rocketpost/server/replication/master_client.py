"""Requests of a slave to its master."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocketpost.codec.command import Command
from rocketpost.errors import NotConnected
from rocketpost.server.peers import Peers
from rocketpost.server.replication.master_address import MasterAddress
from rocketpost.transport.connection import Connection

ANSWER_SECONDS: Final = 3.0


class MasterClient:
    """The connection at which a slave's master serves requests. Owned by the loop."""

    def __init__(self, master: MasterAddress, peers: Peers) -> None:
        self.master = master
        """Where the master is."""
        self._connector = peers.connector()
        self._address = ""

    async def connect(self) -> Connection:
        """Return the connection to the master; open it if necessary.

        Raises:
            NotConnected: The master is not known, or cannot be reached.
        """
        address = self.master.remoting
        if not address:
            raise NotConnected("no name server has told where the master is")
        if self._address != address:
            self._connector.drop(self._address)
            self._address = address
        return await self._connector.connect(address)

    async def request(
        self,
        code: int,
        *,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float = ANSWER_SECONDS,
    ) -> Command:
        """Send a request to the master and return the response, even if its code is an error.

        Raises:
            NotConnected: The master is not known, or cannot be reached.
            ConnectionLost: The connection broke first.
            RequestTimeout: No response within ``timeout`` seconds.
        """
        connection = await self.connect()
        return await connection.request(code, fields=fields, body=body, timeout=timeout)

    async def close(self) -> None:
        """Close the connection."""
        await self._connector.close()
