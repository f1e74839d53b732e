"""``rocketpost pipeline NAME``: the pipelines from the command line.

Options may also stand in a YAML file (``--config``), by the names they have here; the command line
wins. Commands exit with 0 when they did all of their work, 1 when something failed, and 2 when an
option makes no sense.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console
from rich.table import Table

from rocketpost.errors import ConfigError, RocketpostError
from rocketpost.spark.lake import Lake
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.pipelines.archive import (
    ArchiveConfig,
    ArchiveReport,
    compact,
    planned,
    verify,
)
from rocketpost.spark.pipelines.archive import archive as archive_all
from rocketpost.spark.plan import Range
from rocketpost.spark.session import LOCAL_MASTER, make_session

console = Console(highlight=False)


def _from_file(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Take the options of a YAML file as defaults.

    Raises:
        click.UsageError: A name in it is no option of the command.
    """
    if path is None:
        return None
    try:
        values = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise click.UsageError(f"{path} must hold options, such as topic: Orders")
    known = {name.lstrip("-"): each.name for each in context.command.params for name in each.opts}
    unknown = [name for name in values if name not in known]
    if unknown:
        raise click.UsageError(f"{path}: there is no option {unknown[0]!r}")
    context.default_map = {str(known[name]): value for name, value in values.items()}
    return path


_config = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    callback=_from_file,
    is_eager=True,
    expose_value=False,
    help="A YAML file with options.",
)
_master = click.option(
    "--master", default=LOCAL_MASTER, show_default=True, help="Where Spark runs."
)
_conf = click.option(
    "--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark's; may be repeated."
)


@click.group()
def pipeline() -> None:
    """Work over many messages, on Spark."""


@pipeline.command()
@_config
@click.option("--name-server", "-n", metavar="HOST:PORT", help="Name servers, parted by ;")
@click.option("--topic", "-t", help="Topics, parted by commas.")
@click.option("--topic-pattern", help="A regular expression of topics instead.")
@click.option("--lake", required=True, help="A directory, or a URI that Spark and Arrow can open.")
@click.option("--max-offsets", type=click.IntRange(1), help="Messages of one batch at most.")
@click.option("--every", type=click.FloatRange(min=0.1), help="Go on, and look again so often (s).")
@click.option("--allow-loss", is_flag=True, help="Go on if messages were deleted unarchived.")
@click.option("--verify", "is_verify", is_flag=True, help="Only check what is archived.")
@click.option("--compact", "is_compact", is_flag=True, help="Only merge small files.")
@click.option("--dry-run", is_flag=True, help="Only say what would be archived.")
@_master
@_conf
def archive(
    name_server: str | None,
    topic: str | None,
    topic_pattern: str | None,
    lake: str,
    max_offsets: int | None,
    every: float | None,
    allow_loss: bool,
    is_verify: bool,
    is_compact: bool,
    dry_run: bool,
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Keep topics in a lake of Parquet files, exactly once."""
    with _failures():
        if is_verify:
            _verify(lake, master, conf)
            return
        if is_compact:
            _compact(lake, master, conf)
            return
        config = ArchiveConfig(
            source=SourceOptions(
                name_servers=name_server or "",
                topic=topic or "",
                topic_pattern=topic_pattern or "",
            ),
            lake=lake,
            offsets_max=max_offsets,
            allow_loss=allow_loss,
        )
        if dry_run:
            pieces, lost = planned(config)
            _show_ranges("would be archived", pieces, lost)
            return
        _run(config, every, master, conf)


def _run(config: ArchiveConfig, every: float | None, master: str, conf: tuple[str, ...]) -> None:
    started = time.monotonic()
    total = ArchiveReport()
    with _session("archive", master, conf) as spark, console.status("archiving") as status:

        def progress(report: ArchiveReport) -> None:
            status.update(f"archived {total.rows + report.rows:,} messages")

        while True:
            total.join(archive_all(spark, config, on_batch=progress))
            if every is None:
                break
            time.sleep(every)
    _show_ranges("archived", list(total.queues.values()), total.lost)
    seconds = time.monotonic() - started
    console.print(
        f"{total.rows:,} messages in {total.batches} batches, {total.bytes:,} bytes of Parquet, "
        f"{seconds:.1f} s"
    )


def _verify(lake: str, master: str, conf: tuple[str, ...]) -> None:
    with _session("verify", master, conf) as spark:
        flaws = verify(spark, lake)
    batches = Lake(lake).batches()
    for flaw in flaws:
        console.print(f"[red]{flaw.text}[/red]")
    for batch in batches:
        for text in batch.lost:
            console.print(f"[yellow]batch {batch.number}: {text}[/yellow]")
    rows = sum(batch.rows for batch in batches)
    console.print(f"{len(batches)} batches, {rows:,} messages, {len(flaws)} flaws")
    if flaws:
        raise click.exceptions.Exit(1)


def _compact(lake: str, master: str, conf: tuple[str, ...]) -> None:
    before = len(Lake(lake).file_uris())
    with _session("compact", master, conf) as spark:
        batch = compact(spark, lake)
    after = len(batch.files) if batch is not None else before
    console.print(f"{before} files before, {after} now")


def _show_ranges(title: str, pieces: list[Range], lost: list[str]) -> None:
    table = Table(title=title)
    for name in ("topic", "broker", "queue", "from", "until", "messages"):
        table.add_column(name, justify="right" if name not in ("topic", "broker") else "left")
    for piece in sorted(pieces):
        queue = piece.queue
        numbers = (queue.queue_id, piece.start, piece.end, piece.length)
        table.add_row(queue.topic, queue.broker, *[f"{number:,}" for number in numbers])
    console.print(table if pieces else f"nothing {title}")
    for text in lost:
        console.print(f"[yellow]lost: {text}[/yellow]")


@contextlib.contextmanager
def _session(name: str, master: str, conf: tuple[str, ...]) -> Iterator[Any]:
    settings = {}
    for pair in conf:
        key, separator, value = pair.partition("=")
        if not separator:
            raise ConfigError(f"--conf {pair} must be KEY=VALUE")
        settings[key] = value
    with console.status("starting Spark"):
        spark = make_session(f"rocketpost {name}", master=master, options=settings)
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    except RocketpostError as error:
        raise click.ClickException(str(error)) from None
