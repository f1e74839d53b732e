"""A limit on the lines of failures and denials in the audit log.

Strangers cause these lines. Without a limit they could fill the log until the files with the lines
that matter are rotated away. In each interval the first lines of each source are written, and a
certain number for all sources together. The others are counted, and at the end of the interval one
line for each source has the count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

INTERVAL_SECONDS: Final = 60.0
LINES_A_SOURCE_MAX: Final = 20
LINES_MAX: Final = 100
_SOURCES_MAX: Final = 50
"""Most sources whose missing lines are counted on their own."""
_OTHERS: Final = "others"


class AuditLimit:
    """Counts the lines of one interval. Not thread-safe.

    Args:
        now: The time now, in seconds on a clock that never goes back.
    """

    def __init__(self, now: float) -> None:
        self._began_at = now
        self._written = 0
        self._by_source: dict[tuple[str, str], int] = {}
        self._left_out: dict[tuple[str, str], int] = {}

    @property
    def has_left_out(self) -> bool:
        """Whether lines of this interval are missing."""
        return bool(self._left_out)

    def is_over(self, now: float) -> bool:
        """Tell whether the interval has ended."""
        return now - self._began_at >= INTERVAL_SECONDS

    def admit(self, event: str, members: Mapping[str, Any]) -> bool:
        """Tell whether a line is written; count it in any case."""
        host = str(members.get("source", "")).rpartition(":")[0]
        key = event, host
        count = self._by_source.get(key, 0) + 1
        if self._written < LINES_MAX and count <= LINES_A_SOURCE_MAX:
            self._by_source[key] = count
            self._written += 1
            return True
        if key not in self._left_out and len(self._left_out) >= _SOURCES_MAX:
            key = event, _OTHERS
        self._left_out[key] = self._left_out.get(key, 0) + 1
        return False

    def take_left_out(self, now: float) -> list[tuple[str, dict[str, Any]]]:
        """Begin the next interval; return the lines about those that are missing in this one."""
        lines = [
            (event, {"source": host, "leftOut": count})
            for (event, host), count in self._left_out.items()
        ]
        self._began_at = now
        self._written = 0
        self._by_source = {}
        self._left_out = {}
        return lines
