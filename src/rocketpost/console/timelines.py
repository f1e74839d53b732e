"""Drawings of which member held which queue, and marks on charts. Pure.

They are attributes of SVG elements, as all drawings of the console are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from rocketpost.console.collect.holdings import Stint
from rocketpost.console.shapes import Chart

WIDTH: Final = 480
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BAND_MIN: Final = 2.0
_LETTER_MIN: Final = 12.0
COLOURS: Final = 6


class Band(msgspec.Struct, kw_only=True, rename="camel"):
    """A stint as a rectangle."""

    x: float
    width: float
    letter: str
    colour: int
    client: str
    has_letter: bool


class TimelineRow(msgspec.Struct, kw_only=True, rename="camel"):
    """A queue with the stints of its owners."""

    queue: str
    bands: list[Band]
    stints: list[Stint]
    is_flapping: bool = False


class Timeline(msgspec.Struct, kw_only=True, rename="camel"):
    """The owners of queues between two times; each owner has a letter."""

    begin_ms: int
    end_ms: int
    rows: list[TimelineRow]
    clients: dict[str, str]
    """Letters of the owners."""
    is_cut: bool


class ChartMark(NamedTuple):
    """An event as a line on a chart."""

    x: float
    kind: str
    at_ms: int
    detail: str


class Event(NamedTuple):
    """Something that may explain a change of a chart."""

    at_ms: int
    kind: str
    detail: str


def draw_timeline(
    queues: Mapping[str, Sequence[Stint]],
    *,
    now_ms: int,
    span_ms: int = 3_600_000,
    rows_max: int = 32,
    flapping: Sequence[str] = (),
) -> Timeline | None:
    """Return the owners of queues in the last hour; None if none is known.

    The drawing begins with the first stint if that is younger, so that a short history is not a
    thin line at the edge.
    """
    known = {
        queue: [each for each in stints if each.seen_ms > now_ms - span_ms]
        for queue, stints in queues.items()
    }
    known = {queue: stints for queue, stints in sorted(known.items()) if stints}
    if not known:
        return None
    first_ms = min(stints[0].begin_ms for stints in known.values())
    begin_ms = max(min(first_ms, now_ms - 60_000), now_ms - span_ms)
    seen = sorted(
        (each.begin_ms, each.client) for stints in known.values() for each in stints
    )  # fmt: skip
    clients = list(dict.fromkeys(client for _, client in seen))
    letters = {client: _letter(index) for index, client in enumerate(clients)}
    scale = WIDTH / (now_ms - begin_ms)
    rows = []
    for queue in list(known)[:rows_max]:
        bands = []
        for each in known[queue]:
            x = max(0.0, (each.begin_ms - begin_ms) * scale)
            width = max(_BAND_MIN, (each.seen_ms - begin_ms) * scale - x)
            bands.append(
                Band(
                    x=round(min(x, WIDTH - _BAND_MIN), 1),
                    width=round(width, 1),
                    letter=letters[each.client],
                    colour=clients.index(each.client) % COLOURS,
                    client=each.client,
                    has_letter=width >= _LETTER_MIN,
                )
            )
        rows.append(
            TimelineRow(
                queue=queue, bands=bands, stints=known[queue], is_flapping=queue in flapping
            )
        )
    return Timeline(
        begin_ms=begin_ms,
        end_ms=now_ms,
        rows=rows,
        clients=letters,
        is_cut=len(known) > rows_max,
    )


def place_marks(chart: Chart | None, events: Iterable[Event]) -> list[ChartMark]:
    """Return the events that a chart covers, with their places on it, oldest first."""
    if chart is None or chart.end_ms <= chart.begin_ms:
        return []
    scale = chart.width / (chart.end_ms - chart.begin_ms)
    return [
        ChartMark(
            round((each.at_ms - chart.begin_ms) * scale, 1), each.kind, each.at_ms, each.detail
        )
        for each in sorted(events)
        if chart.begin_ms <= each.at_ms <= chart.end_ms
    ]


def _letter(index: int) -> str:
    """Return A to Z, then A2 and so on."""
    number, place = divmod(index, len(_LETTERS))
    return _LETTERS[place] + (str(number + 1) if number else "")
