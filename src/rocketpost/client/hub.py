"""Connections shared by clients of the same instance name.

Clients of one loop with the same ``instance_name`` have the same client id: to a broker they are
one client with several groups, so they use one connection to each server. The first client opens
the connections and the last one closes them. A client without a name has its own.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Protocol

from rocketpost.client.config import ClientConfig
from rocketpost.client.name_servers import NameServers
from rocketpost.client.tls import client_context
from rocketpost.codec.command import Command
from rocketpost.errors import ClientError
from rocketpost.kernel import FORM
from rocketpost.kernel.client_sends import read_answers
from rocketpost.transport.connection import Connection
from rocketpost.transport.connector import Connector


class HubMember(Protocol):
    """A session that uses a hub."""

    @property
    def groups(self) -> list[tuple[str, str]]:
        """Its groups, each with its kind."""
        ...

    def serves(self, command: Command) -> bool | None:
        """Tell whether it serves this request; None if it serves such requests of any group."""
        ...

    def serve(self, connection: Connection, command: Command) -> None:
        """Serve a request of a broker."""
        ...

    def handle_connected(self, address: str) -> None:
        """React to a new connection to a server."""
        ...

    def handle_disconnected(self, address: str) -> None:
        """React to the loss of a connection."""
        ...


class Hub:
    """Connector and name servers of all clients with one id. Belongs to the event loop."""

    def __init__(self, config: ClientConfig, make_connector: Callable[..., Connector]) -> None:
        self.config = config
        self.connector = make_connector(
            on_request=self._on_request,
            on_made=self._on_made,
            on_lost=self._on_lost,
            sign=config.credentials.sign if config.credentials else None,
            read_answers=read_answers if FORM.is_compiled else None,
            tls=client_context(config),
        )
        self.name_servers = NameServers(config, self.connector)
        self._members: list[HubMember] = []

    def join(self, member: HubMember) -> None:
        """Add a client to the users of the connections."""
        self._members.append(member)

    async def leave(self, member: HubMember) -> None:
        """Stop using the connections; the last client closes them."""
        if member in self._members:
            self._members.remove(member)
        if not self._members:
            _forget(self)
            await self.connector.close()

    def check_group(self, member: HubMember, kind: str, group: str) -> None:
        """Raise if another client with this id has the group already.

        Raises:
            ClientError: Another client has it; brokers could not tell the two apart.
        """
        for other in self._members:
            if other is not member and (kind, group) in other.groups:
                raise ClientError(
                    f"the {kind} group {group} is in use by another client with the instance_name "
                    f"{self.config.instance_name!r}; give each its own instance_name"
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
            member.handle_connected(address)

    def _on_lost(self, address: str, connection: Connection) -> None:
        for member in list(self._members):
            member.handle_disconnected(address)


_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Hub]] = (
    weakref.WeakKeyDictionary()
)


def find_hub(config: ClientConfig, client_id: str, make_connector: Callable[..., Connector]) -> Hub:
    """Return the hub of a client id; a new one for a client without an instance name.

    Raises:
        ClientError: Clients with that name have other name servers, credentials or TLS.
    """
    if not config.instance_name:
        return Hub(config, make_connector)
    hubs = _hubs.setdefault(asyncio.get_running_loop(), {})
    hub = hubs.get(client_id)
    if hub is None:
        hub = hubs[client_id] = Hub(config, make_connector)
    elif _where(hub.config) != _where(config):
        raise ClientError(
            f"clients with the instance_name {config.instance_name!r} share their connections, so "
            "they must have the same name servers, credentials and TLS; or give each its own name"
        )
    return hub


def _where(config: ClientConfig) -> tuple[object, ...]:
    return (
        config.name_servers,
        config.address_server,
        config.address_group,
        config.credentials,
        config.tls,
    )


def _forget(hub: Hub) -> None:
    for hubs in _hubs.values():
        for client_id in [client_id for client_id, each in hubs.items() if each is hub]:
            del hubs[client_id]
