"""The guided tour: real servers, real traffic, a kill -9 in the middle, and a table of results.

A name server and a broker run as their own processes. A producer sends numbered messages and a
consumer in the same process receives them. At a random moment the broker is killed and started
again. In the end every acknowledged message must have been received. Then Spark archives the topic
and counts the messages in the lake.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from rocketpost.client import (
    Message,
    Producer,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    RocketpostError,
    SendResult,
    StartFrom,
)
from rocketpost.testing.cluster import Cluster

TOPIC: Final = "Tour"
GROUP: Final = "tour"
_BODY: Final = b"a message of the guided tour, padded to be a little more like the real thing "
_SILENCE_SECONDS: Final = 30.0
_PATIENCE_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 0.2
_NEXT: Final = (
    (".venv/bin/rocketpost up --console", "a server of your own, and the link of its console"),
    (".venv/bin/mqadmin clusterList -n 127.0.0.1:9876", "look at it"),
    (".venv/bin/python examples/produce.py", "send to it"),
)


@dataclass(slots=True)
class TourLedger:
    """The messages sent, acknowledged and received, by number."""

    sent: int = 0
    acknowledged: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    received: set[int] = field(default_factory=set)
    repeated: int = 0
    duplicates: int = 0
    altered: int = 0

    @property
    def lost(self) -> set[int]:
        """The messages acknowledged and never received."""
        return self.acknowledged - self.received

    def adds_up(self, messages: int) -> bool:
        """Tell whether all of ``messages`` were sent, acknowledged and received unaltered."""
        return (
            self.sent == len(self.acknowledged) == messages
            and not self.failed
            and not self.lost
            and not self.altered
        )

    def receive(self, message: ReceivedMessage) -> None:
        """Record a received message."""
        number, _, rest = bytes(message.body).partition(b":")
        if rest != _BODY or not number.isdigit():
            self.altered += 1
            return
        if int(number) in self.received:
            self.duplicates += 1
        self.received.add(int(number))


@dataclass(slots=True)
class TourTimes:
    """Times of the tour's events, on the monotonic clock."""

    started: float = 0.0
    sent: float = 0.0
    received: float = 0.0
    down_seconds: float = 0.0
    start_seconds: float = 0.0


def run_tour(*, messages: int, data: Path | None, seed: int | None, with_spark: bool = True) -> int:
    """Run the tour and return the exit code: 0 only if the tables add up."""
    console = Console()
    # Clients log warnings about the broker that is killed on purpose; the table tells it better.
    logging.getLogger("rocketpost").setLevel(logging.CRITICAL)
    data = data or fresh_folder(Path("data") / "tour")
    with contextlib.ExitStack() as stack:
        seed = random.randrange(2**31) if seed is None else seed
        console.rule("[bold]Rocketpost: a guided tour")
        console.print(f"Data goes to [bold]{data}[/]. Seed {seed} decides when the broker dies.")
        before = time.monotonic()
        cluster = stack.enter_context(Cluster(data, settings=_SETTINGS))
        times = TourTimes(start_seconds=time.monotonic() - before)
        console.print(
            f"Name server [bold]{cluster.addresses}[/] and broker "
            f"[bold]{cluster.broker_addresses[0]}[/] are up after {times.start_seconds:.2f} s."
        )
        ledger = TourLedger()
        asyncio.run(_drive(console, cluster, ledger, times, messages=messages, seed=seed))
        memory = cluster.brokers[0].memory_bytes() + cluster.name_servers[0].memory_bytes()
        adds_up = ledger.adds_up(messages)
        _report(console, ledger, times, data=str(data), memory=memory)
        if with_spark and adds_up:
            adds_up = _archive(console, cluster, ledger, data)
    _say_what_next(console, adds_up=adds_up)
    return 0 if adds_up else 1


def fresh_folder(folder: Path) -> Path:
    """Return ``folder`` emptied of the last tour's data; another one if it is not a tour's."""
    mark = folder / _MARK
    if folder.exists():
        if not mark.exists():
            return Path(tempfile.mkdtemp(prefix="rocketpost-tour-"))
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    mark.touch()
    return folder.absolute()


_MARK: Final = ".made-by-the-tour"
_SETTINGS: Final = {"mappedFileSizeCommitLog": str(64 * 1024 * 1024)}


def _archive(console: Console, cluster: Cluster, ledger: TourLedger, data: Path) -> bool:
    """Archive the topic with Spark and show an aggregate; False if a message is missing."""
    try:
        from pyspark.sql import functions

        from rocketpost.spark.options import SourceOptions
        from rocketpost.spark.pipelines.archive import ArchiveConfig, archive, archived
        from rocketpost.spark.session import make_session
    except ImportError as error:
        console.print(f"No Spark here ({error}), so nothing is archived: `make setup` installs it.")
        return True
    lake = str(data / "lake")
    source = SourceOptions(name_servers=cluster.addresses, topic=TOPIC)
    with console.status("Spark archives the topic"):
        spark = make_session("rocketpost tour")
        try:
            report = archive(spark, ArchiveConfig(source=source, lake=lake))
            frame = archived(spark, lake).selectExpr(
                "queueId",
                "length(body) AS bytes",
                "int(split(string(body), ':')[0]) AS number",
                "unix_millis(storeTimestamp) - unix_millis(bornTimestamp) AS ms",
            )
            kept = frame.select("number").distinct().count()
            rows = (
                frame.groupBy("queueId")
                .agg(*[functions.expr(text) for text in _AGGREGATES])
                .orderBy("queueId")
                .collect()
            )
        finally:
            spark.stop()
    table = Table(title=f"{report.rows:,} messages archived by Spark, by queue", title_style="bold")
    for name in ("queue", "messages", "bytes", "ms to be stored: median", "99 %"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*[f"{value:,}" for value in row])
    console.print(table)
    console.print(f"The lake is {lake}, as Parquet files.", soft_wrap=True)
    return bool(kept == len(ledger.acknowledged))


_AGGREGATES: Final = (
    "count(*)",
    "sum(bytes)",
    "approx_percentile(ms, 0.5)",
    "approx_percentile(ms, 0.99)",
)


async def _drive(
    console: Console,
    cluster: Cluster,
    ledger: TourLedger,
    times: TourTimes,
    *,
    messages: int,
    seed: int,
) -> None:
    kill_at = random.Random(seed).randint(messages // 4, messages * 3 // 4)
    progress = Progress(
        TextColumn("{task.description:<14}"), BarColumn(), MofNCompleteColumn(), console=console
    )
    with progress:
        sending = progress.add_task("acknowledged", total=messages)
        receiving = progress.add_task("received", total=messages)
        progress_task = asyncio.create_task(_show(progress, sending, receiving, ledger))
        consumer = PushConsumer(
            GROUP,
            name_servers=cluster.addresses,
            config=PushConsumerConfig(start_from=StartFrom.FIRST),
        )
        producer = Producer(
            "tour-producer",
            name_servers=cluster.addresses,
            config=ProducerConfig(send_timeout=5.0),
        )

        async def handle(message: ReceivedMessage) -> None:
            ledger.receive(message)
            times.received = time.monotonic()

        consumer.subscribe(TOPIC, handle)
        times.started = time.monotonic()
        async with producer, consumer:
            due = asyncio.Event()
            assassin = asyncio.create_task(_kill(console, cluster, ledger, times, due))
            await _send(producer, ledger, messages, kill_at=kill_at, due=due)
            times.sent = time.monotonic()
            await assassin
            await _wait_received(ledger)
        progress_task.cancel()
        progress.update(sending, completed=len(ledger.acknowledged))
        progress.update(receiving, completed=len(ledger.received))


async def _send(
    producer: Producer, ledger: TourLedger, messages: int, *, kill_at: int, due: asyncio.Event
) -> None:
    """Send every message until it is acknowledged, as an application would."""

    async def settle(number: int, message: Message, result: asyncio.Future[SendResult]) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                await result
                break
            except RocketpostError:
                if time.monotonic() > deadline:
                    ledger.failed.add(number)
                    return
            await asyncio.sleep(_RETRY_SECONDS)
            ledger.repeated += 1
            result = await producer.send_soon(message)
        ledger.acknowledged.add(number)
        if len(ledger.acknowledged) == kill_at:
            due.set()

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(messages):
                message = Message(TOPIC, b"%d:%b" % (number, _BODY), keys=f"n{number}")
                future = await producer.send_soon(message)
                ledger.sent += 1
                group.create_task(settle(number, message, future))
    finally:
        due.set()  # in case too few messages were acknowledged


async def _kill(
    console: Console, cluster: Cluster, ledger: TourLedger, times: TourTimes, due: asyncio.Event
) -> None:
    """Kill the broker at its time, and start it again."""
    await due.wait()
    broker = cluster.brokers[0]
    at, before = len(ledger.acknowledged), time.monotonic()
    await asyncio.to_thread(broker.kill)
    console.print(f"[red]kill -9[/] of the broker after {at:,} acknowledgements ...")
    await asyncio.to_thread(broker.start)
    times.down_seconds = time.monotonic() - before
    recovered = next((line for line in reversed(broker.output) if "store recovered" in line), "")
    replayed = recovered.rpartition("replayed=")[2].partition(" ")[0] or "?"
    console.print(
        f"... and it serves again after [bold]{times.down_seconds:.2f} s[/], {replayed} "
        "messages of the log read again."
    )


async def _wait_received(ledger: TourLedger) -> None:
    """Wait until nothing acknowledged is missing, or nothing has arrived for a long time."""
    seen, since = len(ledger.received), time.monotonic()
    while ledger.lost and time.monotonic() - since < _SILENCE_SECONDS:
        await asyncio.sleep(0.05)
        if len(ledger.received) > seen:
            seen, since = len(ledger.received), time.monotonic()


async def _show(progress: Progress, sending: TaskID, receiving: TaskID, ledger: TourLedger) -> None:
    while True:
        progress.update(sending, completed=len(ledger.acknowledged))
        progress.update(receiving, completed=len(ledger.received))
        await asyncio.sleep(0.1)


def _report(
    console: Console, ledger: TourLedger, times: TourTimes, *, data: str, memory: int
) -> None:
    lost = len(ledger.lost)
    send_seconds = max(times.sent - times.started - times.down_seconds, 0.001)
    receive_seconds = max(times.received - times.started - times.down_seconds, 0.001)
    table = Table(title="What happened", show_header=False, title_style="bold")
    table.add_column(justify="left")
    table.add_column(justify="right")
    for name, value in (
        ("sent", f"{ledger.sent:,}"),
        ("acknowledged", f"{len(ledger.acknowledged):,}"),
        ("not acknowledged", f"{len(ledger.failed):,}"),
        ("sent again after the kill", f"{ledger.repeated:,}"),
        ("received", f"{len(ledger.received):,}"),
        ("received again (at least once)", f"{ledger.duplicates:,}"),
        ("altered", f"{ledger.altered:,}"),
        ("lost", f"[bold {'green' if not lost else 'red'}]{lost:,}[/]"),
        ("sent per second", f"{ledger.sent / send_seconds:,.0f}"),
        ("received per second", f"{len(ledger.received) / receive_seconds:,.0f}"),
        ("servers up after", f"{times.start_seconds:.2f} s"),
        ("killed, and back after", f"{times.down_seconds:.2f} s"),
        ("memory of both servers", f"{memory / 1024 / 1024:.0f} MB"),
        ("data", data),
    ):
        table.add_row(name, value)
    console.print(table)


def _say_what_next(console: Console, *, adds_up: bool) -> None:
    if adds_up:
        console.print("Every acknowledged message was received. Try next:")
        for command, gain in _NEXT:
            console.print(f"  {command:<50} {gain}", soft_wrap=True, highlight=False)
    else:
        console.print("[bold red]The tables do not add up.[/] Please report it with the seed.")
