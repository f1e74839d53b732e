"""The real clock."""

from __future__ import annotations

import time


class SystemClock:
    """Wall-clock time of this machine."""

    def now_ms(self) -> int:
        """Return the time now in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000
