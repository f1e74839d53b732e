"""The interface of a feature: one thing that a broker does.

A feature has requests that it serves, work that it does in the background, and events that it is
told of. ``server.services`` makes the features and ``server.broker`` drives them all alike; a
feature overrides only the methods that concern it.
"""

from __future__ import annotations

from collections.abc import Sequence

from rocketpost.model.ids import Position
from rocketpost.server.route import Route
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Arrival
from rocketpost.transport.connection import Connection


class Feature:
    """One thing that a broker does. Owned by the loop."""

    @property
    def held(self) -> int:
        """Number of requests that wait for something to happen before they are answered."""
        return 0

    def routes(self) -> Sequence[Route]:
        """Return the routes of this feature's requests."""
        return ()

    async def run(self) -> None:
        """Do what is to be done in the background; cancelled when the broker stops."""

    def arrived(self, messages: list[Arrival]) -> None:
        """Hear of messages that became visible."""

    def connection_lost(self, connection: Connection) -> None:
        """Hear of a client that went."""

    def offset_reset(self, topic: str, queue_id: int) -> None:
        """Hear that the progress of a group was set by hand."""

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Take settings that may change while the broker runs; called once at the start as well."""

    def oldest_needed_position(self) -> Position | None:
        """Return where the oldest message lies that is to be delivered and cannot be moved."""
        return None

    async def move_messages_before(self, position: int) -> None:
        """Move what is still needed away from before a position: that is about to be deleted.

        Raises:
            StoreError: It could not be moved, so it must not be deleted.
        """

    def runtime_values(self) -> dict[str, str]:
        """Return the values that tools show of this feature."""
        return {}

    def close(self) -> None:
        """Answer who still waits; background work has ended, appended messages are on disk."""

    async def save(self) -> None:
        """Save what this feature keeps in files, for the last time.

        Raises:
            StoreError: It could not be saved; what was saved before still is.
        """
