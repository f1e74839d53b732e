"""Allocation of commit-log segments before they are needed.

A segment is made under ``allocating/``, given its full size with the room reserved, synced, then
moved to its place: a crash leaves either no file or a whole one. A thread makes the next segment;
if it is not ready when it is needed, the caller makes it itself. If that fails, messages are
refused, and the allocator reports the reason until a segment is allocated. The thread tries again
at intervals, so that the reason is cleared although nobody sends.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final

from rocketpost.errors import StoreFull
from rocketpost.store.files import FileSystem
from rocketpost.store.layout import LOG_LOCK_NAME, Layout
from rocketpost.store.log.segment import Segment

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0
"""Time between attempts of the thread while messages are refused."""


class Allocator:
    """Makes commit-log segments; owns one thread. :meth:`take` belongs to the loop thread.

    Args:
        files: The file system.
        layout: The paths of the store.
        segment_bytes: The size of a segment.
        set_unallocated: Called in any thread with the reason why messages were refused, and with
            None when a segment is allocated again.
    """

    def __init__(
        self,
        files: FileSystem,
        layout: Layout,
        *,
        segment_bytes: int,
        set_unallocated: Callable[[str | None], None] = lambda why: None,
    ) -> None:
        self._files = files
        self._layout = layout
        self._segment_bytes = segment_bytes
        self._set_unallocated = set_unallocated
        self._is_refusing = False
        self._making = threading.Lock()
        self._ready: Segment | None = None
        self._taken = -1
        self._wanted: int | None = None
        self._worker = files.make_worker("store-allocator", self._make_wanted)

    def start(self) -> None:
        """Start the thread; deletes unfinished segments that a crash left."""
        self._files.mkdir(self._layout.allocating)
        for name in self._files.listdir(self._layout.allocating):
            if name == LOG_LOCK_NAME:
                continue
            self._files.unlink(f"{self._layout.allocating}/{name}")
        self._worker.start(None)

    def prepare(self, start: int) -> None:
        """Ask the thread to make the segment at ``start`` in advance."""
        self._wanted = start
        self._worker.wake()

    def take(self, start: int) -> Segment:
        """Return the segment at ``start``, made in advance or now.

        Raises:
            StoreFull: There is no room for it; nothing was changed.
        """
        with self._making:
            ready, self._ready = self._ready, None
            if ready is None or ready.start != start:
                try:
                    ready = self._make(start)
                except StoreFull as error:
                    self._note_refusal(str(error))
                    raise
            self._taken = start
        self.prepare(start + self._segment_bytes)
        return ready

    def reset(self, end: int) -> None:
        """Forget segments after ``end``, where the log was cut."""
        self._wanted = None
        with self._making:
            self._taken = end - end % self._segment_bytes
            self._discard_ready()
            self._forget_refusal()

    def close_blocking(self) -> None:
        """Stop the thread and remove a segment that was not taken."""
        self._worker.close_blocking()
        self._discard_ready()

    def _discard_ready(self) -> None:
        if self._ready is not None:
            self._ready.close()
            self._files.unlink(self._ready.path)
            self._ready = None

    def _note_refusal(self, why: str) -> None:
        if not self._is_refusing:
            self._is_refusing = True
            logger.error("messages that need a new segment are refused: reason=%s", why)
            self._worker.wake()
        self._set_unallocated(why)

    def _forget_refusal(self) -> None:
        if self._is_refusing:
            self._is_refusing = False
            self._set_unallocated(None)

    def _make_wanted(self) -> float | None:
        with self._making:
            # An outdated request must not replace a segment in use, nor make one that was asked
            # for before the log was cut.
            start = self._wanted
            if self._ready is not None or start is None or start <= self._taken:
                return None
            try:
                self._ready = self._make(start)
            except StoreFull as error:
                if self._is_refusing:
                    return RETRY_SECONDS
                logger.warning("next segment not allocated in advance reason=%s", error)
            return None

    def _make(self, start: int) -> Segment:
        unfinished, path = self._layout.unfinished_segment(start), self._layout.segment(start)
        fd = -1
        try:
            fd = self._files.open(unfinished, create=True)
            self._files.fallocate(fd, self._segment_bytes)
            self._files.fdatasync(fd)
            self._files.rename(unfinished, path)
            self._files.fsync_dir(self._layout.commit_log)
        except OSError as error:
            with contextlib.suppress(OSError):  # the next start deletes it
                self._files.unlink(unfinished)
            if fd >= 0:
                self._files.close(fd)
            raise StoreFull(f"cannot allocate {path}: {error.strerror}") from error
        if self._is_refusing:
            logger.warning("messages are accepted again: the segment is allocated path=%s", path)
            self._forget_refusal()
        # The segment keeps the descriptor: opening the file later could fail, when messages are
        # waiting to be written to it.
        return Segment(self._files, path, start=start, size=self._segment_bytes, fd=fd)
