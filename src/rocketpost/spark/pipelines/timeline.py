"""How many messages fall into each of some equal stretches of time."""

from __future__ import annotations

from typing import Final

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

_MOMENTS: Final = 60


class Moment(msgspec.Struct, frozen=True, rename="camel"):
    """How many messages there were in a stretch of time."""

    from_ms: int
    messages: int


def timeline(
    frame: DataFrame, column: str, first_ms: int | None, last_ms: int | None
) -> tuple[Moment, ...]:
    """Return how many rows have a time in each of at most 60 stretches, empty ones included.

    Args:
        frame: The rows.
        column: Which of their columns is the time, in milliseconds.
        first_ms: The earliest of the times; None if there are no rows.
        last_ms: The latest.
    """
    if first_ms is None or last_ms is None:
        return ()
    step = max(1, -(-(last_ms - first_ms + 1) // _MOMENTS))
    at = f.floor((f.col(column) - first_ms) / step).cast("int").alias("at")
    counts = {row["at"]: row["count"] for row in frame.groupBy(at).count().collect()}
    return tuple(
        Moment(first_ms + each * step, counts.get(each, 0)) for each in range(max(counts) + 1)
    )
