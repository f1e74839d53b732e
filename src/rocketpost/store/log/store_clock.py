"""Store times of appended messages: one for each batch, and never much earlier than the last.

A batch is all messages that are appended between two commits.
"""

from __future__ import annotations

import logging
from typing import Final

from rocketpost.model.clock import Clock

logger = logging.getLogger(__name__)

CLOCK_STEP_MS_MAX: Final = 60_000
"""Largest step back of the clock that store times ignore; search by time needs rising times."""


class StoreClock:
    """Gives batches their store times. Owned by the loop thread."""

    __slots__ = ("_clock", "batch_ms", "newest_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.batch_ms = 0
        """Store time of the batch that has begun; 0 if none has."""
        self.newest_ms = 0
        """Store time of the newest message."""

    def read(self) -> int:
        """Return the store time of a batch that would begin now."""
        now_ms = self._clock.now_ms()
        behind_ms = self.newest_ms - now_ms
        if behind_ms <= 0:
            return now_ms
        if behind_ms > CLOCK_STEP_MS_MAX:
            logger.warning("the clock was set back by_ms=%s", behind_ms)
            return now_ms
        return self.newest_ms

    def begin(self) -> int:
        """Begin a batch, or give the rest of one a later time; return its store time."""
        self.batch_ms = self.newest_ms = now_ms = self.read()
        return now_ms

    def stamp_ms(self) -> int:
        """Return the earliest store time of a message appended now."""
        return self.batch_ms or self._clock.now_ms()
