"""The slave's side of an HA stream: frames in, whole records appended to the own log.

Frames may begin and end inside a record. The start of an incomplete record is kept in memory, at
most one record, and is forgotten with the stream: the next stream starts at the end of the log
again. Whole records are appended as runs within one segment, each at the position that it has at
the master, filler included.

Invariants:

- The stream has no gap and no overlap: each frame, heartbeats included, begins where the one before
  it ended, the first one at the end of the log.
- Only whole records are appended, and ``end`` only moves when an append has succeeded. So a report
  of ``end`` never promises part of a record, or bytes that failed a check.
- A frame lies in one segment. If it does not, the master's segments have another size.
- After an error no more bytes are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from struct import Struct
from typing import Final

from rocketpost.codec.ha_frames import FrameHead, HaFrameDecoder
from rocketpost.errors import CorruptRecord, RemoteProtocolError, ReplicationError
from rocketpost.kernel.record_rows import records_end
from rocketpost.kernel.record_scan import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, record_starts

RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
_MARK: Final = Struct(">iI")
_POSITION: Final = Struct(">q")
_POSITION_AT: Final = 28
_RECORD_BYTES_MIN: Final = 91
_NO_LIMIT: Final = 2**31 - 1


class LogReceiver:
    """Appends the records of one HA stream. Belongs to the loop thread, and to one stream.

    Attributes:
        end: The end of the log: all records before it are appended.
    """

    def __init__(
        self,
        *,
        end: int,
        segment_bytes: int,
        append: Callable[[int, memoryview], int],
        record_bytes_max: int = RECORD_BYTES_MAX,
    ) -> None:
        """Prepare for a stream that was requested from ``end`` on.

        Args:
            end: The end of the own log; 0 if it is empty, and may begin with any segment.
            segment_bytes: Size of a segment (mappedFileSizeCommitLog).
            append: ``MessageStore.append_raw``. It must not keep the view.
            record_bytes_max: Largest record, or filler, that is accepted.
        """
        self.end = end
        self._segment_bytes = segment_bytes
        self._append = append
        self._record_bytes_max = record_bytes_max
        self._frames = HaFrameDecoder()
        self._held = bytearray()
        self._begin = end
        self._next = end
        self._has_failed = False

    @property
    def held(self) -> int:
        """Bytes of an incomplete record."""
        return len(self._held)

    @property
    def missing(self) -> int:
        """Bytes of the incomplete frame that have not arrived yet."""
        return self._frames.missing

    @property
    def frames_ended(self) -> int:
        """Number of frames that are complete."""
        return self._frames.ended

    def feed(self, data: bytes | bytearray | memoryview, at: int = 0) -> None:
        """Take bytes of the stream, and append the records that they complete.

        Args:
            data: A buffer. If ``at`` is not 0, it is writable.
            at: Index of the first byte of the stream. Bytes before it may be overwritten: the start
                of an incomplete record is put there, so that its rest need not be copied.

        Raises:
            ReplicationError: The stream is not the continuation of the own log, or is damaged;
                close it. Everything before the fault was appended.
            StoreFull: There is no room for the records; close the stream and try again later.
            StoreError: The own store takes no records; close the stream.
        """
        assert not self._has_failed, "the stream has ended"
        self._has_failed = True
        view = memoryview(data)
        begins_with_body = self._frames.missing > 0
        try:
            pieces = self._frames.feed(view[at:])
        except RemoteProtocolError as error:
            raise ReplicationError(str(error)) from error
        bodies: list[memoryview] = []
        for piece in pieces:
            if isinstance(piece, FrameHead):
                self._check_head(piece)
            else:
                bodies.append(piece)
                self._next += len(piece)
        if begins_with_body and bodies and 0 < len(self._held) <= at:
            start = at - len(self._held)
            view[start:at] = self._held
            self._held.clear()
            bodies[0] = view[start : at + len(bodies[0])]
        self._append_bodies(bodies)
        assert self._begin + len(self._held) == self._next
        self._has_failed = False

    def _append_bodies(self, bodies: list[memoryview]) -> None:
        """Append the records that pieces of bodies complete, and keep the start of the next one.

        Nearly always a piece begins with a record. From the first one that does not, all are
        copied.
        """
        for number, body in enumerate(bodies):
            if self._held:
                for each in bodies[number:]:
                    self._held += each
                with memoryview(self._held) as held:
                    size = self._append_runs(held)
                del self._held[:size]
                return
            self._held += body[self._append_runs(body) :]

    def _check_head(self, head: FrameHead) -> None:
        position, size = head
        if position != self._next:
            self._check_start(position)
            if size:
                self._begin = self._next = position
        left = self._segment_bytes - position % self._segment_bytes
        if size > left:
            raise ReplicationError(
                f"the frame at {position} has {size} bytes, but its segment has only {left} left:"
                f" the master's mappedFileSizeCommitLog is not {self._segment_bytes} as here; give"
                " both the same"
            )

    def _check_start(self, position: int) -> None:
        """Check the first position of a stream to an empty log."""
        if self.end or self._next > self._begin:
            raise ReplicationError(
                f"the master continues at {position}, but this log continues at {self._next}"
            )
        if position % self._segment_bytes:
            raise ReplicationError(
                f"the master starts at {position}, where no segment of"
                f" {self._segment_bytes} bytes begins: mappedFileSizeCommitLog must be the same"
            )

    def _append_runs(self, data: memoryview) -> int:
        """Append the whole records in front of ``data``, one run per segment; return their size."""
        at = 0
        while at < len(data):
            room = self._segment_bytes - self._begin % self._segment_bytes
            with data[at : at + room] as view:
                size = records_end(view)
                filler, fault = self._judge_next(view, size)
                size += filler
                if size:
                    with view[:size] as run:
                        self._append_checked(self._begin, run)
            if fault:
                raise ReplicationError(fault)
            self._begin += size
            at += size
            if not size:
                break
        return at

    def _judge_next(self, view: memoryview, at: int) -> tuple[int, str]:
        """Return the size of a whole filler at ``at``, else 0, and why no record can begin there.

        No whole record begins at ``at``.
        """
        left = len(view) - at
        if left < _MARK.size:
            return 0, ""
        position = self._begin + at
        room = self._segment_bytes - position % self._segment_bytes
        size, magic = _MARK.unpack_from(view, at)
        if magic == MAGIC_BLANK:
            if size != room:
                return 0, (
                    f"the filler at {position} states {size} bytes, but its segment has {room}"
                    " left: mappedFileSizeCommitLog must be the same on master and slave"
                )
            if left >= size:
                return size, ""
        elif magic not in (MAGIC_V1, MAGIC_V2):
            return 0, f"no record begins at {position}: the magic there is {magic:#010x}"
        elif not _RECORD_BYTES_MIN <= size <= room - _MARK.size:
            return 0, f"the record at {position} states {size} bytes; its segment has {room} left"
        elif left >= _POSITION_AT + _POSITION.size:
            (stated,) = _POSITION.unpack_from(view, at + _POSITION_AT)
            if stated != position:
                return 0, f"the record at {position} states the position {stated}"
        if size > self._record_bytes_max:
            return 0, (
                f"the record at {position} has {size} bytes, but only {self._record_bytes_max} are"
                " accepted"
            )
        return 0, ""

    def _append_checked(self, begin: int, run: memoryview) -> None:
        try:
            end = self._append(begin, run)
        except CorruptRecord as error:
            self._append_before_fault(begin, run)
            raise ReplicationError(f"the master sent a damaged record: {error}") from error
        assert end == begin + len(run)
        self.end = end

    def _append_before_fault(self, begin: int, run: memoryview) -> None:
        """Append the sound records before the first damaged one of a run that was refused."""
        starts, last_end = record_starts(run, 0, count_max=_NO_LIMIT, bytes_max=_NO_LIMIT)
        for low, high in pairwise((*starts, last_end)):
            try:
                self.end = self._append(begin + low, run[low:high])
            except CorruptRecord:
                return
