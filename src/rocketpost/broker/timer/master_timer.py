"""Progress of the master's timer, as a slave knows it.

A slave has no wheel of its own. If it becomes the master, it reads the timer topic from its
beginning and skips the messages that this table counts as delivered, instead of looking for the
copy of each one.
"""

from __future__ import annotations

import msgspec

from rocketpost.codec.bodies.timer import TimerCheckPoint, TimerMetrics
from rocketpost.errors import StoreError


class _File(msgspec.Struct, rename="camel"):
    check_point: TimerCheckPoint = TimerCheckPoint()
    metrics: TimerMetrics = TimerMetrics()
    left_before: tuple[int, int] = (0, 0)


class MasterTimer:
    """The last known progress of the master's timer. Owned by the event loop."""

    def __init__(self) -> None:
        self.check_point = TimerCheckPoint()
        self.metrics = TimerMetrics()
        """Timed messages that wait, by topic."""
        self.left_before: tuple[int, int] = (0, 0)
        """Offset of the timer topic and time: messages before both have left the wheel, except
        those that wait for a missing topic."""
        self.revision = 0
        """Number of changes; the saver compares it to tell whether to write the table."""

    def follow(self, check_point: TimerCheckPoint, *, left_before: tuple[int, int]) -> None:
        """Take the progress of the master, once the log has what its timer delivered."""
        if (check_point, left_before) != (self.check_point, self.left_before):
            self.check_point, self.left_before = check_point, left_before
            self.revision += 1

    def follow_metrics(self, metrics: TimerMetrics) -> None:
        """Take the master's numbers of waiting messages."""
        if metrics != self.metrics:
            self.metrics = metrics
            self.revision += 1

    def to_json(self) -> bytes:
        """Return the text of ``masterTimer.json``."""
        return msgspec.json.encode(_File(self.check_point, self.metrics, self.left_before))

    def load(self, data: bytes) -> None:
        """Load the table from ``masterTimer.json``.

        Raises:
            StoreError: The text is not such a table.
        """
        try:
            found = msgspec.json.decode(data, type=_File)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StoreError(f"masterTimer.json cannot be read: {error}") from None
        self.check_point, self.metrics = found.check_point, found.metrics
        self.left_before = found.left_before
