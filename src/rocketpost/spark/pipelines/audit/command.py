"""The command ``rocketpost pipeline audit``."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec
from rich.markup import escape
from rich.table import Table

from rocketpost.model.names import TRACE_TOPIC
from rocketpost.spark.pipelines.audit import KEYS, UNIQUE_KEY, AuditConfig
from rocketpost.spark.pipelines.audit import audit as audit_all
from rocketpost.spark.pipelines.audit.page import page
from rocketpost.spark.pipelines.audit.report import AuditReport, PlannedQueue
from rocketpost.spark.pipelines.audit.sources import check_sources, is_file, list_stores, plan_audit
from rocketpost.spark.pipelines.audit.table import queue_table
from rocketpost.spark.pipelines.command import (
    Run,
    html_option,
    pipeline_command,
    since_option,
    until_option,
)
from rocketpost.spark.pipelines.page import utc
from rocketpost.spark.pipelines.paths import check_readable
from rocketpost.spark.source.plan import QueueKey

_EXAMPLES_SHOWN = 3


@click.command()
@pipeline_command("audit")
@click.option(
    "--name-server", "-n", metavar="HOST:PORT", help="Name servers, separated by semicolons."
)
@click.option("--topic", "-t", required=True, help="Topics, separated by commas.")
@click.option(
    "--lake", help="Audit the messages archived in this lake instead of those at brokers."
)
@click.option("--store", help="Audit this store directory instead of the messages at brokers.")
@click.option(
    "--by",
    type=click.Choice([UNIQUE_KEY, KEYS]),
    default=UNIQUE_KEY,
    show_default=True,
    help="Property that identifies a message elsewhere.",
)
@click.option(
    "--produced", help="Messages that must be stored: a CSV, JSON or Parquet file, or a table."
)
@click.option("--produced-column", help="The column of that table with the ids.")
@click.option("--group", "-g", help="Consumer group whose progress counts as consumed.")
@click.option("--traces", is_flag=True, help="Compare with the traces that clients wrote.")
@click.option(
    "--trace-topic", default=TRACE_TOPIC, show_default=True, help="Topic with the traces."
)
@since_option
@until_option
@click.option("--late", type=click.FloatRange(min=0), help="Seconds after which a message is late.")
@html_option
def audit(
    run: Run,
    *,
    name_server: str | None,
    topic: str,
    lake: str | None,
    store: str | None,
    by: str,
    produced: str | None,
    produced_column: str | None,
    group: str | None,
    traces: bool,
    trace_topic: str,
    since: int | None,
    until: int | None,
    late: float | None,
    html_file: Path | None,
) -> None:
    """Prove that messages are there, once: produced against stored against consumed.

    Exits with 1 if something is missing, duplicated or damaged.
    """
    config = AuditConfig(
        topics=tuple(name.strip() for name in topic.split(",") if name.strip()),
        name_servers=name_server or "",
        lake=lake or "",
        store=store or "",
        identified_by=by,
        produced=produced or "",
        produced_column=produced_column or "",
        group=group or "",
        trace_topic=trace_topic if traces else "",
        start_ms=since,
        end_ms=until,
        late_ms=None if late is None else round(late * 1000),
    )
    if config.produced and is_file(config.produced):
        run.check_path("--produced", config.produced)
    for path in list_stores(config):
        check_readable("--store", path)
    check_sources(config)
    if run.dry_run:
        _say_plan(run, config)
        return
    with run.session() as spark, run.progress(spark, "auditing"):
        report = audit_all(spark, config)
    if html_file is not None:
        html_file.write_text(page(report), encoding="utf-8")
    _show(run, report)
    run.conclude(json.loads(report.to_json()), is_whole=report.is_whole)


def _say_plan(run: Run, config: AuditConfig) -> None:
    """Print what would be read, for people and for programs."""
    against = f" against {config.produced}" if config.produced else ""
    run.say(f"would audit {', '.join(config.topics)} in the {config.source}{against}", markup=False)
    queues = plan_audit(config)
    for queue in queues or ():
        run.say(_planned_queue(queue, config.group), markup=False)
    run.conclude(
        {
            "topics": config.topics,
            "source": config.source,
            "produced": config.produced or None,
            "group": config.group or None,
            "queues": msgspec.to_builtins(queues),
        }
    )


def _planned_queue(queue: PlannedQueue, group: str) -> str:
    key = QueueKey(queue.topic, queue.broker, queue.queue_id)
    text = f"{key}: no messages"
    if queue.last is not None:
        text = f"{key}: offsets {queue.first} to {queue.last}"
    if not group:
        return text
    at = "has no offset" if queue.committed is None else f"is at {queue.committed}"
    return f"{text}, {group} {at}"


def _show(run: Run, report: AuditReport) -> None:
    run.say(_findings(report))
    run.say(queue_table(report, width=run.width))
    for latency in report.latencies:
        run.say(
            f"{latency.name}: median {latency.median:,.0f} ms, 95 % {latency.p95:,.0f} ms, "
            f"99 % {latency.p99:,.0f} ms, longest {latency.max:,.0f} ms ({latency.count:,})"
        )
    if report.hot_keys:
        hot = ", ".join(f"{each.key} ({each.messages:,})" for each in report.hot_keys[:5])
        run.say(f"hot keys: {hot}", markup=False)
    when = ""
    if report.first_ms is not None and report.last_ms is not None:
        when = f", stored {utc(report.first_ms)} to {utc(report.last_ms)} UTC"
    verdict = "[green]nothing is missing, duplicated or damaged[/green]"
    if not report.is_whole:
        verdict = "[red]problems were found[/red]"
    run.say(f"{report.messages:,} messages{when}: {verdict}")


def _findings(report: AuditReport) -> Table:
    table = Table(title=f"audit of {', '.join(report.topics)}")
    table.add_column("what")
    table.add_column("found", justify="right")
    table.add_column("meaning", overflow="fold")
    for finding in report.findings:
        color = "red" if finding.fails else "green" if finding.is_fault else "default"
        lines = [finding.meaning, *finding.examples[:_EXAMPLES_SHOWN]]
        if finding.count > _EXAMPLES_SHOWN and finding.examples:
            lines.append("...")
        table.add_row(
            finding.name, f"[{color}]{finding.count:,}[/{color}]", escape("\n".join(lines))
        )
    return table
