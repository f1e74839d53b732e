"""Durations of writes to the log, as RocketMQ's runtime values show them.

Only writes of a millisecond or more are counted one by one: nearly all take less.
"""

from __future__ import annotations

from typing import Final

from rocketpost.model.histogram import Histogram

SLOW_SECONDS: Final = 0.001
"""Duration from which a write is counted; RocketMQ calls the others 0 ms."""

_BOUNDS_MS: Final = (10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_NAMES: Final = (
    "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s", "1~2s", "2~3s", "3~4s",
    "4~5s", "5~10s", "10s~",
)  # fmt: skip


class WriteTimes:
    """Counts sends by the duration of the write that stored them. Owned by the loop."""

    def __init__(self) -> None:
        self._slow = Histogram(_BOUNDS_MS)
        self.longest_ms = 0
        """Duration of the longest write."""

    def count(self, seconds: float, sends: int) -> None:
        """Count sends whose write took a millisecond or more."""
        milliseconds = seconds * 1000
        self._slow.add(milliseconds, sends)
        self.longest_ms = max(self.longest_ms, int(milliseconds))

    def text(self, send_count: int) -> str:
        """Return the counts in RocketMQ's form.

        Args:
            send_count: Number of all sends.
        """
        quick = max(0, send_count - self._slow.count)
        counts = zip(("<=0ms", *_NAMES), (quick, *self._slow.counts), strict=True)
        return " ".join(f"[{name}]:{count}" for name, count in counts)
