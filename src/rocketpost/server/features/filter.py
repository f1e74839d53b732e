"""Filters by expression, of groups and with names: their requests and settings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rocketpost.broker.filter.filters import FilterRules
from rocketpost.codec.bloom import bloom_shape
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature
from rocketpost.server.handlers.filter import FilterHandlers
from rocketpost.server.routes.route import Route
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.tables.persistence import Owner
from rocketpost.store.config import StoreConfig


class FilterFeature(Feature):
    """Serves requests about filters and applies their settings. Owned by the loop."""

    def __init__(self, context: BrokerContext) -> None:
        tables = context.tables
        self._filters = context.filters
        self._named = tables.named
        self._persistence = context.persistence
        self._handlers = FilterHandlers(
            filters=context.filters,
            named=tables.named,
            save=partial(context.persistence.save, Owner.NAMED_FILTERS),
        )

    async def open(self) -> None:
        """Follow changes of the named filters."""
        self._named.users = self._filters.users
        self._named.on_change = self._named_changed

    def routes(self) -> Sequence[Route]:
        """Return the routes of requests about named filters."""
        return self._handlers.routes()

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Apply the settings of filters."""
        self._filters.rules = FilterRules(
            enabled=broker.property_filter, filters_retries=broker.filter_retries
        )
        if self._named.enabled != broker.named_filter:
            self._named.enabled = broker.named_filter
            self._filters.forget()
        table = self._filters.table
        table.keep_ms = broker.filter_keep_ms
        table.bloom = bloom_shape(broker.bloom_error_percent, broker.bloom_consumers)

    def runtime_values(self) -> dict[str, str]:
        """Return the numbers of filters."""
        return {
            "consumerFilters": str(len(self._filters.table)),
            "namedFilters": str(len(self._named)),
        }

    def _named_changed(self) -> None:
        self._filters.forget()
        self._persistence.note_change(owner=Owner.NAMED_FILTERS)
