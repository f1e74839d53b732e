"""A log of files of one size, each named by the position of its first byte.

Every start is a multiple of the size, so the file of a position is found by arithmetic. Files of
another size are refused: the size is not stored anywhere, and Java would refuse them too.
"""

from __future__ import annotations

import bisect
import logging

from rocketpost.errors import StoreError
from rocketpost.store.files import FileSystem, make_directory
from rocketpost.store.layout import Layout, parse_file_name
from rocketpost.store.log.segment import Segment

logger = logging.getLogger(__name__)


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
        self.cut_short: set[int] = set()
        """Starts of the segments whose files were too short."""

    def load_blocking(self, *, clean: bool, begins_late: bool = False) -> None:
        """Find the segments on disk.

        A file that is too short was cut, or a crash interrupted the zeroing of its rest. It is
        extended to its full size; the missing bytes read as zeros.

        Args:
            clean: Whether the last stop was clean.
            begins_late: Whether the log may begin in the middle of a leader's.

        Raises:
            StoreError: The size of a file differs from the settings.
        """
        make_directory(self._files, self._layout.commit_log)
        sizes: dict[int, int] = {}
        for name in self._files.listdir(self._layout.commit_log):
            start = parse_file_name(name)
            found = self._files.stat(self._layout.segment(start)) if start is not None else None
            if start is not None and found is not None and not found.is_directory:
                sizes[start] = found.size
        # The only segment of a log that begins late says where: at a crash it may have been zeroed.
        is_beginning = begins_late and len(sizes) == 1
        if sizes and sizes[last := max(sizes)] == 0 and not is_beginning:
            self._files.unlink(self._layout.segment(last))
            del sizes[last]
        has_whole = self.segment_bytes in sizes.values()
        for start, size in sorted(sizes.items()):
            path = self._layout.segment(start)
            is_last = start == max(sizes)
            if start % self.segment_bytes or size > self.segment_bytes:
                raise self._wrong_size(path, size)
            if size < self.segment_bytes:
                is_cut = (clean or not is_last) and (size > 0 or not is_beginning)
                if not has_whole and is_cut:
                    raise self._wrong_size(path, size)
                if is_cut:
                    logger.error("segment was cut short path=%s bytes=%s", path, size)
                    self.cut_short.add(start)
                self._restore_size(path)
            self.add(Segment(self._files, path, start=start, size=self.segment_bytes))

    def _wrong_size(self, path: str, size: int) -> StoreError:
        text = f"{path} has {size} bytes; mappedFileSizeCommitLog is {self.segment_bytes}"
        if size < self.segment_bytes:
            text += (
                ". If that setting is right, the file was cut short: after truncate -s "
                f"{self.segment_bytes} FILE the broker starts and reports what is lost"
            )
        return StoreError(text)

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
        """Return the segment that follows another, directly or after a gap."""
        at = bisect.bisect_right(self._starts, segment.start)
        return self._by_start[self._starts[at]] if at < len(self._starts) else None

    def add(self, segment: Segment) -> None:
        """Add a segment that starts after all others."""
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

    def warm_from_thread(self, position: int, size: int) -> None:
        """Read a part of the log into memory.

        Raises:
            OSError: It cannot be read.
        """
        for segment in self.between_from_thread(position, position + size):
            begin = max(position, segment.start)
            segment.warm_blocking(begin - segment.start, position + size - begin)

    def remove(self, segment: Segment) -> None:
        """Forget a segment; its file stays."""
        del self._by_start[segment.start]
        self._starts.remove(segment.start)
        segment.close()

    def replace(self, segment: Segment) -> Segment:
        """Replace a segment with a new object for the same file, and return it."""
        segment.close()
        new = Segment(self._files, segment.path, start=segment.start, size=segment.size)
        self._by_start[segment.start] = new
        return new

    def remove_after_blocking(self, position: int) -> None:
        """Unlink every segment that starts after ``position``, the newest first."""
        for segment in reversed(self.all()):
            if segment.start > position:
                self.remove(segment)
                self._files.unlink(segment.path)
        self._files.fsync_dir(self._layout.commit_log)

    def close(self) -> None:
        """Release every descriptor and map."""
        for segment in self.all():
            segment.close()
