"""Apache RocketMQ's broker beside ours: CPU per message of the same load in the same run.

All brokers run side by side and take turns. Apache's broker is warmed up first, until its compiler
has seen every workload several times. Without Java, Maven or a Maven repository in reach, only our
builds and the echo server are measured.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import re
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

import apache
from builds import ROOT, make_build
from closed_loop import Requests, run_requests
from published import Cell, Result, Row, parts_of, verdict
from rich.console import Console
from rich.table import Table
from rounds import Measurement, measure, run_round
from servers import Target, echo_server, our_broker
from workloads import ASYNC_FLUSH, ROW_NAMES, SYNC_FLUSH, Workload, choose, prepare, send_request

OURS: Final = "Rocketpost"
UNCOMPILED: Final = "uncompiled"
ROUNDS: Final = 7
WARM_UP_MESSAGES: Final = {ASYNC_FLUSH: 200_000, SYNC_FLUSH: 100_000}
WARM_UP_ROUNDS: Final = 4


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    group = parser.add_argument_group("brokers")
    group.add_argument("--rows", default=ROW_NAMES, help=f"a choice of {ROW_NAMES}")
    group.add_argument("--without-apache", action="store_true", help="measure only our builds")
    group.add_argument(
        "--build", action="append", default=[], metavar="NAME=WHERE",
        help="another build as a column, such as before=v1:plain (see compare.py)",
    )  # fmt: skip


def run_brokers(arguments: argparse.Namespace, console: Console) -> Result:
    """Measure all brokers and print the table."""
    rows = choose(arguments.rows)
    missing = "left out" if arguments.without_apache else apache.why_missing()
    if missing:
        console.print(f"Apache's broker is not measured: {missing}")
    described = [f"{OURS}={ROOT}", f"{UNCOMPILED}={ROOT}:plain", *arguments.build]
    found = Measurement()
    memory: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="rocketpost-bench-") as scratch:
        builds = [make_build(text, Path(scratch, "builds")) for text in described]
        for flush in sorted({row.flush for row in rows}):
            chosen = [row for row in rows if row.flush == flush]
            with contextlib.ExitStack() as stack:
                targets: list[Target] = []
                if not missing:
                    broker = apache.apache_broker(Path(scratch, flush, apache.NAME), flush=flush)
                    targets.append(stack.enter_context(broker))
                    warm_up(targets[0], chosen, console, scale=arguments.scale)
                for build in builds:
                    broker = our_broker(build, Path(scratch, flush, build.name), flush=flush)
                    targets.append(stack.enter_context(broker))
                    prepare(targets[-1].port, warm_up=20_000)
                targets.append(stack.enter_context(echo_server()))
                rounds = arguments.rounds or ROUNDS
                measured = measure(targets, chosen, rounds=rounds, scale=arguments.scale)
                for target in targets:
                    memory.setdefault(target.name, round(target.memory_mb()))
            found.costs |= measured.costs
            found.loader |= measured.loader
            found.between = measured.between | found.between
    result = result_of(found, rows, memory, rounds=rounds, with_apache=not missing)
    console.print(table_of(result))
    return result


def warm_up(target: Target, rows: list[Workload], console: Console, *, scale: float) -> None:
    """Run every workload several times, so that the JVM has compiled what it needs."""
    count = round(WARM_UP_MESSAGES[rows[0].flush] * scale)
    console.print(f"  warm-up of Apache's broker: {count:,} sends, {WARM_UP_ROUNDS} rounds")
    prepare(target.port, warm_up=0)
    sends = Requests(send_request)
    run_requests(target.port, sends, count=count, window=256)
    requests = {row.name: row.requests() for row in rows}
    for _ in range(WARM_UP_ROUNDS):
        run_round([target], rows, requests, scale=scale)


def result_of(
    found: Measurement,
    rows: list[Workload],
    memory: dict[str, float],
    *,
    rounds: int,
    with_apache: bool,
) -> Result:
    """Return what was measured in the form that is kept in a file."""
    kept = []
    for row in rows:
        cells = {
            target: Cell(round(min(costs), 3), round(found.median(name, target), 3))
            for (name, target), costs in found.costs.items()
            if name == row.name
        }
        kept.append(Row(row.name, row.title, row.goal, cells))
    return Result(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        rounds=rounds,
        machine=machine_facts() | (apache.versions() if with_apache else {}),
        rows=kept,
        between={name: round(value, 3) for name, value in found.between.items()},
        memory_mb=memory,
        loader={row.name: round(min(found.loader[row.name, OURS]), 3) for row in rows},
    )


def machine_facts() -> dict[str, str]:
    """Return what the machine is and what runs on it."""
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return {
        "cores": str(os.cpu_count()),
        "processor": model[1].strip() if model else platform.machine(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "uvloop": version("uvloop"),
    }


def table_of(result: Result) -> Table:
    """Return the table for the terminal."""
    table = Table(title="CPU us per message: min / median")
    table.add_column("load")
    for name in result.targets():
        table.add_column(name, justify="right")
    for column in (f"{OURS} : Apache", "goal", ""):
        table.add_column(column, justify="right")
    for row in result.rows:
        cells = [f"{row.cells[name]}" if name in row.cells else "" for name in result.targets()]
        parts = parts_of(row)
        table.add_row(
            row.title,
            *cells,
            f"{parts[0]:.3f} / {parts[1]:.3f}" if parts else "",
            f"{row.goal:.2f}" if row.goal else "",
            verdict(row),
        )
    table.add_section()
    late = [f"{result.between.get(name, 0):.2f}" for name in result.targets()]
    table.add_row("between the rounds, per message", *late, "", "", "")
    memory = [f"{result.memory_mb.get(name, 0):.0f} MB" for name in result.targets()]
    table.add_row("anonymous memory after the load", *memory, "", "", "")
    return table
