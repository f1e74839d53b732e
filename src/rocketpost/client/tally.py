"""Rates over the last minute, cheap enough to count every message."""

from __future__ import annotations

from typing import Final

BUCKET_SECONDS: Final = 10
BUCKETS: Final = 6


class Tally:
    """Counts events and their durations in six buckets of ten seconds.

    Not thread-safe: belongs to the event loop.
    """

    __slots__ = ("_at", "_counts", "_spent", "total")

    def __init__(self) -> None:
        self._at = 0
        self._counts = [0] * BUCKETS
        self._spent = [0.0] * BUCKETS
        self.total = 0
        """The number of all events so far."""

    def count(self, events: int, spent: float, *, now: float) -> None:
        """Add ``events`` that took ``spent`` seconds in total."""
        at = int(now // BUCKET_SECONDS)
        if at != self._at:
            self._turn(at)
        self._counts[at % BUCKETS] += events
        self._spent[at % BUCKETS] += spent
        self.total += events

    def per_second(self, *, now: float) -> float:
        """Return the number of events per second."""
        self._turn(int(now // BUCKET_SECONDS))
        return sum(self._counts) / (BUCKET_SECONDS * BUCKETS)

    def mean_ms(self, *, now: float) -> float:
        """Return the mean duration of an event in milliseconds."""
        self._turn(int(now // BUCKET_SECONDS))
        count = sum(self._counts)
        return sum(self._spent) / count * 1000 if count else 0.0

    def _turn(self, at: int) -> None:
        for passed in range(max(self._at + 1, at - BUCKETS + 1), at + 1):
            self._counts[passed % BUCKETS] = 0
            self._spent[passed % BUCKETS] = 0.0
        self._at = max(self._at, at)
