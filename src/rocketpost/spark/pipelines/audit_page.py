"""The report of an audit as one HTML file: no scripts, nothing loaded, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from rocketpost.spark.pipelines.audit_report import AuditReport, Finding, Latency, Moment

_WIDTH: Final = 640
_HEIGHT: Final = 140
_BASE: Final = 20
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2530; --soft: #667085; --line: #d9dee6; --page: #fff;
  --card: #f6f8fa; --bar: #2f6fdf; --good: #1a7f4b; --bad: #c0352b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #98a2b3; --line: #343b46;
  --page: #14181d; --card: #1c2128; --bar: #6ea0ff; --good: #4cc38a; --bad: #ff7b72; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p.soft, td.soft { color: var(--soft); }
.verdict { font-weight: 600; } .good { color: var(--good); } .bad { color: var(--bad); }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 500; } .number { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
figure { background: var(--card); border-radius: .5rem; padding: 1rem; margin: 0; }
figure + figure, .wide + figure { margin-top: 1rem; }
figcaption { color: var(--soft); margin-bottom: .5rem; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 11px; }
svg rect { fill: var(--bar); } svg line { stroke: var(--line); }
details { margin-top: .2rem; } summary { cursor: pointer; color: var(--soft); }
code { font-size: .85em; } ul { margin: .3rem 0; padding-left: 1.2rem; }
.share { background: var(--bar); height: .6rem; border-radius: .2rem; min-width: 2px;
  margin-top: .45rem; }
"""


def page(report: AuditReport) -> str:
    """Return the report as a page."""
    title = f"Audit of {', '.join(report.topics)}"
    faults = [finding for finding in report.findings if finding.fails]
    verdict = '<span class="good">nothing is missing, duplicated or damaged</span>'
    if faults:
        said = ", ".join(f"{finding.count:,} {finding.name}" for finding in faults)
        verdict = f'<span class="bad">{escape(said)}</span>'
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            f'<h1>{escape(title)}</h1><p class="verdict">{verdict}</p>',
            f'<p class="soft">{_summary(report)}</p>',
            "<h2>Findings</h2>",
            _table(("what", "#found", "meaning"), map(_finding_row, report.findings)),
            "<h2>Stored over time</h2>",
            _timeline(report.timeline),
            "<h2>Latencies</h2>",
            _latency_table(report.latencies),
            *map(_histogram, report.latencies),
            "<h2>Queues</h2>",
            _queue_table(report),
            "<h2>Hot keys</h2>",
            _hot_keys(report),
            "</body></html>\n",
        ]
    )


def _summary(report: AuditReport) -> str:
    text = f"{report.messages:,} messages, {report.stored_bytes:,} bytes"
    text += f", known by {report.identified_by}"
    if report.first_ms is not None and report.last_ms is not None:
        text += f", stored {utc(report.first_ms)} to {utc(report.last_ms)} UTC"
    return escape(f"{text}; {report.source}")


def _finding_row(finding: Finding) -> tuple[str, ...]:
    kind = "bad" if finding.fails else "good" if finding.is_fault else ""
    examples = ""
    if finding.examples:
        items = "".join(f"<li><code>{escape(each)}</code></li>" for each in finding.examples)
        examples = f"<details><summary>examples</summary><ul>{items}</ul></details>"
    count = f'<span class="{kind}">{finding.count:,}</span>'
    return escape(finding.name), count, escape(finding.meaning) + examples


def _queue_table(report: AuditReport) -> str:
    most = max((queue.messages for queue in report.queues), default=1)
    has_group = any(queue.lag is not None for queue in report.queues)
    rows = []
    for queue in report.queues:
        row = [
            escape(queue.name),
            f"{queue.messages:,}",
            f'<div class="share" style="width:{100 * queue.messages / most:.1f}%"></div>',
            f"{queue.stored_bytes:,}",
            f"{queue.first:,} to {queue.last:,}",
            f"{queue.holes:,}",
            f"{queue.repeats:,}",
            f"{queue.disorder:,}",
        ]
        if has_group:
            row.append("" if queue.lag is None else f"{queue.lag:,}")
        rows.append(row)
    heads = ["queue", "#messages", "share", "#bytes", "#offsets", "#holes", "#repeats", "#disorder"]
    return _table([*heads, "#lag"] if has_group else heads, rows)


def _latency_table(latencies: Sequence[Latency]) -> str:
    rows = [
        (
            escape(each.name),
            f"{each.count:,}",
            *map(_ms, (each.median, each.p95, each.p99, each.max)),
        )
        for each in latencies
    ]
    return _table(("", "#count", "#median", "#95 %", "#99 %", "#longest"), rows)


def _hot_keys(report: AuditReport) -> str:
    if not report.hot_keys:
        return '<p class="soft">no key has two messages</p>'
    rows = [(f"<code>{escape(hot.key)}</code>", f"{hot.messages:,}") for hot in report.hot_keys]
    return _table(("key", "#messages"), rows)


def _timeline(moments: Sequence[Moment]) -> str:
    if not moments:
        return '<p class="soft">nothing was stored</p>'
    labels = [f"{utc(each.from_ms)}: {each.messages:,}" for each in moments]
    marks = {0: utc(moments[0].from_ms), len(moments) - 1: utc(moments[-1].from_ms)}
    most = max(each.messages for each in moments)
    step = moments[1].from_ms - moments[0].from_ms if len(moments) > 1 else 1
    caption = f"messages in each {_ms(step)}; at most {most:,}"
    return _bars(caption, [each.messages for each in moments], labels, marks)


def _histogram(latency: Latency) -> str:
    spans = ["< 1 ms"] + [_ms(2**at) for at in range(len(latency.buckets) - 1)]
    labels = [
        f"{span} and more: {count:,}" if at else f"{span}: {count:,}"
        for at, (span, count) in enumerate(zip(spans, latency.buckets, strict=True))
    ]
    every = -(-len(spans) // 10)
    marks = {at: span for at, span in enumerate(spans) if at % every == 0}
    return _bars(f"{latency.name}: how many took how long", latency.buckets, labels, marks)


def _bars(caption: str, counts: Sequence[int], labels: Sequence[str], marks: dict[int, str]) -> str:
    """Return bars side by side, with marks below some of them."""
    most = max(counts) or 1
    width = _WIDTH / len(counts)
    parts = []
    for at, count in enumerate(counts):
        height = max(1.0, _HEIGHT * count / most) if count else 0
        parts.append(
            f'<rect x="{at * width + width * 0.08:.2f}" y="{_HEIGHT - height:.2f}" rx="1" '
            f'width="{min(width * 0.84, 60):.2f}" height="{height:.2f}">'
            f"<title>{escape(labels[at])}</title></rect>"
        )
    last = len(counts) - 1
    for at, mark in marks.items():
        x, anchor = (at + 0.5) * width, "middle"
        if at == 0:
            x, anchor = 0, "start"
        elif at == last:
            x, anchor = _WIDTH, "end"
        parts.append(
            f'<text x="{x:.2f}" y="{_HEIGHT + 14}" text-anchor="{anchor}">{escape(mark)}</text>'
        )
    return (
        f"<figure><figcaption>{escape(caption)}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + _BASE}" role="img" aria-label="{escape(caption)}">'
        f'<line x1="0" x2="{_WIDTH}" y1="{_HEIGHT}" y2="{_HEIGHT}"/>{"".join(parts)}</svg></figure>'
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; heads that begin with # are those of numbers."""
    kinds = [' class="number"' if head.startswith("#") else "" for head in heads]
    top = "".join(
        f"<th{kind}>{escape(head.lstrip('#'))}</th>"
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
    """Return a time in words."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _ms(value: float) -> str:
    if value < 1000:
        return f"{value:,.0f} ms"
    return f"{value / 1000:,.1f} s" if value < 120_000 else f"{value / 60_000:,.1f} min"
