"""Table of the queues of an audit that fits a terminal.

A number is shown completely or not at all, because a truncated one would be another number. So
columns without information are left out, and if there is still no room, the least important ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.markup import escape
from rich.table import Table

from rocketpost.spark.pipelines.audit.report import AuditReport, QueueFacts

_NAME_WIDTH: Final = 20
"""A longer name is wrapped before a column is left out."""
_BORDER: Final = 3
_DISPENSABLE: Final = ("bytes", "offsets", "messages")
"""Columns that may be left out, the least important first."""
_UNITS: Final = ("KB", "MB", "GB", "TB")


def queue_table(report: AuditReport, *, width: int) -> Table:
    """Return a table of queues that fits a terminal of some width."""
    is_one = len({queue.topic for queue in report.queues}) == 1
    names = [
        f"{queue.broker}/{queue.queue_id}" if is_one else queue.name for queue in report.queues
    ]
    numbers = _numbers(report.queues)
    name_width = min(_NAME_WIDTH, max(map(len, names), default=0))
    left_out = []
    for name in _DISPENSABLE:
        if name_width + _width(numbers) <= width:
            break
        del numbers[name]
        left_out.append(name)
    of = f" of {report.queues[0].topic}" if is_one else ""
    table = Table(title=escape(f"queues{of}"))
    table.add_column("queue", overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    for row in zip(map(escape, names), *numbers.values(), strict=True):
        table.add_row(*row)
    if left_out:
        table.caption = f"no room for {' and '.join(left_out)}: see --json, or widen the terminal"
    return table


def _numbers(queues: Sequence[QueueFacts]) -> dict[str, list[str]]:
    """Return the columns after the name; columns of faults only if there are any."""
    columns = {
        "messages": [f"{queue.messages:,}" for queue in queues],
        "bytes": [size_text(queue.stored_bytes) for queue in queues],
        "offsets": [f"{queue.first:,} to {queue.last:,}" for queue in queues],
    }
    for name in ("holes", "repeats", "disorder"):
        counts = [getattr(queue, name) for queue in queues]
        if any(counts):
            columns[name] = [f"{count:,}" for count in counts]
    if any(queue.lag is not None for queue in queues):
        columns["lag"] = ["" if queue.lag is None else f"{queue.lag:,}" for queue in queues]
    return columns


def _width(numbers: dict[str, list[str]]) -> int:
    """Return the width of a table without the text in its first column."""
    widths = [max(map(len, (name, *cells))) for name, cells in numbers.items()]
    return sum(widths) + _BORDER * (len(widths) + 1) + 1


def size_text(count: int) -> str:
    """Return a number of bytes as text, with three digits."""
    if count < 1000:
        return f"{count} B"
    size, units = count / 1000, iter(_UNITS)
    unit = next(units)
    while size >= 999.5 and (larger := next(units, None)) is not None:
        size, unit = size / 1000, larger
    digits = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{size:,.{digits}f} {unit}"
