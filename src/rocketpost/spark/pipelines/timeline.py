"""Timelines: the number of messages in intervals of equal length."""

from __future__ import annotations

from typing import Final

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

_MOMENTS: Final = 60


class Moment(msgspec.Struct, frozen=True, rename="camel"):
    """The number of messages in an interval."""

    from_ms: int
    messages: int


def timeline(
    frame: DataFrame, column: str, first_ms: int | None, last_ms: int | None
) -> tuple[Moment, ...]:
    """Return the number of rows in each of at most 60 intervals, including empty ones.

    Args:
        frame: The rows.
        column: The column with the time, in milliseconds.
        first_ms: The earliest time; None if there are no rows.
        last_ms: The latest time.
    """
    if first_ms is None or last_ms is None:
        return ()
    step = max(1, -(-(last_ms - first_ms + 1) // _MOMENTS))
    at = f.floor((f.col(column) - first_ms) / step).cast("int").alias("at")
    counts = {row["at"]: row["count"] for row in frame.groupBy(at).count().collect()}
    return tuple(
        Moment(first_ms + each * step, counts.get(each, 0)) for each in range(max(counts) + 1)
    )
