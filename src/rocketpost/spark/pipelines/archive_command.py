"""``rocketpost pipeline archive``."""

from __future__ import annotations

import time

import click
from rich.table import Table

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
from rocketpost.spark.pipelines.command import (
    conf_option,
    config_option,
    console,
    failures,
    master_option,
    session,
)
from rocketpost.spark.plan import Range


@click.command()
@config_option
@click.option("--name-server", "-n", metavar="HOST:PORT", help="Name servers, parted by ;")
@click.option("--topic", "-t", help="Topics, parted by commas.")
@click.option("--topic-pattern", help="A regular expression of topics instead.")
@click.option("--lake", required=True, help="A directory, or a URI that Spark and Arrow can open.")
@click.option("--max-offsets", type=click.IntRange(1), help="Messages of one batch at most.")
@click.option("--every", type=click.FloatRange(min=0.1), help="Go on, and look again so often (s).")
@click.option("--hold", metavar="GROUP", help="Let brokers keep what is not archived yet.")
@click.option("--allow-loss", is_flag=True, help="Go on if messages were deleted unarchived.")
@click.option("--verify", "is_verify", is_flag=True, help="Only check what is archived.")
@click.option("--compact", "is_compact", is_flag=True, help="Only merge small files.")
@click.option("--dry-run", is_flag=True, help="Only say what would be archived.")
@master_option
@conf_option
def archive(
    name_server: str | None,
    topic: str | None,
    topic_pattern: str | None,
    lake: str,
    max_offsets: int | None,
    every: float | None,
    hold: str | None,
    allow_loss: bool,
    is_verify: bool,
    is_compact: bool,
    dry_run: bool,
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Keep topics in a lake of Parquet files, exactly once."""
    with failures():
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
            hold=hold or "",
        )
        if dry_run:
            pieces, lost = planned(config)
            _show_ranges("would be archived", pieces, lost)
            return
        _run(config, every, master, conf)


def _run(config: ArchiveConfig, every: float | None, master: str, conf: tuple[str, ...]) -> None:
    started = time.monotonic()
    total = ArchiveReport()
    with session("archive", master, conf) as spark, console.status("archiving") as status:

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
    with session("verify", master, conf) as spark:
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
    with session("compact", master, conf) as spark:
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
