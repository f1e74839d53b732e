"""How findings are made of frames: how many rows there are, and some of them in words."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from rocketpost.spark.pipelines.audit.report import EXAMPLES_MAX, Finding

QUEUE: Final = ("topic", "broker", "queueId")
"""The columns that name a queue."""


def place() -> Column:
    """Return where a message is, in words."""
    return f.concat_ws("/", *QUEUE, "queueOffset")


def fault(name: str, count: int, meaning: str, rows: DataFrame, text: Column) -> Finding:
    """Return what makes an audit fail; ``text`` tells of one of the rows."""
    return Finding(name, count, True, meaning, _some(rows, text) if count else ())


def note(name: str, count: int, meaning: str, rows: DataFrame, text: Column) -> Finding:
    """Return what is worth knowing, and no fault."""
    return Finding(name, count, False, meaning, _some(rows, text) if count else ())


def _some(rows: DataFrame, text: Column) -> tuple[str, ...]:
    return tuple(row[0] for row in rows.select(text).limit(EXAMPLES_MAX).collect())
