"""Tracks the records of the revive topic that a start after a crash must read again."""

from __future__ import annotations

import heapq
from typing import Final

BEFORE_FIRST: Final = -1
_STALE_MAX: Final = 1024


class ReviveWatermark:
    """Offsets of needed records, by revive queue. Owned by the event loop."""

    def __init__(self) -> None:
        self._owners: dict[int, dict[int, object]] = {}
        self._oldest: dict[int, list[int]] = {}
        self._ended: dict[int, int] = {}

    def add(self, queue: int, offset: int, owner: object) -> None:
        """Note that a record is needed, with its owner."""
        owners = self._owners.setdefault(queue, {})
        owners[offset] = owner
        oldest = self._oldest.setdefault(queue, [])
        heapq.heappush(oldest, offset)
        if len(oldest) > 2 * len(owners) + _STALE_MAX:
            oldest[:] = sorted(owners)

    def discard(self, queue: int, offset: int, owner: object) -> None:
        """Forget a record that was never stored; another may already have its offset."""
        owners = self._owners.get(queue, {})
        if owners.get(offset) is owner:
            del owners[offset]

    def end(self, queue: int, offset: int, owner: object) -> None:
        """Note that a record is no longer needed."""
        self.discard(queue, offset, owner)
        self._ended[queue] = max(self._ended.get(queue, BEFORE_FIRST), offset)

    def offset(self, queue: int) -> int:
        """Return the watermark of a revive queue: no record up to this offset is needed."""
        owners = self._owners.get(queue, {})
        oldest = self._oldest.get(queue, [])
        while oldest and oldest[0] not in owners:
            heapq.heappop(oldest)
        if oldest:
            return oldest[0] - 1
        return self._ended.get(queue, BEFORE_FIRST)
