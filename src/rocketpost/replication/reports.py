"""The reports of a slave: when it reports to its master how much of the log it has.

The first report is the request: the master sends the log from there on. It must be the end of the
slave's log. Every report also promises that the slave keeps all bytes before it. A slave with
``flushDiskType=SYNC_FLUSH`` promises only what is on its disk, so it flushes its log before it
connects. A slave with ASYNC_FLUSH promises what is written.

Invariants:

- The first report is due at once.
- Later ones never fall. They are due when there is more to report, and at least every interval, as
  a master closes a connection that is silent.
"""

from __future__ import annotations

from typing import Final

INTERVAL_MS: Final = 5000
"""RocketMQ's interval; its masters close a connection after 20 s of silence."""


class ReportSchedule:
    """Decides when a position is reported. Belongs to one stream.

    Attributes:
        reported: The last position reported; -1 before the first.
    """

    def __init__(self, *, interval_ms: int = INTERVAL_MS) -> None:
        self.reported = -1
        self._interval_ms = interval_ms
        self._sent_ms = 0

    def is_due(self, position: int, now_ms: int) -> bool:
        """Tell whether to report ``position`` now; if so, it counts as reported.

        Args:
            position: The end of the log for the first report. After that, everything before it is
                kept: written, or on disk under SYNC_FLUSH.
            now_ms: The time.
        """
        assert position >= self.reported, (position, self.reported)
        if position == self.reported and now_ms - self._sent_ms < self._interval_ms:
            return False
        self.reported = position
        self._sent_ms = now_ms
        return True
