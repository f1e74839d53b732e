"""Readiness of a broker: whether it can serve clients, and the reasons if it cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

STUCK_MS: Final = 5000
"""Time without progress after which a disk counts as stuck."""


class Health:
    """Tells whether a broker can serve clients. Owned by the loop."""

    def __init__(self) -> None:
        self.reasons: Callable[[], Sequence[str]] = lambda: ()
        """Returns the reasons why it cannot; none if it can."""


class LogState(Protocol):
    """The state of a commit log."""

    @property
    def written_position(self) -> int:
        """End of the bytes that are written."""
        ...

    @property
    def durable_position(self) -> int:
        """End of the bytes that are on disk."""
        ...

    @property
    def why_not_writable(self) -> str | None:
        """The reason why nothing can be stored; None if messages can."""
        ...


class DiskWatch:
    """Notices a disk that takes no bytes although bytes wait to be flushed. Owned by the loop.

    Args:
        flush_ms: Time after which bytes are flushed at the latest.
    """

    def __init__(self, *, flush_ms: int) -> None:
        self._allowed_ms = STUCK_MS + flush_ms
        self._durable = -1
        self._since_ms: int | None = None

    def look(self, log: LogState, now_ms: int) -> None:
        """Take a sample; called every second."""
        durable = log.durable_position
        if durable >= log.written_position:
            self._since_ms = None
        elif durable != self._durable or self._since_ms is None:
            self._since_ms = now_ms
        self._durable = durable

    def stuck_ms(self, now_ms: int) -> int:
        """Return for how long the disk has been stuck; 0 if it is not."""
        if self._since_ms is None or now_ms - self._since_ms < self._allowed_ms:
            return 0
        return now_ms - self._since_ms


def log_problems(log: LogState, *, stuck_ms: int) -> list[str]:
    """Return the reasons why the log cannot take messages."""
    problems = []
    if log.why_not_writable is not None:
        problems.append(f"messages cannot be stored: {log.why_not_writable}")
    if stuck_ms:
        problems.append(f"the disk has taken no bytes of the commit log for {stuck_ms // 1000} s")
    return problems
