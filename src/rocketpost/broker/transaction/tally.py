"""Counts of ended transactions, by outcome and topic."""

from __future__ import annotations

from collections import Counter
from typing import Final

from rocketpost.broker.transaction.table import Fate
from rocketpost.model.histogram import Histogram

FINISH_BOUNDS_S: Final = (5, 60, 600, 3600, 43_200, 86_400)
"""Upper bounds of the times until the end of a transaction, in seconds."""


class TransactionTally:
    """Counts of transactions that have ended. Owned by the event loop."""

    def __init__(self) -> None:
        self._ended: Counter[tuple[Fate, str]] = Counter()
        self.times: dict[str, Histogram] = {}
        """Times in seconds from a half to its commit, by topic."""

    def count(self, fate: Fate, topic: str, after_ms: int | None = None) -> None:
        """Count the end of a transaction.

        Args:
            fate: The outcome.
            topic: The destination of its message.
            after_ms: The age of its half, if that is known.
        """
        self._ended[fate, topic] += 1
        if fate is Fate.COMMIT and after_ms is not None:
            times = self.times.get(topic)
            if times is None:
                times = self.times[topic] = Histogram(FINISH_BOUNDS_S)
            times.add(max(0, after_ms) / 1000)

    def total(self, fate: Fate) -> int:
        """Return the number of transactions with an outcome."""
        return sum(count for (each, _), count in self._ended.items() if each is fate)

    def by_topic(self, fate: Fate) -> list[tuple[str, int]]:
        """Return the number of transactions with an outcome, for each topic that has some."""
        return [(topic, count) for (each, topic), count in self._ended.items() if each is fate]
