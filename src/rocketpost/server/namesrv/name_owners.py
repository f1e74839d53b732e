"""The users that own the names of brokers, if access control is on.

A name belongs to the user that registered the first of its brokers, until the last one is gone. No
other user may register a broker of that name or remove one, even with all rights on the cluster.
Only super users may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import NoPermission
from rocketpost.server.access.gate import Gate
from rocketpost.server.routes.route import Reply, Route
from rocketpost.transport.connection import Connection

_CLAIMS: Final = (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER)


class NameOwners:
    """The owners of names. Owned by the loop.

    Args:
        gate: Knows the user of each request.
        addresses: Returns the addresses of the brokers of a cluster and name, by id.
    """

    def __init__(self, gate: Gate, addresses: Callable[[str, str], Mapping[int, str]]) -> None:
        self._gate = gate
        self._addresses = addresses
        self._owners: dict[str, str] = {}

    def guard(self, routes: Iterable[Route]) -> list[Route]:
        """Return routes of which those that claim a name check its owner."""
        return [
            route._replace(handler=self._checked(route.handler)) if route.code in _CLAIMS else route
            for route in routes
        ]

    def _checked(self, handler: Callable[..., Reply]) -> Callable[..., Reply]:
        def handle(connection: Connection, command: Command, header: Any) -> Reply:
            user = self._gate.user_of(command)
            cluster, name = header.cluster_name, header.broker_name
            if user is None:  # the request needs no login (authenticationWhitelist)
                return handler(connection, command, header)
            if not self._addresses(cluster, name):
                self._owners.pop(name, None)
            owner = self._owners.get(name)
            if owner not in (None, user.name) and not user.is_super:
                raise NoPermission(
                    f"the broker name {name} belongs to the user {owner}, not to {user.name}; give "
                    "this broker another name"
                )
            reply = handler(connection, command, header)
            if self._addresses(cluster, name):
                self._owners.setdefault(name, user.name)
            else:
                self._owners.pop(name, None)
            return reply

        return handle
