"""A clock that moves only when a test advances it."""

from __future__ import annotations


class FakeClock:
    """Wall-clock time under the control of a test."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Return the time now in milliseconds since the epoch."""
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Let ``ms`` milliseconds pass."""
        assert ms >= 0
        self._now_ms += ms
