"""The broker's counters: counts stored messages, and samples rates every second."""

from __future__ import annotations

import asyncio
from typing import Final

from rocketpost.broker.stats import BrokerStats
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature
from rocketpost.store.draft import Arrival

_SAMPLE_SECONDS: Final = 1.0


class StatisticsFeature(Feature):
    """Keeps the counters. Owned by the loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._stats: BrokerStats = context.stats

    async def run(self) -> None:
        """Sample the counters every second."""
        while True:
            await asyncio.sleep(_SAMPLE_SECONDS)
            self._stats.sample()

    def arrived(self, messages: list[Arrival]) -> None:
        """Count stored messages."""
        self._stats.count_stored(messages)
