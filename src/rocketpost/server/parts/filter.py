"""Filters by expression: the table of the groups' filters on disk, and what the settings say."""

from __future__ import annotations

from rocketpost.broker.filters import FilterRules, Filters
from rocketpost.codec.bloom import bloom_shape
from rocketpost.server.config import BrokerConfig
from rocketpost.server.part import Part
from rocketpost.server.persistence import File, Persistence, Saved
from rocketpost.store.config import StoreConfig

_SAVE_SECONDS = 10.0


class FilterPart(Part):
    """What there is to filters beside pulls and pops. Owned by the loop.

    Args:
        table_file: Where the filters of groups are kept.
    """

    def __init__(self, *, filters: Filters, table_file: File) -> None:
        self._filters = filters
        self._persistence = Persistence(
            [Saved(filters.table, table_file, at_once=False)], interval_s=_SAVE_SECONDS
        )

    async def run(self) -> None:
        """Keep the table on disk."""
        await self._persistence.run()

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Take the settings about filters."""
        self._filters.rules = FilterRules(
            enabled=broker.property_filter, judges_retries=broker.filter_retries
        )
        table = self._filters.table
        table.keep_ms = broker.filter_keep_ms
        table.bloom = bloom_shape(broker.bloom_error_percent, broker.bloom_consumers)

    def states(self) -> dict[str, str]:
        """Return how many filters groups have."""
        return {"consumerFilters": str(len(self._filters.table))}

    async def save(self) -> None:
        """Save the table."""
        await self._persistence.close()
