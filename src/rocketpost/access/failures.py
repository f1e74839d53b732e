"""Failed logins, counted by address, so that guessing is slow and others are not slowed down.

Each address may fail a few times without a delay. Then every failure is answered late, and only a
few late answers may be pending: a peer that fails more often loses its connection. A request with
the right signature is never delayed, whatever its address did before.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

BURST: Final = 10
"""Failures without a delay."""
FORGIVEN_PER_SECOND: Final = 1.0
DELAY_SECONDS: Final = 0.5
PENDING_MAX: Final = 16
"""Most late answers of one address at a time."""
_ADDRESSES_MAX: Final = 10_000


class _Record:
    __slots__ = ("count", "noted_at", "pending")

    def __init__(self, now: float) -> None:
        self.count = 0.0
        self.noted_at = now
        self.pending = 0


class Failures:
    """Recent failures of each address. Not thread-safe."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, _Record] = OrderedDict()
        self.total = 0
        """Number of all failures."""

    def __len__(self) -> int:
        return len(self._records)

    def note(self, address: str, now: float) -> float | None:
        """Count a failure.

        Args:
            address: The address of the peer, without its port.
            now: Seconds on a clock that never goes back.

        Returns:
            Seconds by which the answer is delayed; None if the connection must be closed. A delayed
            answer is followed by :meth:`note_answer`.
        """
        self.total += 1
        record = self._records.get(address)
        if record is None:
            record = self._records[address] = _Record(now)
            if len(self._records) > _ADDRESSES_MAX:
                self._records.popitem(last=False)
        else:
            self._records.move_to_end(address)
            forgiven = (now - record.noted_at) * FORGIVEN_PER_SECOND
            record.count = max(record.count - forgiven, 0.0)
            record.noted_at = now
        record.count += 1
        if record.count <= BURST:
            return 0.0
        record.count = min(record.count, 2.0 * BURST)
        if record.pending >= PENDING_MAX:
            return None
        record.pending += 1
        return DELAY_SECONDS

    def note_answer(self, address: str) -> None:
        """Note that a delayed answer was sent."""
        record = self._records.get(address)
        if record is not None and record.pending:
            record.pending -= 1
