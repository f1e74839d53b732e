"""The broker's counters: counts stored messages, and samples rates every second."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from rocketpost.broker.stats import BrokerStats
from rocketpost.model.names import DLQ_PREFIX
from rocketpost.model.properties import RETRY_TOPIC
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature
from rocketpost.server.writer.log_writer import ArrivalListener
from rocketpost.store.dispatch.arrival import Arrival

_SAMPLE_SECONDS: Final = 1.0


class StatisticsFeature(Feature):
    """Keeps the counters. Owned by the loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._stats: BrokerStats = context.stats
        self._store = context.store

    async def run(self) -> None:
        """Sample the counters every second."""
        while True:
            await asyncio.sleep(_SAMPLE_SECONDS)
            self._stats.sample()

    def arrival_listeners(self) -> Sequence[ArrivalListener]:
        """Return the functions that count stored messages and dead letters."""
        return (self._stats.count_stored, self._count_dead_letters)

    def _count_dead_letters(self, arrivals: Sequence[Arrival]) -> None:
        """Count new dead letters by group and by the topic that they had first."""
        for arrival in arrivals:
            if arrival.topic.startswith(DLQ_PREFIX):
                group = arrival.topic.removeprefix(DLQ_PREFIX)
                for position in arrival.positions:
                    record = self._store.record_at(position)
                    topic = "" if record is None else record.properties.get(RETRY_TOPIC, "")
                    self._stats.dead_letters[group, topic] += 1
