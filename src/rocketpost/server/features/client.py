"""Clients: heartbeats, locks, relayed requests, notices to groups, expiry of silent clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature
from rocketpost.server.handlers.client import ClientHandlers, LockHandlers
from rocketpost.server.handlers.relay import RelayHandlers
from rocketpost.server.notices import Notices
from rocketpost.server.replication.strict_locks import StrictLocks
from rocketpost.server.routes.route import Route
from rocketpost.transport.connection import Connection

_EXPIRY_SECONDS_MAX: Final = 10


class ClientFeature(Feature):
    """Serves clients and notices when they leave. Owned by the loop.

    Args:
        context: The state of the broker.
        others: Returns the addresses of the other members of this broker's group. If given, most
            members must agree to a lock of a queue.
        grants_locks: Tells whether clients may lock queues here.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        others: Callable[[], Sequence[str]] | None = None,
        grants_locks: Callable[[], bool] = lambda: True,
    ) -> None:
        self._member_expiry_ms = context.broker_config.member_expiry_ms
        tables = context.tables
        self._locks = LockHandlers(locks=context.locks, topics=tables.topics, grants=grants_locks)
        self._strict_locks: StrictLocks | None = None
        if others is not None:
            replicas = context.broker_config.total_replicas
            self._strict_locks = StrictLocks(
                self._locks, others=others, replicas=replicas, peers=context.peers
            )
        self._relays = RelayHandlers(
            membership=context.membership,
            tables=tables,
            records=context.store,
            broker_name=context.identity.name,
        )
        self._handlers = ClientHandlers(
            membership=context.membership,
            groups=tables.groups,
            topics=tables.topics,
            locks=context.locks,
            filters=context.filters,
            notices=Notices(
                membership=context.membership,
                groups=tables.groups,
                notifies=lambda: context.broker_config.notify_members,
                turns=context.turns,
            ),
        )

    def commit_locks(self, commit: Callable[[], Awaitable[None]]) -> None:
        """Answer locks once the group that this broker leads has committed them.

        Args:
            commit: Returns once the group has committed them.
        """
        self._locks.commit = commit

    def routes(self) -> Sequence[Route]:
        """Return the routes of clients, and of requests about clients."""
        locks = self._strict_locks or self._locks
        return [*self._handlers.routes(), *locks.routes(), *self._relays.routes()]

    async def run(self) -> None:
        """Remove silent clients; check more often if they expire sooner."""
        seconds = min(_EXPIRY_SECONDS_MAX, max(1, self._member_expiry_ms // 12_000))
        try:
            while True:
                await asyncio.sleep(seconds)
                self.expire()
        finally:
            if self._strict_locks is not None:
                await self._strict_locks.close()

    def expire(self) -> None:
        """Remove silent clients and expired locks."""
        self._handlers.expire()

    def connection_lost(self, connection: Connection) -> None:
        """Remove a client from its groups."""
        self._handlers.connection_lost(connection)
