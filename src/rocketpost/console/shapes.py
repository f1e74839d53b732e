"""Numbers, sizes, times and small charts as text. Pure.

A chart is drawn by the server as the attributes of an SVG, so it needs no script, and a policy that
forbids styles in pages does not forbid it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from rocketpost.console.collect.history import Point

UNKNOWN: Final = "N/A"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DAY_SECONDS: Final = 86_400


def number_text(value: float | None, digits: int = 0) -> str:
    """Return a number with separators; N/A if it is unknown."""
    if value is None:
        return UNKNOWN
    return f"{value:,.{digits}f}" if digits or value != int(value) else f"{int(value):,}"


def rate_text(value: float | None) -> str:
    """Return messages per second, with a digit after the point if there are few."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:,.1f}"


def bytes_text(value: float | None) -> str:
    """Return a size in the unit that suits it."""
    if value is None:
        return UNKNOWN
    size = float(value)
    for unit in _UNITS:
        if abs(size) < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit takes everything")


def percent_text(value: float | None) -> str:
    """Return a fraction in percent."""
    return UNKNOWN if value is None else f"{value * 100:.0f} %"


def duration_text(seconds: float | None) -> str:
    """Return a time span in its two largest units, such as ``3 m 20 s``."""
    if seconds is None:
        return UNKNOWN
    left = int(max(0, seconds))
    if left < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms" if seconds > 0 else "0 s"
    parts: list[str] = []
    for unit, size in (("d", _DAY_SECONDS), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 ")) or parts[0]


def moment_text(at_ms: int | None, zone: str) -> str:
    """Return a time with its offset from UTC; N/A if it is unknown."""
    if not at_ms or at_ms < 0:
        return UNKNOWN
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(at_ms)
    if zone == "local":
        moment = moment.astimezone()
    offset = moment.strftime("%z")
    shown = "UTC" if offset == "+0000" else f"{offset[:3]}:{offset[3:]}"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d} {shown}"


def parse_moment(text: str, *, now_ms: int) -> int:
    """Return a time in milliseconds: a number, ``now``, ``-5m``, or ``2026-11-18 14:02[:11]`` UTC.

    A time before 1970 becomes 0: no message is older, and the result as a text is a time again.

    Raises:
        ValueError: The text is none of these.
    """
    text = text.strip()
    if text == "now":
        return now_ms
    units = {"s": 1, "m": 60, "h": 3600, "d": _DAY_SECONDS}
    if text[:1] == "-" and text[-1:] in units and text[1:-1].isdecimal():
        return max(0, now_ms - int(text[1:-1]) * units[text[-1]] * 1000)
    if text.isdecimal():
        return int(text)
    moment = datetime.fromisoformat(text.replace("T", " ").removesuffix(" UTC"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))


class Chart(NamedTuple):
    """A line over time: the ``d`` of a path for each stretch without gaps, and its bounds."""

    paths: list[str]
    areas: list[str]
    width: int
    height: int
    low: float
    high: float
    begin_ms: int
    end_ms: int
    rows: list[Point]
    """The same as a table, thinned to at most thirty rows."""


def draw_chart(
    points: Iterable[Point], *, width: int = 640, height: int = 120, span_ms: int = 3_600_000
) -> Chart | None:
    """Return a chart of samples; None if there are fewer than two. Unknown samples are gaps."""
    samples = list(points)
    known = [each.value for each in samples if each.value is not None]
    if len(known) < 2:
        return None
    end_ms = samples[-1].at_ms
    begin_ms = min(samples[0].at_ms, end_ms) if span_ms == 0 else end_ms - span_ms
    begin_ms = max(begin_ms, samples[0].at_ms) if len(samples) < 60 else begin_ms
    high = max([*known, 1.0])
    paths, areas = [], []
    for stretch in _stretches([each for each in samples if each.at_ms >= begin_ms]):
        places = [
            (
                round((each.at_ms - begin_ms) / max(1, end_ms - begin_ms) * width, 1),
                round(height - (each.value or 0.0) / high * (height - 4), 1),
            )
            for each in stretch
        ]
        line = "M" + "L".join(f"{x:g} {y:g}" for x, y in places)
        paths.append(line)
        areas.append(f"{line}L{places[-1][0]:g} {height}L{places[0][0]:g} {height}Z")
    step = max(1, len(samples) // 30)
    rows = samples[::-1][::step]
    return Chart(paths, areas, width, height, 0.0, high, begin_ms, end_ms, rows)


def _stretches(samples: Sequence[Point]) -> list[list[Point]]:
    found: list[list[Point]] = [[]]
    for each in samples:
        if each.value is None:
            found.append([])
        else:
            found[-1].append(each)
    return [each for each in found if each]


def count_bars(values: Iterable[str], *, bars_max: int = 12) -> list[tuple[str, int, float]]:
    """Return the most frequent values with their counts and their share of the largest count."""
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    top = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:bars_max]
    return [(name, count, count / top[0][1]) for name, count in top]


def safe_cell(text: str) -> str:
    """Return a cell of a CSV file that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
