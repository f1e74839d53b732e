"""Virtual time for state machines that are driven by callbacks: a heap of planned calls.

Nothing here waits, and nothing runs beside anything else: a simulation of minutes takes
milliseconds, and the same plan gives the same order of calls every time. Code that needs an event
loop has ``testing.virtual_time`` instead.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Scheduler:
    """Makes planned calls in the order of their times; ties are called in the order of planning."""

    __slots__ = ("_count", "_heap", "now_ms")

    def __init__(self) -> None:
        self.now_ms = 0
        self._count = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def after(self, delay_ms: int, call: Callable[..., None], *args: Any) -> None:
        """Plan ``call(*args)`` in ``delay_ms``; 0 means after everything planned for now."""
        assert delay_ms >= 0  # time never goes back
        self._count += 1
        heappush(self._heap, (self.now_ms + delay_ms, self._count, call, args))

    def step(self) -> bool:
        """Make the next call; returns whether there was one."""
        if not self._heap:
            return False
        self.now_ms, _, call, args = heappop(self._heap)
        call(*args)
        return True

    def run_until(self, time_ms: int) -> None:
        """Make all calls planned up to ``time_ms``, those planned meanwhile included."""
        heap = self._heap
        while heap and heap[0][0] <= time_ms:
            self.now_ms, _, call, args = heappop(heap)
            call(*args)
        self.now_ms = max(self.now_ms, time_ms)
