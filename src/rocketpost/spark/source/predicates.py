"""What the filters of a query leave to read. Filters in, bounds out; no I/O.

Spark offers filters of one column and a literal, all joined by AND. What is known of some columns
becomes bounds: **a row that passes every filter lies within them**. The reverse does not hold, and
need not: filters go back to Spark, which applies them to whatever is read.

A filter that is not understood, or whose literal has a strange type, bounds nothing.
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

NEAR: Final = 32
"""Numbers no further apart are read together: a pull brings as many anyway."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Texts:
    """Which texts a column may have; a null is none of them, once there is any bound.

    Attributes:
        values: One of these; None for any.
        prefix: How it begins.
    """

    values: frozenset[str] | None = None
    prefix: str = ""

    @property
    def is_any(self) -> bool:
        """Whether there is no bound."""
        return self.values is None and not self.prefix

    def admits(self, text: str | None) -> bool:
        """Tell whether a text lies within the bounds."""
        if text is None:
            return self.is_any
        return text.startswith(self.prefix) and (self.values is None or text in self.values)

    def among(self, values: Iterable[str]) -> Texts:
        """Return the bounds when the text is also one of ``values``."""
        kept = frozenset(text for text in values if self.admits(text))
        return Texts(kept, self.prefix)

    def beginning(self, prefix: str) -> Texts:
        """Return the bounds when the text also begins with ``prefix``."""
        if self.values is not None:
            return replace(self, values=frozenset(t for t in self.values if t.startswith(prefix)))
        if self.prefix.startswith(prefix):
            return self
        return Texts(None, prefix) if prefix.startswith(self.prefix) else Texts(frozenset())


@dataclass(frozen=True, slots=True)
class Numbers:
    """Which numbers a column may have.

    Attributes:
        low: The least, None for no bound.
        high: The greatest, None for no bound.
        values: One of these; None for any between ``low`` and ``high``.
    """

    low: int | None = None
    high: int | None = None
    values: frozenset[int] | None = None

    @property
    def is_any(self) -> bool:
        """Whether there is no bound."""
        return self.low is None and self.high is None and self.values is None

    def admits(self, number: int) -> bool:
        """Tell whether a number lies within the bounds."""
        if self.values is not None and number not in self.values:
            return False
        return (self.low is None or number >= self.low) and (
            self.high is None or number <= self.high
        )

    def within(self, low: int | None, high: int | None) -> Numbers:
        """Return the bounds when the number also lies between two others, both included."""
        lows = [each for each in (self.low, low) if each is not None]
        highs = [each for each in (self.high, high) if each is not None]
        return Numbers(max(lows, default=None), min(highs, default=None), self.values)

    def among(self, values: Iterable[int]) -> Numbers:
        """Return the bounds when the number is also one of ``values``."""
        kept = frozenset(each for each in values if self.admits(each))
        return Numbers(min(kept, default=1), max(kept, default=0), kept)

    def spans(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield what of the numbers from ``start``, before ``end``, lies within the bounds."""
        low = start if self.low is None else max(start, self.low)
        high = end if self.high is None else min(end, self.high + 1)
        if self.values is None:
            if low < high:
                yield low, high
            return
        first = last = None
        for value in sorted(each for each in self.values if low <= each < high):
            if first is None or last is None or value > last + NEAR:
                if first is not None and last is not None:
                    yield first, last + 1
                first = value
            last = value
        if first is not None and last is not None:
            yield first, last + 1


@dataclass(frozen=True, slots=True)
class Predicates:
    """Bounds of the columns that can spare reading; ``store_ms`` is in milliseconds."""

    topics: Texts = Texts()
    brokers: Texts = Texts()
    queue_ids: Numbers = Numbers()
    offsets: Numbers = Numbers()
    positions: Numbers = Numbers()
    store_ms: Numbers = Numbers()
    tags: Texts = Texts()
    keys: Texts = Texts()
    unique_keys: Texts = Texts()

    def pruned(self, pieces: Iterable[Range]) -> list[Range]:
        """Return what of some ranges is left by topic, broker, queue and offset."""
        return [
            Range(piece.queue, start, end)
            for piece in pieces
            if self.topics.admits(piece.queue.topic)
            and self.brokers.admits(piece.queue.broker)
            and self.queue_ids.admits(piece.queue.queue_id)
            for start, end in self.offsets.spans(piece.start, piece.end)
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


def extracted(filters: Iterable[Filter]) -> Predicates:
    """Return the bounds that some filters set together."""
    found: dict[str, Any] = {}
    for each in filters:
        attribute: tuple[str, ...] = getattr(each, "attribute", ())
        if len(attribute) != 1:  # a negation, or a field inside a column
            continue
        column = attribute[0].lower()
        if name := _TEXTS.get(column):
            found[name] = _texts(found.get(name, Texts()), each)
        elif name := _NUMBERS.get(column):
            found[name] = _numbers(found.get(name, Numbers()), each)
        elif name := _TIMES.get(column):
            found[name] = _times(found.get(name, Numbers()), each)
    return Predicates(**found)


def _texts(known: Texts, each: Filter) -> Texts:
    match each:
        case EqualTo(_, str(value)) | EqualNullSafe(_, str(value)):
            return known.among([value])
        case In(_, values) if _are(values, str):
            return known.among(value for value in values if value is not None)
        case StringStartsWith(_, str(value)):
            return known.beginning(value)
    return known


def _numbers(known: Numbers, each: Filter) -> Numbers:
    return _bounded(known, each, int, lambda value: (value, value))


def _times(known: Numbers, each: Filter) -> Numbers:
    return _bounded(known, each, datetime, _milliseconds)


def _bounded(
    known: Numbers, each: Filter, kind: type, measured: Callable[[Any], tuple[int, int] | None]
) -> Numbers:
    """Apply a filter to known bounds; ``measured`` rounds a literal down and up, if it can."""
    if isinstance(each, In):
        if not _are(each.value, kind):
            return known
        pairs = [measured(value) for value in each.value if value is not None]
        if None in pairs:
            return known
        # What lies between two numbers is none of them.
        return known.among(pair[0] for pair in pairs if pair and pair[0] == pair[1])
    value = getattr(each, "value", None)
    pair = measured(value) if _are([value], kind) and value is not None else None
    if pair is None:
        return known
    down, up = pair
    match each:
        case EqualTo() | EqualNullSafe():
            return known.among([down] if down == up else [])
        case GreaterThan():
            return known.within(down + 1, None)
        case GreaterThanOrEqual():
            return known.within(up, None)
        case LessThan():
            return known.within(None, up - 1)
        case LessThanOrEqual():
            return known.within(None, down)
    return known


def _are(values: Iterable[object], kind: type) -> bool:
    return all(
        value is None or (isinstance(value, kind) and not isinstance(value, bool))
        for value in values
    )


def _milliseconds(value: datetime) -> tuple[int, int] | None:
    """Return a time rounded down and up, None if that says nothing of the times that are stored."""
    if value.tzinfo is None:
        return None
    us = (value - _EPOCH) // _MICROSECOND
    down, up = us // 1000, -(-us // 1000)
    # Mad clocks are cut to these years when they are shown, so the last ones stand for any.
    return (down, up) if down > TIME_MIN_MS and up < TIME_MAX_MS else None
