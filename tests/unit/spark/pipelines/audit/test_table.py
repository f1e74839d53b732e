"""Tables of queues show whole numbers, however narrow the terminal is."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from rocketpost.spark.pipelines.audit.report import QueueFacts
from rocketpost.spark.pipelines.audit.table import queue_table, size_text

from .test_page import REPORT


def shown(*queues: QueueFacts, width: int = 80) -> list[str]:
    report = msgspec.structs.replace(REPORT, queues=queues)
    file = io.StringIO()
    Console(file=file, width=width).print(queue_table(report, width=width))
    return file.getvalue().splitlines()


def facts(number: int = 0, **more: Any) -> QueueFacts:
    whole = QueueFacts(
        topic="Orders",
        broker="broker-a",
        queue_id=number,
        messages=1_234_567,
        stored_bytes=3_456_789_012,
        first=10_000_000,
        last=11_234_566,
        holes=0,
        repeats=0,
        disorder=0,
    )
    return msgspec.structs.replace(whole, **more)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("│")[1:-1]]


def test_a_queue_of_millions_fits_80_columns_in_one_line() -> None:
    title, _, header, _, first, second, _ = shown(facts(lag=1_200_000), facts(1, lag=5))
    assert title.strip() == "queues of Orders"
    assert header.replace("┃", " ").split() == ["queue", "messages", "bytes", "offsets", "lag"]
    offsets = "10,000,000 to 11,234,566"
    assert cells(first) == ["broker-a/0", "1,234,567", "3.46 GB", offsets, "1,200,000"]
    assert cells(second) == ["broker-a/1", "1,234,567", "3.46 GB", offsets, "5"]


def test_findings_have_columns_and_the_table_stays_narrow() -> None:
    queues = [facts(holes=3, repeats=1_000_001, lag=1_200_000), facts(1, disorder=12)]
    lines = shown(*queues)
    assert all(len(line) <= 80 for line in lines)
    assert lines[2].replace("┃", " ").split() == [
        "queue", "messages", "holes", "repeats", "disorder", "lag",
    ]  # fmt: skip
    assert cells(lines[4]) == ["broker-a/0", "1,234,567", "3", "1,000,001", "0", "1,200,000"]
    assert cells(lines[5]) == ["broker-a/1", "1,234,567", "0", "0", "12", ""]
    assert "no room for bytes and offsets: see --json" in lines[-1]
    assert cells(shown(*queues, width=120)[4])[2:4] == ["3.46 GB", "10,000,000 to 11,234,566"]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_long_name_is_broken_and_no_number_is(width: int) -> None:
    name = "production-broker-in-the-west-of-europe-1"
    lines = shown(facts(broker=name, lag=7), facts(broker=name, topic="Payments"), width=width)
    assert all(len(line) <= width for line in lines)
    rows = [cells(line) for line in lines if line.startswith("│")]
    text = "".join(row[0] for row in rows)
    assert text == f"Orders/{name}/0Payments/{name}/0"
    assert [row[1] for row in rows if row[1]] == ["1,234,567"] * 2
    assert [row[-1] for row in rows if row[-1]] == ["7"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 KB"),
        (99_949, "99.9 KB"),
        (99_950, "100 KB"),
        (999_499, "999 KB"),
        (999_500, "1.00 MB"),
        (12_345_678_901, "12.3 GB"),
        (5_000_000_000_000_000, "5,000 TB"),
    ],
)
def test_sizes_as_text(count: int, text: str) -> None:
    assert size_text(count) == text
