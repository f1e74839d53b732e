"""HTML page of the report of an audit."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rocketpost.spark.pipelines.audit.report import AuditReport, Finding, Latency
from rocketpost.spark.pipelines.page import (
    bars,
    document,
    duration,
    placeholder,
    share,
    table,
    timeline_bars,
    utc,
)


def page(report: AuditReport) -> str:
    """Return the report as a page."""
    title = f"Audit of {', '.join(report.topics)}"
    faults = [finding for finding in report.findings if finding.fails]
    verdict = '<span class="good">nothing is missing, duplicated or damaged</span>'
    if faults:
        said = ", ".join(f"{finding.count:,} {finding.name}" for finding in faults)
        verdict = f'<span class="bad">{escape(said)}</span>'
    sections = [
        ("Findings", table(("what", "#found", "meaning"), map(_finding_row, report.findings))),
        ("Stored over time", timeline_bars(report.timeline, none="nothing was stored")),
        ("Latencies", _latencies(report.latencies)),
        ("Queues", _queue_table(report)),
        ("Hot keys", _hot_keys(report)),
    ]
    return document(title, verdict=verdict, summary=_summary(report), sections=sections)


def _summary(report: AuditReport) -> str:
    text = f"{report.messages:,} messages, {report.stored_bytes:,} bytes"
    text += f", identified by {report.identified_by}"
    if report.first_ms is not None and report.last_ms is not None:
        text += f", stored {utc(report.first_ms)} to {utc(report.last_ms)} UTC"
    return f"{text}; {report.source}"


def _finding_row(finding: Finding) -> tuple[str, ...]:
    kind = "bad" if finding.fails else "good" if finding.is_fault else ""
    examples = ""
    if finding.examples:
        items = "".join(f"<li><code>{escape(each)}</code></li>" for each in finding.examples)
        examples = f"<details><summary>examples</summary><ul>{items}</ul></details>"
    count = f'<span class="{kind}">{finding.count:,}</span>'
    return escape(finding.name), count, escape(finding.meaning) + examples


def _queue_table(report: AuditReport) -> str:
    if not report.queues:
        return placeholder("no queue holds a message")
    most = max((queue.messages for queue in report.queues), default=1)
    has_group = any(queue.lag is not None for queue in report.queues)
    rows = []
    for queue in report.queues:
        row = [
            escape(queue.name),
            f"{queue.messages:,}",
            share(queue.messages, most),
            f"{queue.stored_bytes:,}",
            f"{queue.first:,} to {queue.last:,}",
            f"{queue.holes:,}",
            f"{queue.repeats:,}",
            f"{queue.disorder:,}",
        ]
        if has_group:
            row.append("" if queue.lag is None else f"{queue.lag:,}")
        rows.append(row)
    heads = [
        "queue",
        "#messages",
        "=share",
        "#bytes",
        "#offsets",
        "#holes",
        "#repeats",
        "#disorder",
    ]
    return table([*heads, "#lag"] if has_group else heads, rows)


def _latencies(latencies: Sequence[Latency]) -> str:
    if not latencies:
        return placeholder("nothing was timed")
    rows = [
        (
            escape(each.name),
            f"{each.count:,}",
            *map(duration, (each.median, each.p95, each.p99, each.max)),
        )
        for each in latencies
    ]
    heads = ("", "#count", "#median", "#95 %", "#99 %", "#longest")
    return "\n".join([table(heads, rows), *map(_histogram, latencies)])


def _hot_keys(report: AuditReport) -> str:
    if not report.hot_keys:
        return placeholder("no key has two messages")
    rows = [(f"<code>{escape(hot.key)}</code>", f"{hot.messages:,}") for hot in report.hot_keys]
    return table(("key", "#messages"), rows)


def _histogram(latency: Latency) -> str:
    spans = ["< 1 ms"] + [duration(2**at) for at in range(len(latency.buckets) - 1)]
    labels = [
        f"{span} and more: {count:,}" if at else f"{span}: {count:,}"
        for at, (span, count) in enumerate(zip(spans, latency.buckets, strict=True))
    ]
    every = -(-len(spans) // 10)
    marks = {at: span for at, span in enumerate(spans) if at % every == 0}
    return bars(f"{latency.name}: how many took how long", latency.buckets, labels, marks)
