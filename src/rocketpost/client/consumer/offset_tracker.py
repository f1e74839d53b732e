"""Tracking of fetched, unfinished messages of a queue.

Messages finish in any order, but only one offset can be committed, and everything before it counts
as done. So the committed offset is the smallest unfinished one, and a slow message holds it back.
Of 101 to 110: if all are finished, 111; if all but 101 are finished, 101.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence


class OffsetTracker:
    """Tracks the messages of one queue in hand. Not thread-safe: belongs to the event loop."""

    __slots__ = ("_order", "_sizes", "bytes_held", "next_offset")

    def __init__(self, next_offset: int) -> None:
        self._order: deque[int] = deque()
        """Offsets in hand in ascending order, with finished ones that nobody has asked past."""
        self._sizes: dict[int, int] = {}
        self.bytes_held = 0
        self.next_offset = next_offset
        """One past the last offset seen, which is committed when nothing is in hand."""

    @property
    def count(self) -> int:
        """The number of messages in hand."""
        return len(self._sizes)

    @property
    def span(self) -> int:
        """The distance between the first and the last message in hand."""
        return self._order[-1] - self.committable if self._sizes else 0

    @property
    def committable(self) -> int:
        """The smallest unfinished offset, or the one after the last if all are finished."""
        order, sizes = self._order, self._sizes
        if not sizes:
            order.clear()
            return self.next_offset
        while order[0] not in sizes:
            order.popleft()
        return order[0]

    def add(self, offsets: Sequence[int], sizes: Sequence[int]) -> None:
        """Add messages in ascending order of offsets; those already seen in this window are not."""
        if not offsets:
            return
        if offsets[0] < self.next_offset:
            _ = self.committable  # forgets what was finished before the first in hand
            fresh = [
                (offset, size)
                for offset, size in zip(offsets, sizes, strict=True)
                if offset not in self._sizes and offset not in self._order
            ]
            offsets, sizes = [each[0] for each in fresh], [each[1] for each in fresh]
        self._order.extend(offsets)
        self._sizes.update(zip(offsets, sizes, strict=True))
        self.bytes_held += sum(sizes)
        if offsets and offsets[-1] >= self.next_offset:
            self.next_offset = offsets[-1] + 1

    def skip_to(self, offset: int) -> None:
        """Record that nothing before ``offset`` is left to fetch; never goes back."""
        self.next_offset = max(self.next_offset, offset)

    def holds(self, offset: int) -> bool:
        """Tell whether the message at ``offset`` is in hand."""
        return offset in self._sizes

    def finish(self, offsets: Iterable[int]) -> None:
        """Remove finished messages; those that are not in hand are ignored."""
        pop = self._sizes.pop
        for offset in offsets:
            self.bytes_held -= pop(offset, 0)
