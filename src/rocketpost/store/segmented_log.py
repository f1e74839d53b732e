"""A log cut into files of one size, each named by the position of its first byte.

Every start is a multiple of the size, so the file of a position is found by arithmetic. Files of
another size are refused: sizes are not recorded anywhere and Java would refuse them too.
"""

from __future__ import annotations

import bisect
import logging

from rocketpost.errors import StoreError
from rocketpost.store.files import FileSystem, make_directory
from rocketpost.store.layout import Layout, parse_file_name
from rocketpost.store.segment import Segment

log = logging.getLogger(__name__)


class SegmentedLog:
    """The segments of the commit log, oldest first.

    Changed by the loop thread only; other threads may call :meth:`between_from_thread`.
    """

    def __init__(self, files: FileSystem, layout: Layout, *, segment_bytes: int) -> None:
        self._files = files
        self._layout = layout
        self._by_start: dict[int, Segment] = {}
        self._starts: list[int] = []
        self.segment_bytes = segment_bytes
        self.directory = layout.commit_log

    def load_blocking(self, *, clean: bool) -> None:
        """Find the segments on disk.

        After a stop that was not ``clean`` the last one may be short: a crash came while its rest
        was zeroed.

        Raises:
            StoreError: A file has another size than the settings say.
        """
        make_directory(self._files, self._layout.commit_log)
        names = self._files.listdir(self._layout.commit_log)
        starts = [start for name in names if (start := parse_file_name(name)) is not None]
        for start in starts:
            path = self._layout.segment(start)
            found = self._files.stat(path)
            if found is None or found.is_directory:
                continue
            if found.size == 0 and start == starts[-1]:
                self._files.unlink(path)
                continue
            aligned = start % self.segment_bytes == 0
            if found.size < self.segment_bytes and start == starts[-1] and aligned and not clean:
                self._restore_size(path)
            elif found.size != self.segment_bytes or not aligned:
                raise StoreError(
                    f"{path} has {found.size} bytes; mappedFileSizeCommitLog says"
                    f" {self.segment_bytes}"
                )
            if self._starts and self._starts[-1] + self.segment_bytes != start:
                log.warning("gap before segment path=%s previous=%s", path, self._starts[-1])
            self.add(Segment(self._files, path, start=start, size=self.segment_bytes))

    def _restore_size(self, path: str) -> None:
        fd = self._files.open(path, write=True)
        try:
            self._files.ftruncate(fd, self.segment_bytes)
        finally:
            self._files.close(fd)

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def first(self) -> Segment | None:
        """The oldest segment."""
        return self._by_start[self._starts[0]] if self._starts else None

    @property
    def last(self) -> Segment | None:
        """The newest segment."""
        return self._by_start[self._starts[-1]] if self._starts else None

    def all(self) -> list[Segment]:
        """Return the segments, oldest first."""
        return [self._by_start[start] for start in self._starts]

    def find(self, position: int) -> Segment | None:
        """Return the segment that holds ``position``."""
        return self._by_start.get(position - position % self.segment_bytes)

    def first_from(self, position: int) -> Segment | None:
        """Return the oldest segment that starts at ``position`` or later."""
        at = bisect.bisect_left(self._starts, position)
        return self._by_start[self._starts[at]] if at < len(self._starts) else None

    def after(self, segment: Segment) -> Segment | None:
        """Return the segment that follows another, next to it or behind a gap."""
        at = bisect.bisect_right(self._starts, segment.start)
        return self._by_start[self._starts[at]] if at < len(self._starts) else None

    def add(self, segment: Segment) -> None:
        """Take a segment that starts after all others."""
        assert not self._starts or segment.start > self._starts[-1]
        self._by_start[segment.start] = segment
        self._starts.append(segment.start)

    def all_from_thread(self) -> list[Segment]:
        """Return the segments, oldest first."""
        found = [self._by_start.get(start) for start in self._starts.copy()]
        return [segment for segment in found if segment is not None]

    def between_from_thread(self, begin: int, end: int) -> list[Segment]:
        """Return the segments that hold a byte of [``begin``, ``end``)."""
        starts = self._starts.copy()
        low = bisect.bisect_right(starts, begin - self.segment_bytes)
        found = [self._by_start.get(start) for start in starts[low:] if start < end]
        return [segment for segment in found if segment is not None]

    def remove(self, segment: Segment) -> None:
        """Forget a segment; its file stays."""
        del self._by_start[segment.start]
        self._starts.remove(segment.start)
        segment.close()

    def remove_after_blocking(self, position: int) -> None:
        """Unlink every segment that starts after ``position``, the newest first."""
        for segment in reversed(self.all()):
            if segment.start > position:
                self.remove(segment)
                self._files.unlink(segment.path)
        self._files.fsync_dir(self._layout.commit_log)

    def close(self) -> None:
        """Let go of every descriptor and map."""
        for segment in self.all():
            segment.close()
