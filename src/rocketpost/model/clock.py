"""The clock as a parameter: services take one, the server hands them the real one."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Wall-clock time in milliseconds since the epoch."""

    def now_ms(self) -> int:
        """Return the time now."""
        ...
