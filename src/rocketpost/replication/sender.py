"""The master's side of one HA stream: which bytes of the log a slave gets next, and when.

The slave's first report says from where it wants the log. From there on it gets frames without
gaps, each a run of bytes of one segment. Between frames it gets heartbeats. Its later reports say
how much it has.

A slave whose log is empty reports 0. It gets the log from its first segment, so that it becomes a
whole copy; with ``from_last_segment`` it gets the last segment only, as from Java's master. A slave
that cannot be served is *stuck*: it gets heartbeats only, :attr:`LogSender.stuck` has the reason,
and it is never sent data, even if the log later grows past its position: its bytes may differ.

Invariants:

- Frames have no gap and no overlap: each begins where the one before it ended.
- A frame lies in one segment and before the end of the log. A Java slave drops bytes that cross the
  end of its file.
- A heartbeat has the position of the next byte: a slave closes the stream at any other.
- The slave has at most a window of bytes that it has not acknowledged. Only a single record that is
  larger may exceed it, as slaves of ours acknowledge whole records.
- ``acked`` never exceeds what was sent, and stays 0 if the slave was stuck from its request on:
  only bytes of this log are acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from rocketpost.codec.ha_frames import BODY_BYTES_MAX, encode_head
from rocketpost.errors import ReplicationError
from rocketpost.kernel.record_scan import MAGIC_BLANK, MAGIC_V1, MAGIC_V2

WINDOW_BYTES: Final = 8 * 1024 * 1024
_MARK: Final = Struct(">iI")
MARK_BYTES: Final = _MARK.size
"""Bytes at the start of a record or filler that state its size."""


class Frame(NamedTuple):
    """A frame to send: its head, then ``size`` bytes of the log from ``position`` on.

    A size of 0 is a heartbeat.
    """

    position: int
    size: int

    def head(self) -> bytes:
        """Return the 12 bytes before the body."""
        return encode_head(self.position, self.size)


def stated_bytes(mark: bytes | memoryview | None) -> int:
    """Return the size that a record or filler states in its first bytes; 0 if it is neither."""
    if mark is None or len(mark) < MARK_BYTES:
        return 0
    size, magic = _MARK.unpack_from(mark)
    return size if magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK) else 0


class LogSender:
    """Decides about the frames of one slave's connection. Belongs to the loop thread.

    Call :meth:`report` for each report, then :meth:`next_frame` until it returns None; it is also
    called when the log has grown, and at least every ``heartbeat_ms``. A frame that was returned
    must be sent whole before the next. If that fails, the connection and its sender have ended.

    Attributes:
        acked: The slave has this log up to here. A request counts once :meth:`next_frame` has
            found that it lies in the log.
        next: Position of the next byte to send.
        stuck: Reason why this slave can never catch up; empty if it can.
        requested: Position in the first report; None before it.
    """

    def __init__(
        self,
        *,
        first: int,
        end: int,
        segment_bytes: int,
        batch_bytes: int,
        window_bytes: int,
        heartbeat_ms: int,
        from_last_segment: bool = False,
        record_bytes: Callable[[int], int] | None = None,
    ) -> None:
        """Prepare for a slave that has just connected.

        Args:
            first: Start of the log.
            end: End of the log.
            segment_bytes: Size of a segment (mappedFileSizeCommitLog).
            batch_bytes: Largest body of a frame (haTransferBatchSize); at most 4 MiB are used.
            window_bytes: Largest number of unacknowledged bytes.
            heartbeat_ms: Longest time without a frame (haSendHeartbeatInterval).
            from_last_segment: Whether an empty slave starts with the last segment.
            record_bytes: Returns the size of the record or filler at a position, 0 if none begins
                there (see :func:`stated_bytes`). Needed if a record can be larger than the window,
                as slaves of ours acknowledge whole records; asked only when the window is full.
        """
        assert 0 <= first <= end
        self.acked = 0
        self.next = 0
        self.stuck = ""
        self.requested: int | None = None
        self._end = end
        self._segment_bytes = segment_bytes
        self._window_bytes_min = window_bytes
        self.set_batch_bytes(batch_bytes)
        self._heartbeat_ms = heartbeat_ms
        self._from_last_segment = from_last_segment
        self._record_bytes = record_bytes
        self._has_started = False
        self._start = 0
        self._reported = 0
        self._sent_ms = 0

    @property
    def has_started(self) -> bool:
        """Whether the slave's request was found in the log."""
        return self._has_started

    def set_batch_bytes(self, batch_bytes: int) -> None:
        """Set the largest body of the frames to come; at most 4 MiB are used."""
        assert batch_bytes > 0
        self._batch_bytes = min(batch_bytes, BODY_BYTES_MAX)
        self._window_bytes = max(self._window_bytes_min, self._batch_bytes)

    def report(self, position: int, now_ms: int) -> None:
        """Take a report of the slave.

        Raises:
            ReplicationError: The slave reports bytes that it cannot have, or fewer than before;
                close the connection.
        """
        if self.requested is None:
            self.requested = self.next = self._reported = position
            self._sent_ms = now_ms
            return
        if position < self._reported:
            raise ReplicationError(
                f"the slave reports the position {position} after {self._reported}: it has lost"
                " bytes that it had acknowledged"
            )
        if position > self.next:
            raise ReplicationError(
                f"the slave reports the position {position}, but was only sent the log up to"
                f" {self.next}"
            )
        self._reported = position
        if self._has_started:
            self.acked = position

    def next_frame(self, first: int, end: int, now_ms: int) -> Frame | None:
        """Return the frame to send now; None if there is none.

        Args:
            first: Start of the log.
            end: End of the log that slaves may have; never lower than before.
            now_ms: The time; used for heartbeats only.
        """
        assert first <= end
        assert self._end <= end, "the log of a master never shrinks"
        self._end = end
        if self.requested is None:
            return None
        if not self._has_started and not self.stuck:
            self._begin(self.requested, first, end)
        elif not self.stuck and self.next < first:
            self.stuck = (
                f"the log before {first} was deleted, but the slave needs it from {self.next} on"
            )
        if not self.stuck:
            size = self._size_of_next(end)
            if size:
                return self._frame(size, now_ms)
        if now_ms - self._sent_ms >= self._heartbeat_ms:
            return self._frame(0, now_ms)
        return None

    def _begin(self, requested: int, first: int, end: int) -> None:
        if requested > end:
            self.stuck = (
                f"the slave's log ends at {requested}, but this log ends at {end}: it is not a copy"
                " of this log"
            )
            return
        if 0 < requested < first:
            self.stuck = (
                f"the log before {first} was deleted, but the slave's log ends at {requested}"
            )
            return
        if not requested:
            last = end - end % self._segment_bytes
            self.next = max(first, last) if self._from_last_segment else first
        self._start = self.next
        self.acked = self._reported
        self._has_started = True

    def _size_of_next(self, end: int) -> int:
        """Return the size of the next body; 0 if there is nothing to send, or no room for it."""
        segment_left = self._segment_bytes - self.next % self._segment_bytes
        size = min(end - self.next, segment_left, self._batch_bytes)
        unacknowledged_from = max(self.acked, self._start)
        room = unacknowledged_from + self._window_bytes - self.next
        if room < size and self._record_bytes is not None:
            room = max(
                room, unacknowledged_from + self._record_bytes(unacknowledged_from) - self.next
            )
        return max(min(size, room), 0)

    def _frame(self, size: int, now_ms: int) -> Frame:
        frame = Frame(self.next, size)
        segment_bytes = self._segment_bytes
        assert not size or (
            frame.position // segment_bytes == (frame.position + size - 1) // segment_bytes
            and frame.position + size <= self._end
            and self.acked <= frame.position
        )
        self.next += size
        self._sent_ms = now_ms
        return frame
