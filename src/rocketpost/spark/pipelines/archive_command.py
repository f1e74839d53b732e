"""The command ``rocketpost pipeline archive``."""

from __future__ import annotations

import click
from click.core import ParameterSource
from rich.markup import escape
from rich.table import Table

from rocketpost.errors import ClientError, ConfigError
from rocketpost.spark.lake.lake import FORMATS, Snapshot, open_lake
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.pipelines.archive import (
    BATCH_OFFSETS,
    ArchiveConfig,
    ArchiveReport,
    plan_archive,
)
from rocketpost.spark.pipelines.archive import archive as archive_all
from rocketpost.spark.pipelines.command import FAILURES, Run, pipeline_command
from rocketpost.spark.pipelines.compaction import FILE_BYTES, compact, plan_merges
from rocketpost.spark.pipelines.verification import verify
from rocketpost.spark.source.plan import Range

_LOOK_SECONDS = 1.0
_OF_ARCHIVES = frozenset(
    ("name_server", "topic", "topic_pattern", "kind", "max_offsets", "hold", "allow_loss")
)


@click.command()
@pipeline_command("archive")
@click.option(
    "--name-server", "-n", metavar="HOST:PORT", help="Name servers, separated by semicolons."
)
@click.option("--topic", "-t", help="Topics, separated by commas.")
@click.option("--topic-pattern", help="A regular expression for topics instead.")
@click.option("--lake", required=True, help="A directory, or a URI that Spark and Arrow can open.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    help="Format of a new lake; parquet if not given.",
)
@click.option(
    "--max-offsets",
    type=click.IntRange(1),
    default=BATCH_OFFSETS,
    show_default=True,
    help="Approximate number of messages per batch.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    help="Keep running, and look for new messages at this interval (s).",
)
@click.option(
    "--continuous", is_flag=True, help="Keep running, and archive new messages as they arrive."
)
@click.option("--hold", metavar="GROUP", help="Make brokers keep messages until they are archived.")
@click.option(
    "--allow-loss",
    is_flag=True,
    help="Continue if messages were deleted before they were archived.",
)
@click.option("--verify", "is_verify", is_flag=True, help="Only check the archived messages.")
@click.option("--compact", "is_compact", is_flag=True, help="Only merge small files.")
def archive(
    run: Run,
    *,
    name_server: str | None,
    topic: str | None,
    topic_pattern: str | None,
    lake: str,
    kind: str | None,
    max_offsets: int,
    every: float | None,
    continuous: bool,
    hold: str | None,
    allow_loss: bool,
    is_verify: bool,
    is_compact: bool,
) -> None:
    """Keep topics in a lake of Parquet files, exactly once."""
    _check_only_one("--verify", is_verify, "--compact", is_compact)
    _check_only_one("--every", every, "--continuous", continuous)
    for name, is_given in (("--verify", is_verify), ("--compact", is_compact)):
        _check_only_one(name, is_given, "--every", every)
        _check_only_one(name, is_given, "--continuous", continuous)
        if is_given:
            _refuse_unused_options(name)
    if is_verify:
        _verify(run, lake)
        return
    if is_compact:
        _compact(run, lake)
        return
    if not name_server:
        raise ConfigError("--name-server (-n) is required, such as 127.0.0.1:9876")
    if bool(topic) == bool(topic_pattern):
        raise ConfigError("exactly one of --topic (-t) and --topic-pattern is required")
    config = ArchiveConfig(
        source=SourceOptions(
            name_servers=name_server,
            topic=topic or "",
            topic_pattern=topic_pattern or "",
        ),
        lake=lake,
        format=kind or "",
        offsets_max=max_offsets,
        allow_loss=allow_loss,
        hold=hold or "",
    )
    if run.dry_run:
        pieces, lost = plan_archive(config)
        _show_ranges(run, "would be archived", pieces, lost)
        run.conclude({"lake": lake, "queues": _as_json(pieces), "lost": lost})
        return
    config.open()  # refuses a lake of another kind before Spark starts
    total = ArchiveReport()
    run.can_go_on = True
    try:
        _run(run, config, 0 if continuous else every, total)
    except FAILURES:
        if not run.is_stopping:
            raise
    finally:
        _summarize(run, config, total)
    if run.is_stopping and every is None and not continuous:
        raise ClientError(run.stopped)


def _run(run: Run, config: ArchiveConfig, every: float | None, total: ArchiveReport) -> None:
    """Archive present messages, and later ones if requested."""
    with run.session() as spark, run.progress(spark, "archiving") as shown:

        def show(done: int, rest: int) -> None:
            ahead = min(rest, config.offsets_max or rest)
            shown.count(total.rows + done, total.rows + done + rest, ahead=ahead)

        while not run.is_stopping:
            report = ArchiveReport()
            try:
                archive_all(spark, config, report, on_batch=show, is_over=lambda: run.is_stopping)
            finally:
                total.join(report)
            if every is None:
                return
            if every or not report.batches:
                run.pause(every or _LOOK_SECONDS)


def _check_only_one(name: str, value: object, other: str, other_value: object) -> None:
    if value and other_value:
        raise ConfigError(f"{name} and {other} cannot be combined")


def _refuse_unused_options(mode: str) -> None:
    """Refuse options that only an archive run uses, unless they come from a file.

    Raises:
        ConfigError: Such an option was on the command line.
    """
    context = click.get_current_context()
    needless = [
        option.opts[0]
        for option in context.command.params
        if option.name in _OF_ARCHIVES
        and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    ]
    if needless:
        raise ConfigError(f"{mode} works on the whole lake; leave out {', '.join(needless)}")


def _summarize(run: Run, config: ArchiveConfig, total: ArchiveReport) -> None:
    pieces = list(total.queues.values())
    _show_ranges(run, "archived", pieces, total.lost)
    run.say(
        f"{total.rows:,} messages in {total.batches} batches, {total.bytes:,} bytes of Parquet, "
        f"{run.seconds:.1f} s"
    )
    run.conclude(
        {
            "lake": config.lake,
            "messages": total.rows,
            "batches": total.batches,
            "bytes": total.bytes,
            "queues": _as_json(pieces),
            "lost": total.lost,
        }
    )


def _open_lake(lake: str) -> Snapshot:
    """Return a lake and its content.

    Raises:
        ConfigError: The lake is empty, so another one was probably meant.
    """
    held = open_lake(lake).snapshot()
    if not held.batches:
        raise ConfigError(f"nothing is archived in {lake}")
    return held


def _verify(run: Run, lake: str) -> None:
    held = _open_lake(lake)
    if run.dry_run:
        run.say(f"would read every file of {lake}", markup=False)
        return
    with run.session() as spark, run.progress(spark, "verifying"):
        flaws = verify(spark, lake, is_over=lambda: run.is_stopping)
    batches = held.batches
    for flaw in flaws:
        run.say(f"[red]{escape(flaw.text)}[/red]")
    lost = [f"batch {batch.number}: {text}" for batch in batches for text in batch.lost]
    for text in lost:
        run.say(f"[yellow]{escape(text)}[/yellow]")
    run.say(f"{len(batches)} batches, {held.rows:,} messages, {len(flaws)} flaws")
    run.conclude(
        {
            "lake": lake,
            "batches": len(batches),
            "messages": held.rows,
            "flaws": [flaw.text for flaw in flaws],
            "lost": lost,
        },
        is_whole=not flaws,
    )


def _compact(run: Run, lake: str) -> None:
    files = _open_lake(lake).files
    if run.dry_run:
        small = sum(len(merge.files) for merge in plan_merges(files, FILE_BYTES))
        run.say(f"would merge {small} of {len(files)} files")
        run.conclude({"lake": lake, "files": len(files), "small": small})
        return
    with run.session() as spark, run.progress(spark, "compacting"):
        done = compact(spark, lake)
    before, after = (done.before, done.after) if done is not None else (len(files), len(files))
    run.say(f"{before} files before, {after} now")
    run.conclude({"lake": lake, "filesBefore": before, "filesAfter": after})


def _show_ranges(run: Run, title: str, pieces: list[Range], lost: list[str]) -> None:
    table = Table(title=title)
    for name in ("topic", "broker", "queue", "from", "until", "messages"):
        table.add_column(name, justify="right" if name not in ("topic", "broker") else "left")
    for piece in sorted(pieces):
        queue = piece.queue
        numbers = (queue.queue_id, piece.start, piece.end, piece.length)
        table.add_row(queue.topic, queue.broker, *[f"{number:,}" for number in numbers])
    run.say(table if pieces else f"nothing {title}")
    for text in lost:
        run.say(f"[yellow]lost: {escape(text)}[/yellow]")


def _as_json(pieces: list[Range]) -> list[dict[str, object]]:
    return [
        {**piece.queue._asdict(), "from": piece.start, "until": piece.end}
        for piece in sorted(pieces)
    ]
