"""Metric families as values, and their text in Prometheus' format or in that of OpenMetrics.

    # HELP rocketmq_topic_number Number of topics.
    # TYPE rocketmq_topic_number gauge
    rocketmq_topic_number{cluster="c",node_id="broker-a"} 12

The text is written in slices, so that the event loop can serve requests in between. Values carry
no time stamps: the time of a scrape is that of the scraper. The samples of a histogram are those of
its buckets, its sum and its count:

    rocketmq_message_size_bucket{cluster="c",topic="T",le="1024.0"} 3
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Final, NamedTuple

from rocketpost.model.histogram import Histogram

SLICE_SAMPLES: Final = 500
"""Most samples in one slice of the text."""

LABELS_MAX: Final = 100_000
"""Most label texts that a :class:`Labels` remembers."""

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_ESCAPED: Final = re.compile(r"\\[\\\"n]")
_UNESCAPED: Final = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_PAIR: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_TOTAL: Final = "_total"
_INFINITY: Final = "+Inf"
_START: Final = "\0"


class MetricKind(enum.Enum):
    """Type of a metric family."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Sample(NamedTuple):
    """One value of a family."""

    labels: str
    """Text of its own labels, made by :func:`label_text`."""
    value: int | float
    suffix: str = ""
    """End of the name of the sample, after the name of its family."""


class Family(NamedTuple):
    """Values of one metric. The name of a counter ends with ``_total``."""

    name: str
    kind: MetricKind
    help: str
    samples: Iterable[Sample]
    width: int = 1
    """Number of samples of one series."""


def counter(name: str, text: str, samples: Iterable[Sample]) -> Family:
    """Return a family of values that only grow while the broker runs."""
    assert name.endswith(_TOTAL)
    return Family(name, MetricKind.COUNTER, text, samples)


def gauge(name: str, text: str, samples: Iterable[Sample]) -> Family:
    """Return a family of values that rise and fall."""
    return Family(name, MetricKind.GAUGE, text, samples)


def histogram(
    name: str, text: str, found: Iterable[tuple[str, Histogram]], *, bounds: Sequence[float]
) -> Family:
    """Return a family of histograms with the same bounds, each with the text of its labels."""
    samples = Distributions(found, bounds)
    return Family(name, MetricKind.HISTOGRAM, text, samples, width=len(bounds) + 3)


class Distributions:
    """The samples of histograms with the same bounds.

    Args:
        found: The histograms, each with the text of its labels.
        bounds: Their bounds.
    """

    def __init__(self, found: Iterable[tuple[str, Histogram]], bounds: Sequence[float]) -> None:
        self.found = iter(found)
        """The histograms that were not taken yet."""
        self.bounds: list[str] = [*map(str, map(float, bounds)), _INFINITY]
        """The values of the label ``le``."""
        self.lines = "".join([f'{_START}{bound}"}} %d\n' for bound in self.bounds])
        """The lines of the buckets of one histogram, with a mark for what is before the bound."""

    def __iter__(self) -> Iterator[Sample]:
        for labels, each in self.found:
            before = f"{labels}," if labels else ""
            sums = list(accumulate(each.counts))
            for bound, total in zip(self.bounds, sums, strict=True):
                yield Sample(f'{before}le="{bound}"', total, "_bucket")
            yield Sample(labels, each.sum, "_sum")
            yield Sample(labels, sums[-1], "_count")


class Column:
    """The samples of many series, without an object for each.

    Args:
        labels: Texts of their own labels, none of them empty.
        values: Their values, in the same order.
    """

    def __init__(self, labels: Sequence[str], values: Sequence[int | float]) -> None:
        assert len(labels) == len(values)
        self.labels = labels
        self.values = values

    def __iter__(self) -> Iterator[Sample]:
        return map(Sample, self.labels, self.values)


def single(value: int | float) -> tuple[Sample]:
    """Return the samples of a family that has one value without labels of its own."""
    return (Sample("", value),)


def pause() -> Family:
    """Return a family that writes nothing: the event loop serves requests before the next one."""
    return Family("", MetricKind.GAUGE, "", ())


def flag(value: bool) -> str:
    """Return the text of a label that is true or false."""
    return "true" if value else "false"


def label_text(labels: Mapping[str, str]) -> str:
    """Return ``name="value"`` pairs with their values escaped."""
    return ",".join([f'{name}="{_escape(value)}"' for name, value in labels.items()])


def _escape(value: str) -> str:
    # A name of a topic or a group has none of these characters.
    return value.translate(_ESCAPES) if "\\" in value or '"' in value or "\n" in value else value


def read_label_text(text: str) -> dict[str, str]:
    """Return the labels of a text that :func:`label_text` has made."""
    return {
        name: _ESCAPED.sub(lambda found: _UNESCAPED[found[0]], value)
        for name, value in _PAIR.findall(text)
    }


class Labels:
    """Texts of the labels of one family, made once for each series. Owned by the loop.

    Args:
        names: The names of the labels.
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self._texts: dict[tuple[str, ...], str] = {}

    def __call__(self, *values: str) -> str:
        """Return the text of the labels with these values."""
        text = self._texts.get(values)
        if text is None:
            if len(self._texts) >= LABELS_MAX:
                self._texts.clear()  # most of them may be those of deleted topics
            text = label_text(dict(zip(self._names, values, strict=True)))
            self._texts[values] = text
        return text


class PairLabels:
    """Texts of labels whose values follow from a pair of names. Owned by the loop.

    Args:
        names: The names of the labels.
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self._texts: dict[tuple[str, str], str] = {}
        self.find: Final = self._texts.get
        """Returns the text that was made for a pair, or None."""

    def make(self, pair: tuple[str, str], *values: str) -> str:
        """Make the text for a pair, and return it."""
        if len(self._texts) >= LABELS_MAX:
            self._texts.clear()
        text = label_text(dict(zip(self._names, values, strict=True)))
        self._texts[pair] = text
        return text


class Writer:
    """Writes families as text.

    Args:
        common: Text of the labels that every sample has.
        series_max: Most series of a family. If a family has more, the rest is left out. One sample
            with the label ``overflow`` counts it, except in a histogram.
        is_open: Whether to write the format of OpenMetrics.
    """

    def __init__(self, *, common: str, series_max: int, is_open: bool = False) -> None:
        self._common = common
        self._series_max = series_max
        self._is_open = is_open
        self.overflows: dict[str, int] = {}
        """Number of series left out, by family."""

    def slices(self, families: Iterable[Family]) -> Iterator[bytes]:
        """Return the text in parts."""
        for family in families:
            yield from self._family(family)
        if self._is_open:
            yield b"# EOF\n"

    def _family(self, family: Family) -> Iterator[bytes]:
        if isinstance(family.samples, Distributions):
            yield from self._distributions(family, family.samples)
            return
        if isinstance(family.samples, Column):
            yield from self._column(family, family.samples)
            return
        left = self._series_max
        samples = iter(family.samples)
        is_first = True
        while part := list(islice(samples, min(SLICE_SAMPLES, left))):
            left -= len(part)
            text = self._lines(family.name, part)
            yield (self._head(family) + text if is_first else text).encode()
            is_first = False
        if is_first:
            yield b""  # lets the event loop serve requests
        elif not left and (rest := sum(1 for _ in samples)):
            self.overflows[family.name] = rest
            yield self._lines(family.name, [Sample('overflow="true"', rest)]).encode()

    def _column(self, family: Family, column: Column) -> Iterator[bytes]:
        count = min(len(column.labels), self._series_max)
        start = f"{family.name}{{{self._common},"
        head = self._head(family) if count else ""
        for at in range(0, count, SLICE_SAMPLES):
            end = min(at + SLICE_SAMPLES, count)
            rows = zip(column.labels[at:end], column.values[at:end], strict=True)
            lines = [f"{labels}}} {value}\n" for labels, value in rows]
            yield f"{head}{start}{start.join(lines)}".encode()
            head = ""
        if not count:
            yield b""
        elif rest := len(column.labels) - count:
            self.overflows[family.name] = rest
            yield self._lines(family.name, [Sample('overflow="true"', rest)]).encode()

    def _distributions(self, family: Family, samples: Distributions) -> Iterator[bytes]:
        """Write histograms without an object for each sample: they are most of the text."""
        left, at_once = self._series_max, max(1, SLICE_SAMPLES // family.width)
        is_first = True
        while part := list(islice(samples.found, min(at_once, left))):
            left -= len(part)
            text = "".join([self._distribution(family.name, samples.lines, *each) for each in part])
            yield (self._head(family) + text if is_first else text).encode()
            is_first = False
        if is_first:
            yield b""
        elif not left and (rest := sum(1 for _ in samples.found)):
            self.overflows[family.name] = rest

    def _distribution(self, name: str, lines: str, labels: str, found: Histogram) -> str:
        common = f"{self._common},{labels}" if labels else self._common
        start = f'{name}_bucket{{{common},le="'
        sums = tuple(accumulate(found.counts))
        return (
            f"{(lines % sums).replace(_START, start)}"
            f"{name}_sum{{{common}}} {found.sum}\n{name}_count{{{common}}} {sums[-1]}\n"
        )

    def _head(self, family: Family) -> str:
        name = family.name.removesuffix(_TOTAL) if self._is_open else family.name
        text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        return f"# HELP {name} {text}\n# TYPE {name} {family.kind.value}\n"

    def _lines(self, name: str, samples: Iterable[Sample]) -> str:
        common = self._common
        return "".join(
            [
                f"{name}{suffix}{{{common},{labels}}} {value}\n"
                if labels
                else f"{name}{suffix}{{{common}}} {value}\n"
                for labels, value, suffix in samples
            ]
        )
