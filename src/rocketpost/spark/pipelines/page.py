"""Reports as HTML pages without scripts or external resources, for light and dark screens.

Cells and bodies of sections are HTML; everything else is text and is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from rocketpost.spark.pipelines.timeline import Moment

_WIDTH: Final = 640
_HEIGHT: Final = 140
_BASE: Final = 20
_BAR_MAX: Final = 60
_MARK_HALF: Final = 36
_SECOND: Final = 1000
_UNITS: Final = (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000))
_KINDS: Final = {"#": "number", "@": "time", "=": "bar"}
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2530; --soft: #667085; --line: #d9dee6; --page: #fff;
  --card: #f6f8fa; --bar: #2f6fdf; --good: #1a7f4b; --bad: #c0352b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #98a2b3; --line: #343b46;
  --page: #14181d; --card: #1c2128; --bar: #6ea0ff; --good: #4cc38a; --bad: #ff7b72; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p.soft, td.soft { color: var(--soft); }
.verdict { font-weight: 600; } .good { color: var(--good); } .bad { color: var(--bad); }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; } td.text { min-width: 6rem; }
.number { text-align: right; } .number, .time { white-space: nowrap;
  font-variant-numeric: tabular-nums; } td.bar { min-width: 5rem; }
.wide, figure { overflow-x: auto; }
figure { background: var(--card); border-radius: .5rem; padding: 1rem; margin: 0; }
figure + figure, .wide + figure { margin-top: 1rem; }
figcaption { color: var(--soft); margin-bottom: .5rem; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 11px; }
@media (max-width: 40rem) { svg { min-width: 32rem; } svg text { font-size: 14px; } }
svg rect { fill: var(--bar); } svg line { stroke: var(--line); }
details { margin-top: .2rem; } summary { cursor: pointer; color: var(--soft); }
code { font-size: .85em; } ul { margin: .3rem 0; padding-left: 1.2rem; }
.share { background: var(--bar); height: .6rem; border-radius: .2rem; min-width: 2px;
  margin-top: .45rem; }
"""


def document(title: str, *, verdict: str, summary: str, sections: Iterable[tuple[str, str]]) -> str:
    """Return a page.

    Args:
        title: The title.
        verdict: The most important sentence, as HTML.
        summary: Names and values of the summary.
        sections: Titles and HTML of the sections.
    """
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f'<h1>{escape(title)}</h1><p class="verdict">{verdict}</p>',
        f'<p class="soft">{escape(summary)}</p>',
    ]
    for name, content in sections:
        parts += [f"<section><h2>{escape(name)}</h2>", content, "</section>"]
    return "\n".join([*parts, "</body></html>\n"])


def timeline_bars(moments: Sequence[Moment], *, none: str) -> str:
    """Return bars of the number of messages over time; ``none`` if there are none."""
    if not moments:
        return placeholder(none)
    labels = [f"{utc(each.from_ms)}: {each.messages:,}" for each in moments]
    marks = {0: utc(moments[0].from_ms), len(moments) - 1: utc(moments[-1].from_ms)}
    most = max(each.messages for each in moments)
    step = moments[1].from_ms - moments[0].from_ms if len(moments) > 1 else 1
    caption = f"messages in each {duration(step)}; at most {most:,}"
    return bars(caption, [each.messages for each in moments], labels, marks)


def placeholder(text: str) -> str:
    """Return a text for an empty section."""
    return f'<p class="soft">{escape(text)}</p>'


def share(part: int, whole: int) -> str:
    """Return a bar whose length is a share of the whole."""
    return f'<div class="share" style="width:{100 * part / max(1, whole):.1f}%"></div>'


def bars(caption: str, counts: Sequence[int], labels: Sequence[str], marks: dict[int, str]) -> str:
    """Return bars side by side, with marks below some of them."""
    most = max(counts) or 1
    width = min(_WIDTH / len(counts), _BAR_MAX)
    parts = []
    for at, count in enumerate(counts):
        height = max(1.0, _HEIGHT * count / most) if count else 0
        parts.append(
            f'<rect x="{at * width + width * 0.08:.2f}" y="{_HEIGHT - height:.2f}" rx="1" '
            f'width="{width * 0.84:.2f}" height="{height:.2f}">'
            f"<title>{escape(labels[at])}</title></rect>"
        )
    for at, mark in marks.items():
        x, anchor = (at + 0.5) * width, "middle"
        if at == 0:
            x, anchor = 0, "start"
        elif x > _WIDTH - _MARK_HALF:
            x, anchor = _WIDTH, "end"
        parts.append(
            f'<text x="{x:.2f}" y="{_HEIGHT + 14}" text-anchor="{anchor}">{escape(mark)}</text>'
        )
    return (
        f"<figure><figcaption>{escape(caption)}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + _BASE}" role="img" aria-label="{escape(caption)}">'
        f'<line x1="0" x2="{_WIDTH}" y1="{_HEIGHT}" y2="{_HEIGHT}"/>{"".join(parts)}</svg></figure>'
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; headings begin with # for numbers, with @ for times and with = for bars."""
    kinds = [f' class="{_KINDS.get(head[:1], "text")}"' for head in heads]
    top = "".join(
        f"<th{kind}>{escape(head.lstrip('#@='))}</th>"
        for kind, head in zip(kinds, heads, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'


def utc(ms: int) -> str:
    """Return a time as text."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def duration(value: float) -> str:
    """Return milliseconds as text."""
    for unit, ms in _UNITS:
        if value >= 2 * ms:
            return f"{value / ms:,.1f} {unit}"
    return f"{value:,.0f} ms" if value < _SECOND else f"{value / _SECOND:,.1f} s"
