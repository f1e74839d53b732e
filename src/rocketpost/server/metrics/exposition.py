"""Metric families as values, and their text in Prometheus' format or in that of OpenMetrics.

    # HELP rocketmq_topic_number Number of topics.
    # TYPE rocketmq_topic_number gauge
    rocketmq_topic_number{cluster="c",node_id="broker-a"} 12

The text is written in slices, so that the event loop can serve requests in between. Values carry
no time stamps: the time of a scrape is that of the scraper.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

SLICE_SAMPLES: Final = 500
"""Most samples in one slice of the text."""

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_TOTAL: Final = "_total"


class Kind(enum.Enum):
    """Type of a metric family."""

    COUNTER = "counter"
    GAUGE = "gauge"


class Sample(NamedTuple):
    """One value of a family."""

    labels: str
    """Text of its own labels, made by :func:`label_text`."""
    value: int | float


class Family(NamedTuple):
    """Values of one metric. The name of a counter ends with ``_total``."""

    name: str
    kind: Kind
    help: str
    samples: Iterable[Sample]


def counter(name: str, text: str, samples: Iterable[Sample]) -> Family:
    """Return a family of values that only grow while the broker runs."""
    assert name.endswith(_TOTAL)
    return Family(name, Kind.COUNTER, text, samples)


def gauge(name: str, text: str, samples: Iterable[Sample]) -> Family:
    """Return a family of values that rise and fall."""
    return Family(name, Kind.GAUGE, text, samples)


def single(value: int | float) -> tuple[Sample]:
    """Return the samples of a family that has one value without labels of its own."""
    return (Sample("", value),)


def label_text(labels: Mapping[str, str]) -> str:
    """Return ``name="value"`` pairs with their values escaped."""
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())


class Writer:
    """Writes families as text.

    Args:
        common: Text of the labels that every sample has.
        series_max: Most samples of a family. If a family has more, the rest is left out, and one
            sample with the label ``overflow`` counts it.
        is_open: Whether to write the format of OpenMetrics.
    """

    def __init__(self, *, common: str, series_max: int, is_open: bool = False) -> None:
        self._common = common
        self._series_max = series_max
        self._is_open = is_open
        self.overflows: dict[str, int] = {}
        """Number of samples left out, by family."""

    def slices(self, families: Iterable[Family]) -> Iterator[bytes]:
        """Return the text in parts."""
        for family in families:
            yield from self._family(family)
        if self._is_open:
            yield b"# EOF\n"

    def _family(self, family: Family) -> Iterator[bytes]:
        samples = iter(family.samples)
        first = next(samples, None)
        if first is None:
            return
        lines = [self._head(family), self._line(family.name, first)]
        written = 1
        for sample in samples:
            if written >= self._series_max:
                left_out = 1 + sum(1 for _ in samples)
                self.overflows[family.name] = left_out
                lines.append(self._line(family.name, Sample('overflow="true"', left_out)))
                break
            lines.append(self._line(family.name, sample))
            written += 1
            if len(lines) >= SLICE_SAMPLES:
                yield "".join(lines).encode()
                lines = []
        yield "".join(lines).encode()

    def _head(self, family: Family) -> str:
        name = family.name.removesuffix(_TOTAL) if self._is_open else family.name
        text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        return f"# HELP {name} {text}\n# TYPE {name} {family.kind.value}\n"

    def _line(self, name: str, sample: Sample) -> str:
        own = f",{sample.labels}" if sample.labels else ""
        return f"{name}{{{self._common}{own}}} {sample.value}\n"
