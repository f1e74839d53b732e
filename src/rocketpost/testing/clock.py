"""A clock that moves when it is told to."""

from __future__ import annotations


class FakeClock:
    """Wall-clock time under the test's control."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Return the time now."""
        return self._now_ms

    def advance(self, *, ms: int = 0, seconds: float = 0) -> None:
        """Move the time, forward or back."""
        self._now_ms += ms + round(seconds * 1000)
