"""Offsets of halves that are done but not yet named by an op message.

They are written together: when their text is ``transactionOpMsgMaxSize`` long, or when the first of
them has waited for ``transactionOpBatchInterval``. A crash may lose the waiting offsets. Then a
committed half is found by its commit. The op message of a rollback does not wait.
"""

from __future__ import annotations


class UnwrittenOps:
    """Collects offsets until they are worth a message. Owned by the event loop."""

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._chars = 0
        self._since_ms = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int, *, now_ms: int) -> None:
        """Note that the half at an offset is done."""
        if not self._offsets:
            self._since_ms = now_ms
        self._offsets.append(offset)
        self._chars += len(str(offset)) + 1

    def take(self) -> list[int]:
        """Remove and return all offsets."""
        taken, self._offsets, self._chars = self._offsets, [], 0
        return taken

    def due_ms(self, *, chars_max: int, interval_ms: int) -> int | None:
        """Return when a message must be written; None if there is nothing to write."""
        if not self._offsets:
            return None
        return self._since_ms + (0 if self._chars >= chars_max else interval_ms)
