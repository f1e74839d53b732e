"""The interface of a feature, and a set of features that is driven as one.

A feature is one thing that a broker does during a term: it serves requests, works in the
background, and handles events. It overrides only the methods that concern it. Constructing one
touches no file and starts no task; :meth:`Feature.open` recovers its state.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from rocketpost.model.ids import Position
from rocketpost.server.access.gate import Gate
from rocketpost.server.metrics.exposition import Family
from rocketpost.server.routes.route import Route
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.writer.log_writer import ArrivalListener
from rocketpost.store.config import StoreConfig
from rocketpost.store.dispatch.arrival import Arrival
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

    def abandon(self) -> None:
        """Release what :meth:`open` took: another feature could not open, so no term begins."""

    def routes(self) -> Sequence[Route]:
        """Return the routes of this feature's requests."""
        return ()

    async def run(self) -> None:
        """Work in the background until cancelled, which happens at the end of the term."""

    def arrival_listeners(self) -> Sequence[ArrivalListener]:
        """Return the functions to call with messages that become visible, once it is open."""
        return ()

    def topic_listeners(self) -> Mapping[str, ArrivalListener]:
        """Return the functions to call with the messages of single topics that become visible.

        Nearly all messages are of other topics, so these functions cost a send nothing.
        """
        return {}

    def connection_lost(self, connection: Connection) -> None:
        """Handle the loss of a client's connection."""

    def offset_reset(self, topic: str, queue_id: int) -> None:
        """Handle a group's offset that an administrator set."""
        self.offset_moved_back(topic, queue_id)

    def offset_moved_back(self, topic: str, queue_id: int) -> None:
        """Handle a group's offset that moved back, or its first offset."""

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Apply settings; called when a term opens and when settings change."""

    async def name_servers_changed(self, addresses: Sequence[str]) -> None:
        """Use these name servers from now on."""

    def access_changed(self, gate: Gate) -> None:
        """End held requests whose users have lost their rights."""

    def oldest_needed_position(self) -> Position | None:
        """Return the position of the oldest message that is needed and cannot be moved."""
        return None

    async def move_messages_before(self, position: int) -> None:
        """Move the messages still needed before a position: the log before it will be deleted.

        Raises:
            StoreError: They could not be moved, so they must not be deleted.
        """

    def runtime_values(self) -> dict[str, str]:
        """Return this feature's values for tools."""
        return {}

    def metrics(self) -> Iterable[Family]:
        """Return this feature's metrics."""
        return ()

    def waiting_counts(self) -> Mapping[str, int]:
        """Return the numbers of requests that wait, by the names of RocketMQ's processors."""
        return {}

    def close(self) -> None:
        """Answer waiting requests; background work has ended, messages are on disk."""

    async def save(self) -> None:
        """Save this feature's files for the last time in this term.

        Raises:
            StoreError: A file could not be saved; the file saved before is still there.
        """


class FeatureSet:
    """Features that are driven as one. Owned by the loop."""

    def __init__(self) -> None:
        self._features: tuple[Feature, ...] = ()

    def __iter__(self) -> Iterator[Feature]:
        return iter(self._features)

    def add(self, *features: Feature) -> None:
        """Add features; all calls reach them in this order."""
        self._features += features

    @property
    def held(self) -> int:
        """Number of requests that wait for something to happen before they are answered."""
        return sum(feature.held for feature in self._features)

    async def open(self) -> None:
        """Recover the state of every feature; if one fails, abandon those that are open.

        Raises:
            StoreError: The state of a feature cannot be read.
        """
        with contextlib.ExitStack() as opened:
            for feature in self._features:
                await feature.open()
                opened.callback(feature.abandon)
            opened.pop_all()

    def routes(self) -> list[Route]:
        """Return the routes of the requests of all features."""
        return [route for feature in self._features for route in feature.routes()]

    async def run(self) -> None:
        """Run the background work of every feature until cancelled, or until one fails."""
        async with asyncio.TaskGroup() as group:
            for feature in self._features:
                group.create_task(feature.run(), name=type(feature).__name__)

    def arrival_listeners(self) -> list[ArrivalListener]:
        """Return the functions of all features to call with messages that become visible."""
        listeners = [each for feature in self._features for each in feature.arrival_listeners()]
        by_topic: dict[str, list[ArrivalListener]] = {}
        for feature in self._features:
            for topic, listener in feature.topic_listeners().items():
                by_topic.setdefault(topic, []).append(listener)
        if by_topic:
            listeners.append(partial(_notify_by_topic, by_topic))
        return listeners

    def connection_lost(self, connection: Connection) -> None:
        """Notify every feature of a client's lost connection."""
        for feature in self._features:
            feature.connection_lost(connection)

    def offset_reset(self, topic: str, queue_id: int) -> None:
        """Notify every feature that an administrator set a group's offset."""
        for feature in self._features:
            feature.offset_reset(topic, queue_id)

    def offset_moved_back(self, topic: str, queue_id: int) -> None:
        """Notify every feature of a group's offset that moved back, or its first offset."""
        for feature in self._features:
            feature.offset_moved_back(topic, queue_id)

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Apply settings to every feature."""
        for feature in self._features:
            feature.configure(broker, store)

    def access_changed(self, gate: Gate) -> None:
        """Notify every feature that users or rules have changed."""
        for feature in self._features:
            feature.access_changed(gate)

    async def name_servers_changed(self, addresses: Sequence[str]) -> None:
        """Let every feature use these name servers."""
        for feature in self._features:
            await feature.name_servers_changed(addresses)

    def oldest_needed_position(self) -> Position | None:
        """Return the position of the oldest message that must not be deleted."""
        found = (feature.oldest_needed_position() for feature in self._features)
        return min((position for position in found if position is not None), default=None)

    async def move_messages_before(self, position: int) -> None:
        """Let every feature move the messages that it still needs before a position.

        Raises:
            StoreError: Some messages could not be moved.
        """
        for feature in self._features:
            await feature.move_messages_before(position)

    def runtime_values(self) -> dict[str, str]:
        """Return the values of all features for tools."""
        values: dict[str, str] = {}
        for feature in self._features:
            values |= feature.runtime_values()
        return values

    def waiting_counts(self) -> dict[str, int]:
        """Return the numbers of requests that wait, by the names of RocketMQ's processors."""
        counts: dict[str, int] = {}
        for feature in self._features:
            counts |= feature.waiting_counts()
        return counts

    def close(self) -> None:
        """Answer waiting requests."""
        for feature in self._features:
            feature.close()

    async def save(self) -> None:
        """Save the files of every feature, even if one fails; the last added is saved first.

        Raises:
            StoreError: A file could not be saved; the file saved before is still there.
        """
        async with contextlib.AsyncExitStack() as stack:
            for feature in self._features:
                stack.push_async_callback(feature.save)


def _notify_by_topic(
    listeners: Mapping[str, Sequence[ArrivalListener]], arrivals: list[Arrival]
) -> None:
    """Call the listeners of the topics of messages."""
    for arrival in arrivals:
        if arrival.topic in listeners:
            for listener in listeners[arrival.topic]:
                listener([arrival])
