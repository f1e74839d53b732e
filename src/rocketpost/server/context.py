"""The state that a broker process keeps from term to term, as its features see it.

A process opens one :class:`BrokerContext` when it starts and closes it when it stops. A term of
office (``server.term``) builds its features from it. A leader has a little more to share, which
lives as long as its term: :class:`LeaderContext`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, Self

from rocketpost.broker.dedup.service import DedupService
from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.group.membership import Membership
from rocketpost.broker.group.queue_locks import QueueLocks
from rocketpost.broker.kinds import HalfMessages
from rocketpost.broker.send import SendService
from rocketpost.broker.stats import BrokerStats
from rocketpost.broker.timer.admission import TimedMessages, TimerRules
from rocketpost.codec.record import pack_host
from rocketpost.server.access.control import AccessControl
from rocketpost.server.clock import BrokerClock
from rocketpost.server.metrics.readiness import Health
from rocketpost.server.peers import Peers
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.settings.live_config import LiveConfig
from rocketpost.server.tables.broker_tables import Identity, Tables
from rocketpost.server.tables.persistence import Persistence
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Appended, Draft
from rocketpost.store.message_store import MessageStore
from rocketpost.transport.turns import Turns


class Writer(Protocol):
    """Stores the broker's own messages as safely as it stores those of clients."""

    def put(self, drafts: Sequence[Draft], /) -> asyncio.Future[list[Appended]]:
        """Store messages. The result lists the stored ones: all, or the first few.

        Raises:
            StoreError: No message can be stored now.
        """
        ...

    def commit(self) -> None:
        """Write and answer everything that was sent in this loop iteration."""
        ...

    async def wait_kept(self) -> bool:
        """Wait until everything written so far is in the log for good; tell whether it is."""
        ...

    async def wait_for_slaves(self) -> None:
        """Wait until enough slaves have what is visible now; at most as long as a send waits."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerContext:
    """The state of a broker process. Owned by the loop.

    Args:
        identity: The broker's names and address.
        clock: The broker's clock.
        settings: The settings in force.
        store: The messages.
        tables: The tables under ``config/``.
        persistence: Saves the tables.
        repairs: The faults found in the tables at the start, and their repairs.
        membership: The connected clients.
        locks: The queues that consumers have locked.
        filters: The filters of consumer groups.
        stats: The counters.
        turns: The queue of work that is done in slices.
        name_servers: Returns the addresses of the name servers.
        peers: Makes the connections to other servers.
        access: Users, rules, and the gate that requests pass.
        health: Tells whether clients can be served.
    """

    identity: Identity
    clock: BrokerClock
    settings: LiveConfig
    store: MessageStore
    tables: Tables
    persistence: Persistence
    repairs: tuple[str, ...]
    membership: Membership
    locks: QueueLocks
    filters: Filters
    stats: BrokerStats
    turns: Turns
    name_servers: Callable[[], Sequence[str]]
    peers: Peers
    access: AccessControl
    health: Health = field(default_factory=Health)

    @property
    def broker_config(self) -> BrokerConfig:
        """The broker's settings as they are now."""
        return self.settings.section(BrokerConfig)

    @property
    def store_config(self) -> StoreConfig:
        """The store's settings as they are now."""
        return self.settings.section(StoreConfig)

    @property
    def store_host(self) -> bytes:
        """The broker's address as records carry it."""
        return pack_host(self.identity.ip, self.identity.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderContext(BrokerContext):
    """A broker's state, and the objects that the features of one leader's term share.

    Args:
        writer: Stores messages.
        sends: Checks sends and prepares their messages.
        dedup: Knows which messages are duplicates.
        halves: Admits the first halves of transactions.
        timed: Admits timed messages.
        timer_rules: Returns the rules for timed messages.
    """

    writer: Writer
    sends: SendService
    dedup: DedupService
    halves: HalfMessages
    timed: TimedMessages
    timer_rules: Callable[[], TimerRules]

    @classmethod
    def extend(cls, context: BrokerContext, **own: Any) -> Self:
        """Return ``context`` with the fields of a leader."""
        shared = {each.name: getattr(context, each.name) for each in fields(BrokerContext)}
        return cls(**shared, **own)
