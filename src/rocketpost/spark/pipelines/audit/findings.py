"""Findings made from frames: the number of rows, and some examples as text."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from rocketpost.spark.pipelines.audit.report import EXAMPLES_MAX, Finding

QUEUE: Final = ("topic", "broker", "queueId")
"""The columns that name a queue."""


def place_text() -> Column:
    """Return the queue and offset of a message as text."""
    return f.concat_ws("/", *QUEUE, "queueOffset")


def make_fault(name: str, count: int, meaning: str, rows: DataFrame, text: Column) -> Finding:
    """Return a finding that makes an audit fail; ``text`` describes a row."""
    return Finding(name, count, True, meaning, _pick_examples(rows, text) if count else ())


def make_note(name: str, count: int, meaning: str, rows: DataFrame, text: Column) -> Finding:
    """Return a finding that is not a fault."""
    return Finding(name, count, False, meaning, _pick_examples(rows, text) if count else ())


def _pick_examples(rows: DataFrame, text: Column) -> tuple[str, ...]:
    return tuple(row[0] for row in rows.select(text).limit(EXAMPLES_MAX).collect())
