"""The published result of the comparison with Apache's broker, and its table in the README.

    .venv/bin/python benchmarks/published.py                 # publish the newest run
    .venv/bin/python benchmarks/published.py --check         # is the README's table that result?

Publishing keeps a copy of the run's figures beside this file, under version control, and writes the
table from them into the README. Nobody edits the table by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
NEWEST: Final = HERE / "results" / "brokers.json"
PUBLISHED: Final = HERE / "results" / "published.json"
README: Final = HERE.parent / "README.md"
_BEGIN: Final = "<!-- speed table: written by benchmarks/published.py -->\n"
_END: Final = "<!-- end of the speed table -->\n"
_LINE_MAX: Final = 120
_APACHE: Final = "Apache"
_OURS: Final = "Rocketpost"
_UNCOMPILED: Final = "uncompiled"
_ECHO: Final = "echo"


@dataclass(frozen=True, slots=True)
class Cell:
    """CPU microseconds per message of one server under one load."""

    least: float
    median: float

    def __str__(self) -> str:
        return f"{_digits(self.least)} / {_digits(self.median)}"


@dataclass(frozen=True, slots=True)
class Row:
    """One load, and what it cost each server."""

    name: str
    title: str
    goal: float | None
    cells: dict[str, Cell]


@dataclass(frozen=True, slots=True)
class Result:
    """A run of all brokers."""

    date: str
    rounds: int
    machine: dict[str, str]
    rows: list[Row]
    between: dict[str, float]
    memory_mb: dict[str, float]
    loader: dict[str, float]

    def targets(self) -> list[str]:
        """Return the servers, in the order of the table's columns."""
        return list(dict.fromkeys(name for row in self.rows for name in row.cells))

    def write(self, path: Path) -> None:
        """Write the result to a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Result:
        """Return the result in a file."""
        values: dict[str, Any] = json.loads(path.read_text())
        rows = [
            Row(**{**row, "cells": {name: Cell(**cell) for name, cell in row["cells"].items()}})
            for row in values.pop("rows")
        ]
        return cls(**values, rows=rows)


def parts_of(row: Row) -> tuple[float, float] | None:
    """Return our CPU as a part of Apache's: by the cheapest rounds, and by the medians."""
    if not {_APACHE, _OURS} <= row.cells.keys():
        return None
    ours, theirs = row.cells[_OURS], row.cells[_APACHE]
    return ours.least / theirs.least, ours.median / theirs.median


def verdict(row: Row) -> str:
    """Return whether the goal is met, by the cheapest rounds and by the medians."""
    parts = parts_of(row)
    if parts is None or row.goal is None:
        return ""
    return "met" if max(parts) <= row.goal else "missed"


def table_text(result: Result) -> str:
    """Return the README's table of a result."""
    machine = result.machine
    lines = [
        f"| CPU per message in us, cheapest round / median | Apache {machine['rocketmq']} | "
        "Rocketpost | part of Apache's | uncompiled | echo server |",
        "|---|---|---|---|---|---|",
    ]
    for row in result.rows:
        parts = parts_of(row)
        assert parts, f"{row.name} was not measured with both brokers"
        cells = [str(row.cells.get(name, "")) for name in (_APACHE, _OURS)]
        part = f"{_digits(parts[0])} / {_digits(parts[1])}"
        others = [str(row.cells.get(name, "")) for name in (_UNCOMPILED, _ECHO)]
        lines.append(f"| {' | '.join([row.title, *cells, part, *others])} |")
    memory = [f"{result.memory_mb[name]:.0f} MB" for name in (_APACHE, _OURS)]
    share = _digits(result.memory_mb[_OURS] / result.memory_mb[_APACHE])
    plain = f"{result.memory_mb[_UNCOMPILED]:.0f} MB"
    lines.append(
        f"| anonymous memory after this load | {' | '.join(memory)} | {share} | {plain} |  |"
    )
    note = (
        f"Measured on {result.date} in one run of `make bench BENCH_OPTIONS='--only brokers'`: "
        f"{result.rounds} interleaved rounds on {machine['cores']} cores ({machine['processor']}), "
        f"{machine['system']}, Python {machine['python']}, uvloop {machine['uvloop']}, "
        f"Java {machine['java']}. CPU is that of the server's process, all threads. Apache's "
        "broker was warmed up before the first round."
    )
    return "\n".join([*lines, "", *textwrap.wrap(note, _LINE_MAX, break_on_hyphens=False), ""])


def with_table(readme: str, table: str) -> str:
    """Return the README with its table replaced.

    Raises:
        ValueError: The README has no place for the table.
    """
    before, begin, rest = readme.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{README.name} lacks the line {_BEGIN.strip()} or {_END.strip()}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def is_current() -> bool:
    """Return whether the README's table is that of the published result."""
    readme = README.read_text()
    return with_table(readme, table_text(Result.read(PUBLISHED))) == readme


def _digits(value: float) -> str:
    """Return a figure with about three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", nargs="?", type=Path, default=NEWEST, help="a run's JSON file")
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    if arguments.check:
        current = is_current()
        print("the table is current" if current else "the table differs from the result")
        return 0 if current else 1
    result = Result.read(arguments.result)
    if not all(map(parts_of, result.rows)):
        raise SystemExit(f"{arguments.result} has no figures of Apache's broker: run it with Java")
    lost = {row.name for row in Result.read(PUBLISHED).rows} - {row.name for row in result.rows}
    if lost:
        raise SystemExit(f"{arguments.result} lacks rows of the published table: {sorted(lost)}")
    text = with_table(README.read_text(), table_text(result))
    result.write(PUBLISHED)
    README.write_text(text)
    print(f"{README.name} has the table of {result.date}; commit it with {PUBLISHED.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
