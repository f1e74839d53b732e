"""Pulling: its requests, and the pulls that are held until a message arrives."""

from __future__ import annotations

from collections.abc import Sequence

from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.group.membership import Membership
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.pull.reader import PullLimits, QueueReader
from rocketpost.broker.pull.service import PullRules, PullService
from rocketpost.broker.pull.subscriptions import PullSubscriptions
from rocketpost.broker.stats import BrokerStats
from rocketpost.broker.topic import TopicTable
from rocketpost.model.topic import PERM_READ
from rocketpost.server.feature import Feature
from rocketpost.server.handlers.pull import PullHandler
from rocketpost.server.long_polling import HeldLimits, LongPolls
from rocketpost.server.route import Route
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.settings.limits import pull_limits
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Arrival
from rocketpost.store.message_store import MessageStore
from rocketpost.transport.connection import Connection
from rocketpost.transport.turns import Turns


class PullFeature(Feature):
    """Everything about pulling. Owned by the loop.

    Args:
        config: The settings at the start; :meth:`configure` takes later ones.
        turns: Where pulls that are woken wait for their turn.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        membership: Membership,
        offsets: OffsetTable,
        filters: Filters,
        stats: BrokerStats,
        config: BrokerConfig,
        turns: Turns,
    ) -> None:
        self._reader = QueueReader(records=store, limits=pull_limits(config))
        self._take(config)
        self.service = PullService(
            reader=self._reader,
            topics=topics,
            groups=groups,
            subscriptions=PullSubscriptions(filters=filters, membership=membership, groups=groups),
            offsets=offsets,
            stats=stats,
            rules=lambda: self._rules,
        )
        self.polls = LongPolls(
            resume=self.service.resume,
            view=store.view,
            limits=lambda: self._held_limits,
            turns=turns,
        )
        self._handler = PullHandler(service=self.service, polls=self.polls)

    @property
    def limits(self) -> PullLimits:
        """Bounds on what one pull may return just now."""
        return self._reader.limits

    @property
    def held(self) -> int:
        """Number of pulls that wait for messages."""
        return len(self.polls)

    def routes(self) -> Sequence[Route]:
        """Return the routes of both kinds of pull."""
        return self._handler.routes()

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Take the settings about pulls."""
        self._reader.limits = pull_limits(broker)
        self._take(broker)

    def arrived(self, messages: list[Arrival]) -> None:
        """Answer held pulls that have something to return now."""
        self.polls.arrived(messages)

    def connection_lost(self, connection: Connection) -> None:
        """Forget the held pulls of a client."""
        self.polls.drop(connection)

    def runtime_values(self) -> dict[str, str]:
        """Return how many pulls are held."""
        return {"heldPulls": str(self.held)}

    def close(self) -> None:
        """Answer the held pulls."""
        self.polls.close()

    def _take(self, config: BrokerConfig) -> None:
        self._rules = PullRules(
            broker_readable=bool(config.permission & PERM_READ),
            lite_pull=config.lite_pull,
            long_polling=config.long_polling,
            short_polling_ms=config.short_polling_ms,
        )
        self._held_limits = HeldLimits(config.held_pulls_max, config.held_of_one_max)
