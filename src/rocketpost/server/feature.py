"""The interface of a feature, and a set of features that is driven as one.

A feature is one thing that a broker does during a term: it has requests that it serves, work that
it does in the background, and events that it is told of. It overrides only the methods that concern
it. Constructing one touches no file and starts no task; :meth:`Feature.open` recovers its state.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence

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

    async def open(self) -> None:
        """Recover the state of this feature from the store and its files.

        Raises:
            StoreError: It cannot be read; the term cannot begin.
        """

    def routes(self) -> Sequence[Route]:
        """Return the routes of this feature's requests."""
        return ()

    async def run(self) -> None:
        """Work in the background until cancelled, which happens at the end of the term."""

    def arrived(self, messages: list[Arrival]) -> None:
        """Take note of messages that became visible."""

    def connection_lost(self, connection: Connection) -> None:
        """Take note of a client that is gone."""

    def offset_reset(self, topic: str, queue_id: int) -> None:
        """Take note that an administrator set the progress of a group."""
        self.offset_moved_back(topic, queue_id)

    def offset_moved_back(self, topic: str, queue_id: int) -> None:
        """Take note that a group was given an earlier offset, or its first one."""

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Apply settings that may change while the broker runs; called once before as well."""

    async def name_servers_changed(self, addresses: Sequence[str]) -> None:
        """Use these name servers from now on."""

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
        """Answer everybody who still waits; background work has ended, messages are on disk."""

    async def save(self) -> None:
        """Save what this feature keeps in files, for the last time in this term.

        Raises:
            StoreError: It could not be saved; what was saved before still is.
        """


class FeatureSet:
    """Features that are driven as one. Owned by the loop."""

    def __init__(self) -> None:
        self._features: tuple[Feature, ...] = ()
        self._arrived: list[Callable[[list[Arrival]], None]] = []

    def __iter__(self) -> Iterator[Feature]:
        return iter(self._features)

    def add(self, *features: Feature) -> None:
        """Add features; all calls reach them in this order."""
        self._features += features
        # Called for every batch of sends, so those who would ignore it are left out.
        self._arrived += [
            feature.arrived for feature in features if type(feature).arrived is not Feature.arrived
        ]

    @property
    def held(self) -> int:
        """Number of requests that wait for something to happen before they are answered."""
        return sum(feature.held for feature in self._features)

    async def open(self) -> None:
        """Recover the state of every feature.

        Raises:
            StoreError: That of one cannot be read.
        """
        for feature in self._features:
            await feature.open()

    def routes(self) -> list[Route]:
        """Return the routes of the requests of all features."""
        return [route for feature in self._features for route in feature.routes()]

    async def run(self) -> None:
        """Run the background work of every feature until cancelled, or until one fails."""
        async with asyncio.TaskGroup() as group:
            for feature in self._features:
                group.create_task(feature.run(), name=type(feature).__name__)

    def arrived(self, messages: list[Arrival]) -> None:
        """Tell every feature of messages that became visible."""
        for arrived in self._arrived:
            arrived(messages)

    def connection_lost(self, connection: Connection) -> None:
        """Tell every feature of a client that is gone."""
        for feature in self._features:
            feature.connection_lost(connection)

    def offset_reset(self, topic: str, queue_id: int) -> None:
        """Tell every feature that an administrator set the progress of a group."""
        for feature in self._features:
            feature.offset_reset(topic, queue_id)

    def offset_moved_back(self, topic: str, queue_id: int) -> None:
        """Tell every feature that a group was given an earlier offset, or its first one."""
        for feature in self._features:
            feature.offset_moved_back(topic, queue_id)

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Apply settings to every feature."""
        for feature in self._features:
            feature.configure(broker, store)

    async def name_servers_changed(self, addresses: Sequence[str]) -> None:
        """Have every feature use these name servers."""
        for feature in self._features:
            await feature.name_servers_changed(addresses)

    def oldest_needed_position(self) -> Position | None:
        """Return where the oldest message lies that must not be deleted."""
        found = (feature.oldest_needed_position() for feature in self._features)
        return min((position for position in found if position is not None), default=None)

    async def move_messages_before(self, position: int) -> None:
        """Have every feature move what it still needs away from before a position.

        Raises:
            StoreError: Not all could be moved.
        """
        for feature in self._features:
            await feature.move_messages_before(position)

    def runtime_values(self) -> dict[str, str]:
        """Return the values that tools show of all features."""
        values: dict[str, str] = {}
        for feature in self._features:
            values |= feature.runtime_values()
        return values

    def close(self) -> None:
        """Answer everybody who still waits."""
        for feature in self._features:
            feature.close()

    async def save(self) -> None:
        """Save the files of every feature, whichever fails; the last added is saved first.

        Raises:
            StoreError: A file could not be saved; what was saved before still is.
        """
        async with contextlib.AsyncExitStack() as stack:
            for feature in self._features:
                stack.push_async_callback(feature.save)
