"""Bounds of columns, derived from the filters of a query. Pure.

Spark offers filters of one column and a literal, all joined by AND. Filters of some columns become
bounds: **a row that passes every filter is within them**. The reverse need not be true, because
Spark applies all filters to the rows that are read.

A filter of an unknown kind, or with a literal of an unexpected type, gives no bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from rocketpost.spark.records.fields import TIME_MAX_MS, TIME_MIN_MS
from rocketpost.spark.source.plan import Range

GAP_MAX: Final = 32
"""Offsets with gaps up to this are read together, because one pull returns as many."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class TextBounds:
    """Bounds of the texts in a column. If there is any bound, null is outside.

    Attributes:
        values: The allowed texts; None for all.
        prefix: The prefix of allowed texts.
    """

    values: frozenset[str] | None = None
    prefix: str = ""

    @property
    def is_any(self) -> bool:
        """Whether there is no bound."""
        return self.values is None and not self.prefix

    def admits(self, text: str | None) -> bool:
        """Return whether a text is within the bounds."""
        if text is None:
            return self.is_any
        return text.startswith(self.prefix) and (self.values is None or text in self.values)

    def restrict_to(self, values: Iterable[str]) -> TextBounds:
        """Return these bounds with the further bound that the text is one of ``values``."""
        kept = frozenset(text for text in values if self.admits(text))
        return TextBounds(kept, self.prefix)

    def restrict_to_prefix(self, prefix: str) -> TextBounds:
        """Return these bounds with the further bound that the text has a prefix."""
        if self.values is not None:
            return replace(self, values=frozenset(t for t in self.values if t.startswith(prefix)))
        if self.prefix.startswith(prefix):
            return self
        return (
            TextBounds(None, prefix) if prefix.startswith(self.prefix) else TextBounds(frozenset())
        )


@dataclass(frozen=True, slots=True)
class NumberBounds:
    """Bounds of the numbers in a column.

    Attributes:
        low: The lowest allowed number, None for no bound.
        high: The highest allowed number, None for no bound.
        values: The allowed numbers; None for all between ``low`` and ``high``.
    """

    low: int | None = None
    high: int | None = None
    values: frozenset[int] | None = None

    @property
    def is_any(self) -> bool:
        """Whether there is no bound."""
        return self.low is None and self.high is None and self.values is None

    def admits(self, number: int) -> bool:
        """Return whether a number is within the bounds."""
        if self.values is not None and number not in self.values:
            return False
        return (self.low is None or number >= self.low) and (
            self.high is None or number <= self.high
        )

    def restrict_to_range(self, low: int | None, high: int | None) -> NumberBounds:
        """Return these bounds with the further bound of an interval, both ends included."""
        lows = [each for each in (self.low, low) if each is not None]
        highs = [each for each in (self.high, high) if each is not None]
        return NumberBounds(max(lows, default=None), min(highs, default=None), self.values)

    def restrict_to(self, values: Iterable[int]) -> NumberBounds:
        """Return these bounds with the further bound that the number is one of ``values``."""
        kept = frozenset(each for each in values if self.admits(each))
        return NumberBounds(min(kept, default=1), max(kept, default=0), kept)

    def intervals(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the intervals from ``start``, before ``end``, that are within the bounds."""
        low = start if self.low is None else max(start, self.low)
        high = end if self.high is None else min(end, self.high + 1)
        if self.values is None:
            if low < high:
                yield low, high
            return
        first = last = None
        for value in sorted(each for each in self.values if low <= each < high):
            if first is None or last is None or value > last + GAP_MAX:
                if first is not None and last is not None:
                    yield first, last + 1
                first = value
            last = value
        if first is not None and last is not None:
            yield first, last + 1


@dataclass(frozen=True, slots=True)
class Predicates:
    """Bounds of the columns that reduce what is read; ``store_ms`` is in milliseconds."""

    topics: TextBounds = TextBounds()
    brokers: TextBounds = TextBounds()
    queue_ids: NumberBounds = NumberBounds()
    offsets: NumberBounds = NumberBounds()
    positions: NumberBounds = NumberBounds()
    store_ms: NumberBounds = NumberBounds()
    tags: TextBounds = TextBounds()
    keys: TextBounds = TextBounds()
    unique_keys: TextBounds = TextBounds()

    def prune(self, ranges: Iterable[Range]) -> list[Range]:
        """Return the parts of ranges within the bounds of topic, broker, queue and offset."""
        return [
            Range(each.queue, start, end)
            for each in ranges
            if self.topics.admits(each.queue.topic)
            and self.brokers.admits(each.queue.broker)
            and self.queue_ids.admits(each.queue.queue_id)
            for start, end in self.offsets.intervals(each.start, each.end)
        ]


_TEXTS: Final = {
    "topic": "topics",
    "brokername": "brokers",
    "tags": "tags",
    "keys": "keys",
    "uniqkey": "unique_keys",
}
_NUMBERS: Final = {
    "queueid": "queue_ids",
    "queueoffset": "offsets",
    "commitlogoffset": "positions",
}
_TIMES: Final = {"storetimestamp": "store_ms"}


def extract_predicates(filters: Iterable[Filter]) -> Predicates:
    """Return the bounds that filters give together."""
    found: dict[str, Any] = {}
    for each in filters:
        attribute: tuple[str, ...] = getattr(each, "attribute", ())
        if len(attribute) != 1:  # a negation, or a field inside a column
            continue
        column = attribute[0].lower()
        if name := _TEXTS.get(column):
            found[name] = _bound_text(found.get(name, TextBounds()), each)
        elif name := _NUMBERS.get(column):
            found[name] = _bound_number(found.get(name, NumberBounds()), each)
        elif name := _TIMES.get(column):
            found[name] = _bound_time(found.get(name, NumberBounds()), each)
    return Predicates(**found)


def _bound_text(known: TextBounds, each: Filter) -> TextBounds:
    match each:
        case EqualTo(_, str(value)) | EqualNullSafe(_, str(value)):
            return known.restrict_to([value])
        case In(_, values) if _have_type(values, str):
            return known.restrict_to(value for value in values if value is not None)
        case StringStartsWith(_, str(value)):
            return known.restrict_to_prefix(value)
    return known


def _bound_number(known: NumberBounds, each: Filter) -> NumberBounds:
    return _apply_filter(known, each, int, lambda value: (value, value))


def _bound_time(known: NumberBounds, each: Filter) -> NumberBounds:
    return _apply_filter(known, each, datetime, _round_to_ms)


def _apply_filter(
    known: NumberBounds,
    each: Filter,
    kind: type,
    to_numbers: Callable[[Any], tuple[int, int] | None],
) -> NumberBounds:
    """Return bounds restricted by a filter; ``to_numbers`` rounds its literal down and up."""
    if isinstance(each, In):
        if not _have_type(each.value, kind):
            return known
        pairs = [to_numbers(value) for value in each.value if value is not None]
        if None in pairs:
            return known
        # A literal between two numbers equals none of them.
        return known.restrict_to(pair[0] for pair in pairs if pair and pair[0] == pair[1])
    value = getattr(each, "value", None)
    pair = to_numbers(value) if _have_type([value], kind) and value is not None else None
    if pair is None:
        return known
    down, up = pair
    match each:
        case EqualTo() | EqualNullSafe():
            return known.restrict_to([down] if down == up else [])
        case GreaterThan():
            return known.restrict_to_range(down + 1, None)
        case GreaterThanOrEqual():
            return known.restrict_to_range(up, None)
        case LessThan():
            return known.restrict_to_range(None, up - 1)
        case LessThanOrEqual():
            return known.restrict_to_range(None, down)
    return known


def _have_type(values: Iterable[object], kind: type) -> bool:
    return all(
        value is None or (isinstance(value, kind) and not isinstance(value, bool))
        for value in values
    )


def _round_to_ms(value: datetime) -> tuple[int, int] | None:
    """Return a time rounded down and up; None if it does not bound stored times."""
    if value.tzinfo is None:
        return None
    us = (value - _EPOCH) // _MICROSECOND
    down, up = us // 1000, -(-us // 1000)
    # Times of wrong clocks are shown as the first or last of these years, so those bound nothing.
    return (down, up) if down > TIME_MIN_MS and up < TIME_MAX_MS else None
