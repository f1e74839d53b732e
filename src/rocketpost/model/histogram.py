"""Histograms: counts of values by upper bounds, cheap enough for the paths of messages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Values of one kind, counted by size. Owned by the loop.

    Args:
        bounds: Upper bounds in ascending order. A value that equals a bound counts below it.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Number of values up to each bound and above the bound before; the last has no bound."""
        self.sum: float = 0
        """Sum of all values."""

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    def __add__(self, other: Histogram) -> Histogram:
        """Return the values of both, which have the same bounds."""
        assert other.bounds == self.bounds
        found = Histogram(self.bounds)
        found.counts = [
            mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)
        ]
        found.sum = self.sum + other.sum
        return found

    def add(self, value: float, count: int = 1) -> None:
        """Count a value, or several equal ones."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count
