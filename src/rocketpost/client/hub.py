"""The connections that clients of one instance name share.

Clients of one loop whose ``instance_name`` is the same have the same client id: to a broker they
are one client with several groups, so they use one connection to each server. The connections are
made with the first of them and closed with the last. A client without a name has its own.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Protocol

from rocketpost.client.config import ClientConfig
from rocketpost.client.name_servers import NameServers
from rocketpost.codec.command import Command
from rocketpost.errors import ClientError
from rocketpost.transport.connection import Connection
from rocketpost.transport.connector import Connector


class Member(Protocol):
    """A session, as its hub sees it."""

    @property
    def groups(self) -> list[tuple[str, str]]:
        """Its groups, each with its kind."""
        ...  # pragma: no cover

    def serves(self, command: Command) -> bool | None:
        """Tell whether it serves such requests, and this one; None if it cannot tell them apart."""
        ...  # pragma: no cover

    def serve(self, connection: Connection, command: Command) -> None:
        """Serve a request of a broker."""
        ...  # pragma: no cover

    def connected(self, address: str) -> None:
        """Note that a server has been connected to."""
        ...  # pragma: no cover

    def disconnected(self, address: str) -> None:
        """Note that a connection is gone."""
        ...  # pragma: no cover


class Hub:
    """Connector and name servers of all clients of one id. Belongs to the event loop."""

    def __init__(self, config: ClientConfig, make_connector: Callable[..., Connector]) -> None:
        self.config = config
        self.connector = make_connector(
            on_request=self._on_request,
            on_made=self._on_made,
            on_lost=self._on_lost,
            sign=config.credentials.sign if config.credentials else None,
        )
        self.name_servers = NameServers(config, self.connector)
        self.heard: dict[str, float] = {}
        """When each server last answered any of the clients, on the loop's clock."""
        self._members: list[Member] = []

    def join(self, member: Member) -> None:
        """Let one more client use the connections."""
        self._members.append(member)

    async def leave(self, member: Member) -> None:
        """Stop using the connections; the last client closes them."""
        if member in self._members:
            self._members.remove(member)
        if not self._members:
            _forget(self)
            await self.connector.close()

    def check_group(self, member: Member, kind: str, group: str) -> None:
        """Raise if another client of this id has the group already.

        Raises:
            ClientError: It has: brokers could not tell the two apart.
        """
        for other in self._members:
            if other is not member and (kind, group) in other.groups:
                raise ClientError(
                    f"the {kind} group {group} is in use by another client of the instance_name "
                    f"{self.config.instance_name!r}; give each an instance_name of its own"
                )

    def _on_request(self, connection: Connection, command: Command) -> None:
        members = self._members
        if len(members) > 1:
            answers = [(member, member.serves(command)) for member in members]
            takers = [member for member, takes in answers if takes]
            every = [member for member, takes in answers if takes is not False]
            members = takers or every or members
        members[0].serve(connection, command)

    def _on_made(self, address: str, connection: Connection) -> None:
        for member in list(self._members):
            member.connected(address)

    def _on_lost(self, address: str, connection: Connection) -> None:
        for member in list(self._members):
            member.disconnected(address)


_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Hub]] = (
    weakref.WeakKeyDictionary()
)


def find_hub(config: ClientConfig, client_id: str, make_connector: Callable[..., Connector]) -> Hub:
    """Return the hub of a client id; a new one for a client without a name.

    Raises:
        ClientError: Clients of that name have other name servers or credentials.
    """
    if not config.instance_name:
        return Hub(config, make_connector)
    hubs = _hubs.setdefault(asyncio.get_running_loop(), {})
    hub = hubs.get(client_id)
    if hub is None:
        hub = hubs[client_id] = Hub(config, make_connector)
    elif _where(hub.config) != _where(config):
        raise ClientError(
            f"clients of the instance_name {config.instance_name!r} share their connections, so "
            "they must have the same name servers and credentials; give each a name of its own"
        )
    return hub


def _where(config: ClientConfig) -> tuple[object, ...]:
    return (config.name_servers, config.address_server, config.address_group, config.credentials)


def _forget(hub: Hub) -> None:
    for hubs in _hubs.values():
        for client_id in [client_id for client_id, each in hubs.items() if each is hub]:
            del hubs[client_id]
