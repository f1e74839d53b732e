"""``rocketpost pipeline replay`` and ``rocketpost pipeline dead-letters``."""

from __future__ import annotations

from datetime import UTC, datetime

import click
from pyspark.sql import Row
from rich.table import Table

from rocketpost.errors import ConfigError
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.pipelines import dead_letters as letters_of
from rocketpost.spark.pipelines.command import Run, pipeline_command, since_option, until_option
from rocketpost.spark.pipelines.copying import CopyConfig
from rocketpost.spark.pipelines.dead_letters import Choice
from rocketpost.spark.pipelines.replay import (
    ReplayReport,
    between,
    from_broker,
    from_lake,
    survey,
)
from rocketpost.spark.pipelines.replay import replay as replay_all

_name_server = click.option(
    "--name-server", "-n", required=True, metavar="HOST:PORT", help="Name servers, parted by ;"
)
_rate = click.option("--rate", type=click.IntRange(1), help="Messages a second at most.")
_name = click.option("--name", help="What this run is called; the same name again continues it.")


@click.command()
@pipeline_command("replay")
@_name_server
@click.option("--topic", "-t", required=True, help="Whose messages; several parted by commas.")
@click.option("--to", help="The topic for all copies; where they came from if not given.")
@click.option("--lake", help="Read what was archived here; from the brokers if not given.")
@since_option
@until_option
@_name
@_rate
@click.option("--tasks", type=click.IntRange(1), default=4, show_default=True)
@click.option("--any-order", is_flag=True, help="Do not keep the order within queues.")
def replay(
    run: Run,
    *,
    name_server: str,
    topic: str,
    to: str | None,
    lake: str | None,
    since: int | None,
    until: int | None,
    name: str | None,
    rate: int | None,
    tasks: int,
    any_order: bool,
) -> None:
    """Send messages again, from a lake or a time range: in order, at a rate, each once."""
    config = None if run.dry_run else _copying(name_server, name, to, rate, tasks, not any_order)
    source = SourceOptions(name_servers=name_server, topic=topic)
    with run.session() as spark, run.progress(spark, "replaying"):
        found = from_lake(spark, lake, topics=source.topics) if lake else from_broker(spark, source)
        frame = between(found, since, until)
        report = survey(frame) if config is None else replay_all(frame, config)
    run.say(_replayed(report, run.dry_run))
    run.conclude(
        {
            "name": name,
            "messages": report.messages,
            "queues": report.queues,
            "firstMs": report.first_ms,
            "lastMs": report.last_ms,
        }
    )


@click.command("dead-letters")
@pipeline_command("dead-letters")
@_name_server
@click.option("--group", "-g", required=True, help="Whose dead letters.")
@click.option("--cause", help="A part of the exception that killed them.")
@click.option("--topic", "-t", help="Where they came from.")
@click.option("--key", help="One of their keys.")
@since_option
@until_option
@click.option("--redrive", is_flag=True, help="Send them to where they came from.")
@click.option("--to", help="Send them to this topic instead.")
@_name
@_rate
def dead_letters(
    run: Run,
    *,
    name_server: str,
    group: str,
    cause: str | None,
    topic: str | None,
    key: str | None,
    since: int | None,
    until: int | None,
    redrive: bool,
    to: str | None,
    name: str | None,
    rate: int | None,
) -> None:
    """Show why messages of a group died; with --redrive send a selection again, each once."""
    choice = Choice(cause=cause, topic=topic, key=key, start_ms=since, end_ms=until)
    config = None
    if redrive and not run.dry_run:
        config = _copying(name_server, name, to, rate, tasks=1, keep_order=True)
    with run.session() as spark, run.progress(spark, "reading dead letters"):
        letters = letters_of.dead_letters(spark, name_server, group)
        some = letters_of.chosen(letters, choice)
        rows = letters_of.causes(some)
        sent = letters_of.redrive(some, config) if config is not None else None
    run.say(_causes(rows) if rows else "no dead letters")
    if sent is not None:
        run.say(f"{sent:,} dead letters sent again, as {name}")
    elif redrive:
        run.say(f"{sum(row.letters for row in rows):,} dead letters would be sent again")
    run.conclude({"group": group, "name": name, "causes": _as_json(rows), "sent": sent})


def _as_json(rows: list[Row]) -> list[dict[str, object]]:
    return [
        row.asDict() | {time: row[time].isoformat() for time in ("first", "last")} for row in rows
    ]


def _copying(
    name_server: str,
    name: str | None,
    to: str | None,
    rate: int | None,
    tasks: int,
    keep_order: bool,
) -> CopyConfig:
    if not name:
        raise ConfigError("--name is required: a run that is started again continues under it")
    return CopyConfig(
        name_servers=name_server,
        name=name,
        topic=to,
        rate=rate,
        tasks=tasks,
        keep_order=keep_order,
    )


def _replayed(report: ReplayReport, dry_run: bool) -> str:
    verb = "would be sent" if dry_run else "sent"
    if report.first_ms is None or report.last_ms is None:
        return f"nothing {verb}"
    first, last = (
        datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
        for ms in (report.first_ms, report.last_ms)
    )
    return (
        f"{report.messages:,} messages of {report.queues} queues {verb}, stored {first} to {last}"
    )


def _causes(rows: list[Row]) -> Table:
    """Return a table of causes, with a bar for how many each has."""
    table = Table(title="dead letters by cause")
    for name in ("letters", "", "cause", "from topic", "first", "last", "example"):
        table.add_column(name, justify="right" if name == "letters" else "left")
    most = max(row.letters for row in rows)
    for row in rows:
        bar = "█" * max(1, round(_BAR * row.letters / most))
        times = [f"{time:%Y-%m-%d %H:%M:%S}" for time in (row["first"], row["last"])]
        table.add_row(
            f"{row.letters:,}", bar, row.cause, row.origin or "?", *times, row.example[:_EXAMPLE]
        )
    return table


_BAR = 20
_EXAMPLE = 60
