"""Compare the CPU per message of several builds, in interleaved rounds.

    .venv/bin/python benchmarks/compare.py base=main new=. control=main
    .venv/bin/python benchmarks/compare.py --rows send,pull --rounds 60 base=HEAD~3 new=.:plain

A build is NAME=WHERE: a checkout's directory or a git revision, ":plain" after it for a kernel
that is not compiled. The first build is the base of the ratios. Name it twice, the second time as
a control: its ratio to the base is the noise of this run. CPU is the broker's own, all threads.
The load generator runs in this process, and every answer is checked for success. Many short rounds
are better than few long ones: some of them fall into quiet moments of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from builds import make_build
from rich.console import Console
from rich.table import Table
from rounds import Measurement, measure
from servers import echo_server, end_in_order, our_broker
from workloads import ROW_NAMES, Workload, choose, prepare


def main() -> int:
    arguments = parse_arguments()
    end_in_order()
    chosen = choose(arguments.rows)
    found = Measurement()
    with tempfile.TemporaryDirectory(prefix="rocketpost-compare-") as scratch:
        builds = [make_build(text, Path(scratch, "builds")) for text in arguments.builds]
        for flush in sorted({row.flush for row in chosen}):
            with contextlib.ExitStack() as stack:
                targets = [
                    stack.enter_context(
                        our_broker(
                            build,
                            Path(scratch, flush, build.name),
                            flush=flush,
                            settings=arguments.settings.get(build.name),
                        )
                    )
                    for build in builds
                ]
                for target in targets:
                    prepare(target.port, warm_up=round(20_000 * arguments.scale))
                echo = [stack.enter_context(echo_server())] if arguments.echo else []
                rows = [row for row in chosen if row.flush == flush]
                measured = measure(
                    [*targets, *echo], rows, rounds=arguments.rounds, scale=arguments.scale
                )
                found.costs.update(measured.costs)
    names = [build.name for build in builds] + (["echo"] if arguments.echo else [])
    Console(width=160).print(table_of(found, chosen, names))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("builds", nargs="+", metavar="NAME=WHERE", help="the first is the base")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of every row")
    parser.add_argument("--scale", type=float, default=0.2, help="size of every round")
    parser.add_argument("--rows", default=ROW_NAMES, help=f"a choice of {ROW_NAMES}")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="NAME:KEY=VALUE",
        help="a setting of the broker of one build",
    )
    parser.add_argument("--echo", action="store_true", help="measure the echo server as well")
    arguments = parser.parse_args()
    names = [text.partition("=")[0] for text in arguments.builds]
    if len(set(names)) < len(names) or not all("=" in text for text in arguments.builds):
        parser.error("every build needs a name of its own: NAME=WHERE")
    settings: dict[str, dict[str, str]] = {}
    for text in arguments.settings:
        name, _, pair = text.partition(":")
        key, equals, value = pair.partition("=")
        if name not in names or not equals:
            parser.error(f"--set {text}: write NAME:KEY=VALUE, with the name of a build")
        settings.setdefault(name, {})[key] = value
    arguments.settings = settings
    return arguments


def table_of(found: Measurement, rows: Sequence[Workload], names: Sequence[str]) -> Table:
    """Return the table of costs, and of ratios to the first build."""
    table = Table(title="CPU us per message: min / median; ratio to the first build")
    for column in ("row", "build", "min", "median", "ratio of minima", "median ratio", "quartiles"):
        table.add_column(column, justify="left" if column in ("row", "build") else "right")
    for row in rows:
        for name in names:
            if (row.name, name) not in found.costs:
                continue
            ratios = found.ratios(row.name, name, names[0])
            low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            least = found.least(row.name, name)
            table.add_row(
                row.name if name == names[0] else "",
                name,
                f"{least:.2f}",
                f"{found.median(row.name, name):.2f}",
                f"{least / found.least(row.name, names[0]):.3f}",
                f"{statistics.median(ratios):.3f}",
                f"{low:.3f} - {high:.3f}",
            )
        table.add_section()
    return table


if __name__ == "__main__":
    sys.exit(main())
