"""The broker's clock: the wall clock of this machine, except that it never goes back.

Many promises of a broker are durations: the invisible time of a popped message, a delay, the life
of a lock. If the wall clock were set back by an hour, all of it would take an hour longer. So when
the wall clock falls behind, this one advances by the monotonic clock, a tenth slower, until the
wall clock has caught up: durations get a ninth longer at most, and never shorter. If the wall clock
is set ahead, this clock follows at once, since times of day must be right too.

Times of day that users gave are compared with :meth:`BrokerClock.wall_ms`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

_STEP_NS: Final = 1_000_000_000
"""A wall clock this far behind was set back; a smaller lag is a normal correction."""
_SLOWED_PARTS, _ALL_PARTS = 9, 10


class BrokerClock:
    """Milliseconds since the epoch that never decrease. Any thread may ask for them.

    Args:
        wall_ns: The wall clock.
        monotonic_ns: A clock that is never set.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._now_ns = wall_ns()
        self._read_ns: int | None = None  # last monotonic time, while ahead of the wall clock
        self._is_told = False
        self._going_on = threading.Lock()

    def now_ms(self) -> int:
        """Return the time now in milliseconds since the epoch."""
        wall_ns = self._wall_ns()
        if self._read_ns is None and wall_ns >= self._now_ns:
            self._now_ns = wall_ns  # the usual case: no second clock is read
        else:
            with self._going_on:
                self._go_on(wall_ns)
        return self._now_ns // 1_000_000

    def _go_on(self, wall_ns: int) -> None:
        """Advance the time by the monotonic clock while the wall clock is behind."""
        read_ns = self._monotonic_ns()
        if self._read_ns is None:
            self._is_told = False
            self._read_ns = read_ns
        self._now_ns += (read_ns - self._read_ns) * _SLOWED_PARTS // _ALL_PARTS
        self._read_ns = read_ns
        if wall_ns >= self._now_ns:
            self._now_ns, self._read_ns = wall_ns, None
        elif not self._is_told and self._now_ns - wall_ns > _STEP_NS:
            self._is_told = True
            behind_ms = (self._now_ns - wall_ns) // 1_000_000
            logger.warning("the clock of the machine was set back: by_ms=%s", behind_ms)

    def wall_ms(self) -> int:
        """Return the wall clock's time in milliseconds since the epoch."""
        return self._wall_ns() // 1_000_000
