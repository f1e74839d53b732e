"""Samples of numbers over time, in memory: fine ones for an hour and one a minute for a day.

Only the groups that had a backlog are remembered, and at most a thousand of them, and a hundred
topics with traffic, so that memory is bounded: 17 KB each.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

FINE_SAMPLES: Final = 720
MINUTE_SAMPLES: Final = 1440
SERIES_MAX: Final = 1000
UNKNOWN: Final = float("nan")


class Point(NamedTuple):
    """A sample; the value is None if it was unknown then."""

    at_ms: int
    value: float | None


class Ring:
    """The last samples of one number, with their times."""

    __slots__ = ("_next", "_size", "_times", "_values")

    def __init__(self, size: int) -> None:
        self._size = size
        self._next = 0
        self._times = array("q")
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._times)

    def add(self, at_ms: int, value: float | None) -> None:
        """Add a sample; the oldest one is dropped if the ring is full."""
        number = UNKNOWN if value is None else float(value)
        if len(self._times) < self._size:
            self._times.append(at_ms)
            self._values.append(number)
            return
        self._times[self._next] = at_ms
        self._values[self._next] = number
        self._next = (self._next + 1) % self._size

    def points(self, since_ms: int = 0) -> Iterator[Point]:
        """Yield the samples since a time, oldest first."""
        for index in range(len(self._times)):
            place = (self._next + index) % len(self._times)
            value = self._values[place]
            if self._times[place] >= since_ms:
                yield Point(self._times[place], None if value != value else value)

    @property
    def last_ms(self) -> int:
        """Time of the newest sample; 0 if there is none."""
        return self._times[self._next - 1] if self._times else 0


class Series:
    """One number over an hour and over a day."""

    __slots__ = ("fine", "minutes")

    def __init__(self) -> None:
        self.fine = Ring(FINE_SAMPLES)
        self.minutes = Ring(MINUTE_SAMPLES)

    def add(self, at_ms: int, value: float | None) -> None:
        """Add a sample."""
        self.fine.add(at_ms, value)
        if at_ms - self.minutes.last_ms >= 60_000:
            self.minutes.add(at_ms, value)


class History:
    """Series by name, with a bound on their number. Belongs to the event loop."""

    def __init__(self, series_max: int = SERIES_MAX) -> None:
        self._series_max = series_max
        self._series: dict[str, Series] = {}

    def add(self, name: str, at_ms: int, value: float | None) -> None:
        """Add a sample; a series that was always 0 is not begun."""
        series = self._series.get(name)
        if series is None:
            if not value or len(self._series) >= self._series_max:
                return
            series = self._series[name] = Series()
        series.add(at_ms, value)

    def keep(self, names: set[str]) -> None:
        """Forget the series of other names: their subjects are gone."""
        for name in self._series.keys() - names:
            del self._series[name]

    def find(self, name: str) -> Series | None:
        """Return a series, or None if nothing is remembered."""
        return self._series.get(name)

    @property
    def is_full(self) -> bool:
        """Whether no further series can be begun."""
        return len(self._series) >= self._series_max
