"""The checkpoint thread: saves queue tails, syncs queues and index, and advances the checkpoint.

Everything it saves can be rebuilt from the commit log, starting at the checkpoint. So it saves
rarely: after a long interval, or when a restart would have to read much of the log again.
"""

from __future__ import annotations

import logging
import posixpath
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from rocketpost.errors import StoreBroken, StoreFull
from rocketpost.store.checkpoint import Progress, Times, save_checkpoint_blocking
from rocketpost.store.config import StoreConfig
from rocketpost.store.descriptors import is_shortage
from rocketpost.store.dispatch.dispatcher import Dispatcher
from rocketpost.store.log.contents import StoreContents
from rocketpost.store.log.flusher import Flusher
from rocketpost.store.queue.files import QueueFiles
from rocketpost.store.readiness import Readiness
from rocketpost.store.recovery.extent import ExtentKeeper

logger = logging.getLogger(__name__)

REPLAY_BYTES_MAX: Final = 256 * 1024 * 1024
"""Approximate number of bytes of the log that a restart after a crash reads again."""
SYNC_ALL_COUNT_MIN: Final = 64
"""Number of files from which one sync of the file system costs less than one sync per file."""

_PATIENCE_SECONDS: Final = 60.0
"""Time for which messages are accepted although no descriptor is left to save their queues."""


class Checkpointer:
    """Owns the checkpoint thread."""

    def __init__(
        self,
        config: StoreConfig,
        contents: StoreContents,
        *,
        queue_files: QueueFiles,
        flusher: Flusher,
        dispatcher: Dispatcher,
        save_deletions: Callable[[], None],
        extent: ExtentKeeper,
        readiness: Readiness,
    ) -> None:
        self.config = config
        """Settings with the thread's intervals; may be replaced while it runs."""
        self._layout = contents.layout
        self._files = contents.files
        self._queues = contents.queues
        self._queue_files = queue_files
        self._index = contents.index
        self._flusher = flusher
        self._dispatcher = dispatcher
        self._save_deletions = save_deletions
        self._damage = contents.damage
        self._extent = extent
        self._readiness = readiness
        self._saving = threading.Lock()
        self.saved_position = -1
        """Every record before this is durable in queues and index too. Any thread may read it."""
        self.master_flushed = 0
        """RocketMQ's field for slaves: position up to which their master had flushed its log."""
        self._saved: tuple[Times, Progress] | None = None
        self._saved_at = time.monotonic()
        self._short_since: float | None = None
        self._unsynced: set[str] = set()
        self._unsynced_directories: set[str] = set()
        self._worker = contents.files.make_worker("store-checkpoint", self._step)

    def start(self) -> None:
        """Start the thread."""
        self._worker.start(self.config.queue_flush_interval_ms / 1000)

    def close_blocking(self) -> None:
        """Stop the thread."""
        self._worker.close_blocking()

    def save_blocking(self) -> None:
        """Make the current queues and index durable, then record that in the checkpoint.

        Raises:
            StoreBroken: The commit log cannot be made durable.
            StoreFull: The commit log cannot be made durable now, but may be later.
            OSError: A file could not be written or synced; the checkpoint is unchanged.
        """
        with self._saving:
            self.save_while_paused_blocking()

    def pause(self) -> AbstractContextManager[object]:
        """Return a context in which no other thread saves."""
        return self._saving

    def lower_blocking(self, position: int) -> None:
        """Lower the checkpoint to ``position``, before the log is cut there.

        Call it within :meth:`pause`. Queues and index still hold the later records; a start after
        a crash reads them again.

        Raises:
            OSError: The checkpoint could not be written.
        """
        saved = self._saved
        if saved is None:
            return  # no checkpoint was saved yet
        times, progress = saved
        index_end = progress.index_end
        if self._index is not None:
            index_end = min(index_end, self._index.newest_before(position))
        if progress.position <= position:
            progress = progress._replace(index_end=index_end)
        else:
            index_position = min(progress.index_position, position)
            counts = self._queues.count_before(position)
            progress = Progress(position, index_position, index_end, *counts)
        self._save_checkpoint(times, progress)

    def save_while_paused_blocking(self) -> None:
        """Do the same as :meth:`save_blocking`, within :meth:`pause`."""
        mark = self._dispatcher.mark
        # The mark no longer counts the queues of deleted topics. Unless the deletions are saved, a
        # restart would know neither of those queues nor of their last offsets.
        self._save_deletions()
        self._damage.save_blocking()
        self._flusher.flush_blocking()
        for queue in self._queues:
            if queue.unsaved_bytes:
                self._unsynced.update(queue.save_blocking())
        self._sync_queues()
        index_ms = 0
        if self._index is not None:
            self._index.flush_blocking()
            index_ms = self._index.completed_ms
        times = Times(mark.store_ms, mark.store_ms, index_ms, self.master_flushed, 0)
        progress = Progress(
            mark.position,
            mark.index_position,
            mark.index_end,
            mark.queue_count,
            mark.queue_end_sum,
        )
        # Saved before the checkpoint, so that the extent is never behind it.
        self._extent.save_blocking(self._flusher.durable)
        self._save_checkpoint(times, progress)
        self._saved_at = time.monotonic()

    def _save_checkpoint(self, times: Times, progress: Progress) -> None:
        save_checkpoint_blocking(self._files, self._layout.checkpoint, times, progress)
        self._saved = times, progress
        self.saved_position = progress.position

    def _step(self) -> float:
        if self._is_due():
            self._save_or_report()
        elif self._damage.is_changed:
            self._save_damage()
        return self.config.queue_flush_interval_ms / 1000

    def _is_due(self) -> bool:
        # A save failed, and until one of this thread succeeds, no message is accepted. It is due
        # even if the save of another thread has left nothing behind.
        if self._readiness.has_trouble:
            return True
        behind = self._dispatcher.mark.position - self.saved_position
        waited_ms = (time.monotonic() - self._saved_at) * 1000
        thorough = waited_ms >= self.config.queue_flush_thorough_ms
        return behind >= REPLAY_BYTES_MAX or (behind > 0 and thorough)

    def _save_or_report(self) -> None:
        try:
            self.save_blocking()
        except (StoreBroken, StoreFull):
            return  # the flusher has reported it
        except OSError as error:
            if is_shortage(error) and self._is_patient():
                logger.warning("queues and index not saved yet reason=%s", error.strerror)
                return
            self._readiness.set_trouble(f"queues or index could not be saved: {error.strerror}")
            return
        self._short_since = None
        self._readiness.set_trouble(None)

    def _is_patient(self) -> bool:
        """Tell whether to wait longer for file descriptors; the disk itself is not at fault."""
        now = time.monotonic()
        if self._short_since is None:
            self._short_since = now
        return now - self._short_since < _PATIENCE_SECONDS

    def _save_damage(self) -> None:
        try:
            self._damage.save_blocking()
        except OSError as error:
            # The damage was logged when it was found; the next wake-up tries to save it again.
            logger.warning("list of damage not saved reason=%s", error.strerror)

    def _sync_queues(self) -> None:
        self._drain()
        if not self._unsynced and not self._unsynced_directories:
            return
        try:
            many = len(self._unsynced) >= SYNC_ALL_COUNT_MIN
            if not (many and self._files.sync_all(self._layout.consume_queues)):
                self._sync_each()
        except OSError as error:
            if is_shortage(error):
                raise  # no file was opened, so no sync failed
            # The kernel may have discarded the pages, and a second sync would not report it.
            self._readiness.break_from_thread(
                f"queue files could not be made durable: {error.strerror}"
            )
            raise
        self._unsynced.clear()
        self._unsynced_directories.clear()

    def _drain(self) -> None:
        source = self._queue_files
        while source.unsynced:
            self._unsynced.add(source.unsynced.popleft())
        while source.unsynced_directories:
            directory = source.unsynced_directories.popleft()
            while directory != self._layout.root and directory not in self._unsynced_directories:
                self._unsynced_directories.add(directory)
                directory = posixpath.dirname(directory)

    def _sync_each(self) -> None:
        for path in sorted(self._unsynced):
            try:
                fd = self._files.open(path, write=True)
            except FileNotFoundError:
                continue  # the file has expired, or its topic was deleted
            try:
                self._files.fdatasync(fd)
            finally:
                self._files.close(fd)
        for directory in [*sorted(self._unsynced_directories, reverse=True), self._layout.root]:
            if self._files.stat(directory) is not None:
                self._files.fsync_dir(directory)
