"""The commands ``rocketpost pipeline replay`` and ``rocketpost pipeline dead-letters``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
import msgspec
from rich.markup import escape
from rich.table import Table

from rocketpost.errors import ClientError, ConfigError
from rocketpost.spark.pipelines.command import (
    Run,
    html_option,
    pipeline_command,
    since_option,
    until_option,
)
from rocketpost.spark.pipelines.copying import CopyConfig
from rocketpost.spark.pipelines.dead_letter_page import page
from rocketpost.spark.pipelines.dead_letter_report import LetterReport, RedriveReport
from rocketpost.spark.pipelines.dead_letters import REDRIVES_MAX, Choice, DeadLetters
from rocketpost.spark.pipelines.page import utc
from rocketpost.spark.pipelines.replay import ReplayReport
from rocketpost.spark.pipelines.replay import replay as replay_all
from rocketpost.spark.pipelines.selection import Selection, check_lake, parse_offsets

_BAR: Final = 8
_EXAMPLE: Final = 60
_NO_NAME: Final = "dry-run"

_name_server = click.option(
    "--name-server",
    "-n",
    required=True,
    metavar="HOST:PORT",
    help="Name servers, separated by semicolons.",
)
_rate = click.option(
    "--rate", type=click.IntRange(1), help="Maximum number of messages per second in total."
)
_name = click.option(
    "--name",
    help=(
        "Name of this run, such as monday; required to send. The same name and selection "
        "continue it."
    ),
)


@click.command()
@pipeline_command("replay")
@_name_server
@click.option("--topic", "-t", required=True, help="Topics, separated by commas.")
@click.option("--to", help="Topic for all copies; each message's own topic if not given.")
@click.option("--lake", help="Read messages from this lake; from the brokers if not given.")
@since_option
@until_option
@click.option("--tags", metavar="A||B", help="Only messages with one of these tags.")
@click.option("--key", multiple=True, help="Only messages with this key; may be repeated.")
@click.option("--offsets", metavar="JSON", help='Such as {"Orders": {"broker-a": {"0": [5, 9]}}}.')
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
    tags: str | None,
    key: tuple[str, ...],
    offsets: str | None,
    name: str | None,
    rate: int | None,
    tasks: int,
    any_order: bool,
) -> None:
    """Send messages again, from a lake or a time range: in order, at a rate, each once."""
    config = CopyConfig(
        name_servers=name_server,
        name=_check_name(name, run.dry_run),
        topic=to,
        rate=rate,
        tasks=tasks,
        keep_order=not any_order,
    )
    selection = Selection(
        topics=_split_list(topic, ","),
        name_servers="" if lake else name_server,
        lake=lake or "",
        start_ms=since,
        end_ms=until,
        tags=_split_list(tags or "", "||"),
        keys=key,
        offsets=parse_offsets(offsets) if offsets else None,
    )
    check_lake(selection)
    run.can_go_on = True
    with run.session() as spark, run.progress(spark, "replaying") as shown:
        report = replay_all(
            spark,
            selection,
            config,
            dry_run=run.dry_run,
            on_progress=shown.count,
            is_over=lambda: run.is_stopping,
        )
    if run.dry_run:
        run.say(_queues(report))
    run.say(_show_replay(report, run.dry_run))
    run.conclude(msgspec.to_builtins(report))
    if not run.dry_run and report.stored < report.messages:
        raise ClientError(run.stopped)


@click.command("dead-letters")
@pipeline_command("dead-letters")
@_name_server
@click.option("--group", "-g", required=True, help="Consumer group of the dead letters.")
@click.option("--cause", help="Part of the exception that caused them, or of its text.")
@click.option("--topic", "-t", help="Topic that they came from.")
@click.option("--key", help="One of their keys.")
@since_option
@until_option
@html_option
@click.option("--redrive", is_flag=True, help="Send them to the topics that they came from.")
@click.option("--to", help="Send them to this topic instead.")
@click.option(
    "--max-redrives",
    type=click.IntRange(1),
    help=f"Skip messages that were sent again this often.  [default: {REDRIVES_MAX}]",
)
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
    html_file: Path | None,
    redrive: bool,
    to: str | None,
    max_redrives: int | None,
    name: str | None,
    rate: int | None,
) -> None:
    """Show why messages of a group died; with --redrive send a selection again, each once."""
    choice = Choice(cause=cause, topic=topic, key=key, start_ms=since, end_ms=until)
    config = None
    given = {"--to": to, "--max-redrives": max_redrives, "--name": name, "--rate": rate}
    needless = [option for option, value in given.items() if value is not None]
    if needless and not redrive:
        raise ConfigError(f"only --redrive takes {', '.join(needless)}")
    if redrive:
        named = _check_name(name, run.dry_run)
        config = CopyConfig(name_servers=name_server, name=named, topic=to, rate=rate)
        run.can_go_on = True
    sent = None
    with run.session() as spark, run.progress(spark, "reading dead letters") as shown:
        letters = DeadLetters(
            spark, name_server, group, choice, redrives_max=max_redrives or REDRIVES_MAX
        )
        report = letters.report()
        if config is not None:
            sent = letters.redrive(
                config,
                dry_run=run.dry_run,
                on_progress=shown.count,
                is_over=lambda: run.is_stopping,
            )
    if html_file is not None:
        html_file.write_text(page(report), encoding="utf-8")
    _say_letters(run, report)
    if sent is not None:
        run.say(_show_redrive(sent, run.dry_run), markup=False)
    run.conclude(msgspec.to_builtins(report) | {"redriven": sent and msgspec.to_builtins(sent)})
    if sent is not None and not run.dry_run and sent.stored < sent.letters:
        raise ClientError(run.stopped)


def _check_name(name: str | None, dry_run: bool) -> str:
    if not name and not dry_run:
        raise ConfigError("--name is required: a run that is started again under it continues")
    return name or _NO_NAME


def _split_list(text: str, separator: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(separator) if part.strip())


def _show_replay(report: ReplayReport, dry_run: bool) -> str:
    if report.first_ms is None or report.last_ms is None:
        return "no message is selected"
    text = (
        f"{report.messages:,} messages of {len(report.queues)} queues, "
        f"stored {utc(report.first_ms)} to {utc(report.last_ms)} UTC: "
    )
    left = max(0, (report.messages if dry_run else report.stored) - report.before)
    text += f"{left:,} would be sent" if dry_run else f"{left:,} sent as {report.name}"
    return text + (f", {report.before:,} had been sent before" if report.before else "")


def _show_redrive(sent: RedriveReport, dry_run: bool) -> str:
    left = max(0, (sent.letters if dry_run else sent.stored) - sent.before)
    text = f"{left:,} dead letters " + ("would be sent again" if dry_run else "sent again")
    text += "" if dry_run else f" as {sent.name}"
    return text + (f", {sent.before:,} had been sent before" if sent.before else "")


def _queues(report: ReplayReport) -> Table:
    table = Table(title="what would be sent")
    table.add_column("queue", overflow="fold")
    for name in ("messages", "first offset", "last offset"):
        table.add_column(name, justify="right", no_wrap=True)
    for queue in report.queues:
        place = escape(f"{queue.topic}/{queue.broker}/{queue.queue_id}")
        table.add_row(place, f"{queue.messages:,}", f"{queue.first:,}", f"{queue.last:,}")
    return table


def _say_letters(run: Run, report: LetterReport) -> None:
    if not report.letters:
        run.say("no dead letters")
        return
    run.say(_causes(report))
    if report.texts:
        run.say(_texts(report))
    if report.without_origin:
        run.say(f"{report.without_origin:,} do not name the topic that they came from")
    if report.worn_out:
        run.say(
            f"{report.worn_out:,} were sent again {report.redrives_max} times or more, "
            "and are skipped"
        )


def _causes(report: LetterReport) -> Table:
    """Return a table of causes, with a bar for the number of each."""
    table = Table(title=f"{report.letters:,} dead letters by cause")
    _add_columns(table, "cause", "from topic", "last (UTC)", "example")
    most = report.causes[0].letters
    for cause in report.causes:
        table.add_row(
            f"{cause.letters:,}",
            _bar(cause.letters, most),
            escape(cause.cause),
            escape(cause.topic or "?"),
            utc(cause.last_ms),
            escape(cause.example[:_EXAMPLE]),
        )
    return table


def _texts(report: LetterReport) -> Table:
    table = Table(title="by text, numbers as #")
    _add_columns(table, "text", "cause", "last (UTC)")
    most = report.texts[0].letters
    for text in report.texts:
        table.add_row(
            f"{text.letters:,}",
            _bar(text.letters, most),
            escape(text.text[:_EXAMPLE]),
            escape(text.cause),
            utc(text.last_ms),
        )
    return table


def _add_columns(table: Table, *names: str) -> None:
    table.add_column("letters", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name in names:
        table.add_column(name, overflow="fold")


def _bar(part: int, whole: int) -> str:
    return "█" * max(1, round(_BAR * part / whole))
