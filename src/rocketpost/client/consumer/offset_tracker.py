"""Tracking of fetched, unfinished messages of a queue.

Messages finish in any order, but only one offset can be committed, and everything before it counts
as done. So the committed offset is the smallest unfinished one, and a slow message holds it back.
Of 101 to 110: if all are finished, 111; if all but 101 are finished, 101.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class OffsetTracker:
    """Tracks the messages of one queue in hand. Not thread-safe: belongs to the event loop."""

    __slots__ = ("_done", "_order", "_sizes", "bytes_held", "next_offset")

    def __init__(self, next_offset: int) -> None:
        self._order: deque[int] = deque()
        self._done: set[int] = set()
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
        return self._order[-1] - self._order[0] if self._order else 0

    @property
    def committable(self) -> int:
        """The smallest unfinished offset, or the one after the last if all are finished."""
        return self._order[0] if self._order else self.next_offset

    def add(self, messages: Iterable[tuple[int, int]]) -> None:
        """Add messages, given as (offset, size) in ascending order of offsets."""
        for offset, size in messages:
            if offset in self._sizes or offset in self._done:
                continue
            self._order.append(offset)
            self._sizes[offset] = size
            self.bytes_held += size
            if offset >= self.next_offset:
                self.next_offset = offset + 1

    def skip_to(self, offset: int) -> None:
        """Record that nothing before ``offset`` is left to fetch; never goes back."""
        self.next_offset = max(self.next_offset, offset)

    def holds(self, offset: int) -> bool:
        """Tell whether the message at ``offset`` is in hand."""
        return offset in self._sizes

    def finish(self, offset: int) -> None:
        """Remove a finished message; one that is not in hand is ignored."""
        size = self._sizes.pop(offset, None)
        if size is None:
            return
        self.bytes_held -= size
        order, done = self._order, self._done
        if order[0] != offset:
            done.add(offset)
            return
        order.popleft()
        while order and order[0] in done:
            done.remove(order.popleft())
