"""The broker's counters: counts stored messages, and samples rates every second."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from rocketpost.broker.stats import BrokerStats
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature
from rocketpost.server.writer.log_writer import ArrivalListener

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

    def arrival_listeners(self) -> Sequence[ArrivalListener]:
        """Have arrivals counted as stored messages."""
        return (self._stats.count_stored,)
