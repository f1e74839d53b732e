"""The pace of a slave that is far behind, so that it does not slow down the sends of others.

A slave that is nearly up to date is never slowed down: senders may wait for it. One that lacks more
than ``BEHIND_BYTES`` gets the log at a rate that depends on how fast it grows:

    busy    by ``BUSY_GROWTH`` or more per second: ``BUSY_RATE``, but always ``GAIN_RATE`` more than
            it grows, so that the slave does catch up
    quiet   slower than that: ``QUIET_RATE``

In each turn, the link sends a part of the log, and then it pauses. A part that turned out larger
than its turn allowed, because frames are sent whole, makes the next pause longer.

Invariants:

- Over any time, a slave that is far behind gets at most the rate of that time, two turns and a
  frame. A turn that comes late is made up for; a longer rest is not.
- No pause is longer than what was sent before it takes at the rate, and none is shorter than
  ``PAUSE_MS_MIN``: the loop serves others in between.
"""

from __future__ import annotations

from typing import Final

MIB: Final = 1024 * 1024
BEHIND_BYTES: Final = 16 * MIB
"""A slave that lacks more than this is far behind."""
TURN_BYTES: Final = MIB
"""Bytes after which no other frame is begun in a turn."""
BUSY_RATE: Final = 160 * MIB
"""Bytes per second for a slave that is far behind, while others send."""
GAIN_RATE: Final = 64 * MIB
"""Bytes per second that it gets beyond the growth of the log, if that is more."""
QUIET_RATE: Final = 500 * MIB
"""Bytes per second while there are no sends, or few."""
BUSY_GROWTH: Final = 8 * MIB
"""Growth of the log, in bytes per second, from which on the master is busy."""
GROWTH_MS: Final = 100
"""Time over which growth is measured."""
PAUSE_MS_MIN: Final = 2


class CatchUpPace:
    """Decides how much of the log one slave gets in a turn. Belongs to its connection.

    Call :meth:`begin_turn`, send about that much, and tell :meth:`end_turn` how much it was.

    Args:
        end: The end of the log.
        now_ms: The time, here and in the other calls; it never goes back.
    """

    def __init__(self, *, end: int, now_ms: int) -> None:
        self.is_far = False
        """Whether the slave was far behind in the last turn."""
        self.rate = BUSY_RATE  # until growth is known
        """Bytes per second that the slave gets if it is far behind."""
        self._unpaid = 0
        self._paid_ms = now_ms
        self._growth_end = end
        self._growth_ms = now_ms

    @property
    def pause_ms(self) -> int:
        """Time until the next turn of a slave that is far behind."""
        return max(-(-self._unpaid * 1000 // self.rate), PAUSE_MS_MIN)

    def begin_turn(self, missing: int, end: int, now_ms: int) -> int:
        """Return the bytes to send in this turn; 0 if :attr:`pause_ms` must pass first.

        Args:
            missing: Bytes of the log that the slave was not sent yet.
            end: The end of the log.
            now_ms: The time.
        """
        paid = -(-self.rate * (now_ms - self._paid_ms) // 1000)
        self._paid_ms = now_ms
        self._measure_growth(end, now_ms)
        self.is_far = missing > BEHIND_BYTES
        if not self.is_far:
            self._unpaid = 0
            return TURN_BYTES
        self._unpaid = max(self._unpaid - paid, -TURN_BYTES)
        return TURN_BYTES - self._unpaid if self._unpaid <= 0 else 0

    def end_turn(self, sent: int) -> None:
        """Note how many bytes were sent in a turn."""
        self._unpaid += sent

    def _measure_growth(self, end: int, now_ms: int) -> None:
        passed = now_ms - self._growth_ms
        if passed < GROWTH_MS:
            return
        growth = (end - self._growth_end) * 1000 // passed
        self._growth_end, self._growth_ms = end, now_ms
        is_busy = growth >= BUSY_GROWTH
        self.rate = max(BUSY_RATE, growth + GAIN_RATE) if is_busy else QUIET_RATE
