"""Group commit: one thread that makes the commit log durable.

Under SYNC_FLUSH it is woken by :meth:`Flusher.request`; under ASYNC_FLUSH it wakes by its interval.
After a failed ``fdatasync`` the kernel may have dropped the pages it could not write, so a later
success would prove nothing: the flusher stops for good and says why.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from rocketpost.errors import StoreBroken, StoreFull
from rocketpost.model.ids import Position
from rocketpost.store.descriptors import is_shortage
from rocketpost.store.files import FileSystem
from rocketpost.store.log.commit_log import CommitLog
from rocketpost.store.log.segmented_log import SegmentedLog
from rocketpost.store.recovery.extent import ExtentKeeper

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.1
"""Time until the next try when no descriptor is free."""


class Flusher:
    """Owns the flusher thread; any thread may read ``durable``."""

    def __init__(
        self,
        files: FileSystem,
        commit_log: CommitLog,
        segments: SegmentedLog,
        *,
        extent: ExtentKeeper,
        interval_ms: int,
        on_durable: Callable[[Position], None],
        on_broken: Callable[[str], None],
    ) -> None:
        self._commit_log = commit_log
        self._segments = segments
        self.interval_ms = interval_ms
        """Longest wait of written bytes for a sync; may be changed while the thread runs."""
        self._extent = extent
        self.on_durable = on_durable
        """Called in the flusher's thread with the durable position; may be replaced at any time."""
        self._on_broken = on_broken
        self._syncing = threading.Lock()
        self._worker = files.make_worker("store-flusher", self._step)
        self.request = self._worker.wake
        """Asks the thread to make written bytes durable soon. Any thread."""
        self._retry_at = 0.0
        self.durable = Position(0)
        self.sync_count = 0
        """Number of times that the log was made durable."""
        self.why_broken: str | None = None

    def start(self, durable: int) -> None:
        """Start the thread; everything before ``durable`` is on disk."""
        self.durable = Position(durable)
        self._worker.start(self.interval_ms / 1000)

    def flush_blocking(self) -> None:
        """Make written bytes durable before returning. Any thread.

        Raises:
            StoreBroken: A sync failed, now or earlier.
            StoreFull: It cannot be done now, but may be later.
        """
        with self._syncing:
            self._flush()
            why_not = self._retry_at
        if self.why_broken is not None:
            raise StoreBroken(self.why_broken)
        if why_not:
            raise StoreFull("the commit log is not durable yet: there are no file descriptors left")

    def pause(self) -> AbstractContextManager[object]:
        """Return a context in which the thread does not sync."""
        return self._syncing

    def lower(self, position: int) -> None:
        """Lower ``durable`` to ``position``, where the log was cut. Call within :meth:`pause`."""
        assert self._syncing.locked()
        self.durable = min(self.durable, Position(position))

    def close_blocking(self) -> None:
        """Stop the thread, without a last flush."""
        self._worker.close_blocking()

    def _step(self) -> float:
        with self._syncing:
            self._flush()
        wait = self.interval_ms / 1000
        if self._retry_at:
            wait = min(wait, max(0.0, self._retry_at - time.monotonic()))
        return wait

    def _flush(self) -> None:
        target = self._commit_log.written
        if target <= self.durable or self.why_broken is not None:
            return
        try:
            for segment in self._segments.between_from_thread(self.durable, target):
                segment.sync_blocking()
        except OSError as error:
            if is_shortage(error):  # no file was opened, so no sync failed: try again soon
                logger.error("commit log not durable yet reason=%s", error.strerror)
                self._retry_at = time.monotonic() + RETRY_SECONDS
                return
            self.why_broken = f"the commit log could not be made durable: {error.strerror}"
            logger.critical(
                "fdatasync failed, no more messages are acknowledged reason=%s", error.strerror
            )
            self._on_broken(self.why_broken)
            return
        self._retry_at = 0.0
        self.durable = Position(target)
        self.sync_count += 1
        # Written first, so that a start after a kill knows the end of all acknowledged messages.
        self._extent.note_from_thread(self.durable)
        self.on_durable(self.durable)
