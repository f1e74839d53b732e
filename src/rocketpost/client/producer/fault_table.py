"""Latencies of brokers, and until when to avoid slow or failing ones."""

from __future__ import annotations

from typing import Final

ISOLATION_MS: Final = 10_000
"""The latency recorded for a failed attempt."""

_STEPS: Final = (
    (15_000, 30_000),
    (5_000, 10_000),
    (3_000, 6_000),
    (1_800, 5_000),
    (550, 2_000),
)
"""Latencies (ms) and the time (ms) for which a broker is avoided from each on."""


class FaultTable:
    """Keeps latencies by broker name. Belongs to the event loop."""

    def __init__(self) -> None:
        self._avoid_until_ms: dict[str, float] = {}

    def report(self, broker: str, latency_ms: float, *, now_ms: float) -> None:
        """Record the latency of an attempt; the time to avoid the broker never shrinks."""
        for least, rest in _STEPS:
            if latency_ms >= least:
                until = now_ms + rest
                if until > self._avoid_until_ms.get(broker, 0.0):
                    self._avoid_until_ms[broker] = until
                return

    def report_failure(self, broker: str, *, now_ms: float) -> None:
        """Record a failed attempt."""
        self.report(broker, ISOLATION_MS, now_ms=now_ms)

    def is_available(self, broker: str, *, now_ms: float) -> bool:
        """Tell whether ``broker`` need not be avoided; an unknown one is available."""
        return now_ms >= self._avoid_until_ms.get(broker, 0.0)
