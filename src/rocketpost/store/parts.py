"""The components of a store: assembly, recovery, start and release in the right order."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from rocketpost.errors import StoreBroken, StoreError
from rocketpost.model.clock import Clock
from rocketpost.model.delay_levels import parse_delay_levels
from rocketpost.model.ids import Position
from rocketpost.store.checkpoint import load_checkpoint_blocking
from rocketpost.store.checkpointer import Checkpointer
from rocketpost.store.cleaning import Cleaning
from rocketpost.store.config import StoreConfig
from rocketpost.store.deleted_topics import DeletedTopics
from rocketpost.store.dispatch.dispatcher import Dispatcher
from rocketpost.store.files import FileSystem
from rocketpost.store.index.key_index import KeyIndex
from rocketpost.store.integrity.damage import DamageRegister
from rocketpost.store.integrity.integrity import Integrity
from rocketpost.store.layout import Layout
from rocketpost.store.log.allocator import Allocator
from rocketpost.store.log.commit_log import CommitLog
from rocketpost.store.log.contents import StoreContents
from rocketpost.store.log.flusher import Flusher
from rocketpost.store.log.segmented_log import SegmentedLog
from rocketpost.store.log.store_clock import StoreClock
from rocketpost.store.member.outside_group import mark_use_outside_group
from rocketpost.store.queue.files import QueueFiles
from rocketpost.store.queue.table import QueueTable
from rocketpost.store.readiness import Readiness
from rocketpost.store.recovery.extent import ExtentFile, ExtentKeeper, read_boot
from rocketpost.store.recovery.recovery import Recovery
from rocketpost.store.recovery.values import RecoveryInput, RecoveryResult
from rocketpost.store.replica.late_queues import LateQueues
from rocketpost.store.replica.raw_append import RawAppender, RawChunk
from rocketpost.store.replica.truncation import TruncationFile, cut_log_blocking
from rocketpost.store.replica.visibility import find_border, hide_from
from rocketpost.store.store_lock import StoreLock
from rocketpost.store.topic_deletion import TopicDeleter
from rocketpost.store.wave import Wave

logger = logging.getLogger(__name__)


class StoreParts:
    """Owns the components of one store, for ``store.message_store``."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        clock: Clock,
        files: FileSystem,
        on_durable: Callable[[Position], None],
        on_broken: Callable[[str], None],
        on_truncated: Callable[[Position], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._files = files
        self._on_truncated = on_truncated
        self.layout = Layout(config.root, config.commit_log_path)
        self.lock = StoreLock(files, self.layout)
        self.readiness = Readiness(on_broken=on_broken)

        segment_bytes = config.segment_bytes
        self.segments = SegmentedLog(files, self.layout, segment_bytes=segment_bytes)
        self.allocator = Allocator(
            files,
            self.layout,
            segment_bytes=segment_bytes,
            set_unallocated=self.readiness.set_unallocated,
        )
        self.commit_log = CommitLog(
            files,
            self.segments,
            self.allocator,
            long_topics=config.long_topics,
            append_checksum=config.append_checksum,
        )
        self.deleted_topics = DeletedTopics(files, self.layout.deleted_topics)
        self.damage = DamageRegister(files, self.layout.damage)
        self.queue_files = QueueFiles(files, file_bytes=config.queue_file_bytes)
        self.queues = QueueTable(
            self.layout,
            self.queue_files,
            self.deleted_topics,
            store_time=self.commit_log.store_time,
        )
        self.index = KeyIndex(self.layout.index, config, files) if config.index_enabled else None
        self._contents = StoreContents(
            files=files,
            layout=self.layout,
            segments=self.segments,
            queues=self.queues,
            index=self.index,
            deleted_topics=self.deleted_topics,
            damage=self.damage,
        )
        self.dispatcher = Dispatcher(self.queues, self.index)
        self.store_clock = StoreClock(clock)
        self.wave = Wave(
            log=self.commit_log,
            dispatcher=self.dispatcher,
            slots=self.queues.slots,
            clock=self.store_clock,
            refusals=self.readiness.new_refusal_reasons,
            is_usable=not config.append_checksum,
        )
        self.raw_appender = RawAppender(
            commit_log=self.commit_log,
            segments=self.segments,
            queues=self.queues,
            deleted_topics=self.deleted_topics,
            dispatcher=self.dispatcher,
            delays_ms=parse_delay_levels(config.delay_levels),
            require_checksum=config.require_checksum,
            late_queues=LateQueues(files, self.layout.late_queues),
        )
        self.extent_file = ExtentFile(files, self.layout.extent)
        self.truncation_file = TruncationFile(files, self.layout.truncating)
        self._cut: int | None = None
        self._boot = read_boot(files)
        self.extent = ExtentKeeper(self.extent_file, self.segments, self.queues, boot=self._boot)
        self.integrity = Integrity(
            config,
            self._contents,
            commit_log=self.commit_log,
            dispatcher=self.dispatcher,
            durable=lambda: self.flusher.durable,
            clock=clock,
        )
        self.flusher = Flusher(
            files,
            self.commit_log,
            self.segments,
            extent=self.extent,
            interval_ms=config.flush_interval_ms,
            on_durable=on_durable,
            on_broken=self.readiness.break_from_thread,
        )
        self.topic_deleter = TopicDeleter(files, self.layout.deleted_queues, self.deleted_topics)
        self.checkpointer = Checkpointer(
            config,
            self._contents,
            queue_files=self.queue_files,
            flusher=self.flusher,
            dispatcher=self.dispatcher,
            save_deletions=self.topic_deleter.save_blocking,
            extent=self.extent,
            readiness=self.readiness,
        )
        self.cleaning = Cleaning(
            config,
            self._contents,
            save_extent=lambda: self.extent.save_blocking(self.flusher.durable),
            safe_position=lambda: min(self.flusher.durable, self.checkpointer.saved_position),
            set_disk_full=self.readiness.set_nearly_full,
        )

    def open_blocking(
        self, *, accept_missing: bool, ceiling: Position | None, is_member: bool
    ) -> RecoveryResult:
        """Lock, recover and start the store; returns the result of recovery.

        Args:
            accept_missing: Whether to continue without missing files of the commit log.
            ceiling: No record after this is visible; None if all are.
            is_member: Whether ``store.member`` opens the store.

        Raises:
            StoreLocked: Another process has the store open.
            StoreError: The store cannot be read with these settings.
        """
        self.lock.take_blocking()
        self.dispatcher.ceiling = ceiling
        try:
            if not is_member:
                mark_use_outside_group(self._files, self.layout)
            recovered = self._recover(accept_missing=accept_missing)
            self._start(recovered)
        except OSError as error:
            self.release_blocking()
            raise StoreError(f"{self._config.root} cannot be opened: {error}") from error
        except BaseException:
            self.release_blocking()
            raise
        return recovered

    def finish_truncation_blocking(self, position: Position) -> None:
        """Notify the owner of the cut, then remove the file that marks it as unfinished.

        Raises:
            OSError: The file cannot be removed; the next start cuts the log again.
        """
        self._on_truncated(position)
        self.truncation_file.remove_blocking()

    def check_appends(self) -> None:
        """Check that appends are accepted, after retrying index entries that found no room.

        Raises:
            StoreFull: There is no room.
            StoreBroken: Only a restart helps.
        """
        if self.readiness.is_unindexed_only and self.dispatcher.retry_index():
            self.readiness.set_unindexed(None)
            self.dispatcher.refresh_mark()
        self.readiness.check_appends()

    def append_raw(
        self, position: Position, data: bytes | memoryview, *, store_ms: int
    ) -> RawChunk:
        """Append records of a leader; see ``MessageStore.append_raw``."""
        try:
            chunk = self.raw_appender.append(position, data)
        except StoreBroken as error:
            self.readiness.break_from_thread(str(error))
            raise
        if self.dispatcher.position < self.commit_log.first:
            self._begin_at(Position(self.commit_log.first), store_ms)
        return chunk

    def _begin_at(self, position: Position, store_ms: int) -> None:
        """Start all positions at ``position``, where an empty log began."""
        self.flusher.durable = max(self.flusher.durable, position)
        self.integrity.check.start_at(position)
        self.dispatcher.start_at(position, index_position=position, store_ms=store_ms)

    def release_blocking(self, *, clean: bool = False) -> None:
        """Close every file; with ``clean``, mark that there is nothing to recover."""
        self.integrity.scrub.close_blocking()
        self.wave.release()
        self.allocator.close_blocking()
        self.queue_files.close()
        if self.index is not None:
            with contextlib.suppress(OSError):  # entries not saved are rebuilt
                self.index.close_blocking()
        self.segments.close()
        self.extent_file.close()
        self.lock.release_blocking(clean=clean)

    def _recover(self, *, accept_missing: bool) -> RecoveryResult:
        self._cut = self.truncation_file.load_blocking()
        clean = self.lock.was_left_in_order and self._cut is None
        has_late_queues = self.raw_appender.late_queues.load_blocking()
        self.segments.load_blocking(clean=clean, begins_late=has_late_queues)
        extent = self.extent_file.load_blocking()
        if self._cut is not None:
            logger.warning("finishing an interrupted cut of the commit log position=%s", self._cut)
            cut_log_blocking(self.segments, self._cut)
            if extent is not None:
                extent = extent._replace(durable=min(extent.durable, self._cut))
        self.deleted_topics.load_blocking()
        self.damage.load_blocking()
        checkpoint = load_checkpoint_blocking(self._files, self.layout.checkpoint)
        self.checkpointer.master_flushed = max(0, checkpoint.times.master_durable)
        found = RecoveryInput(
            checkpoint=checkpoint,
            extent=extent,
            clean=clean,
            accept_missing=accept_missing,
            boot=self._boot,
            cut=self._cut,
            has_late_queues=has_late_queues,
        )
        return Recovery(
            self._config, self._contents, found=found, now_ms=self._clock.now_ms()
        ).run_blocking()

    def _start(self, recovered: RecoveryResult) -> None:
        self.lock.mark_open_blocking()
        self.topic_deleter.unlink_blocking()
        self.allocator.start()
        self.commit_log.start_at(recovered.end)
        self.integrity.check.start_at(recovered.end)
        visible_end = recovered.end
        if self.dispatcher.ceiling is not None:
            visible_end = find_border(
                self.segments, self.queues, self.dispatcher.ceiling, recovered.end
            )
        self.dispatcher.start_at(
            visible_end,
            index_position=min(recovered.index_position, visible_end),
            store_ms=recovered.store_ms,
            is_indexed=recovered.index_position == recovered.end,
        )
        self.readiness.set_unindexed(self.dispatcher.why_unindexed)
        self.flusher.start(recovered.end)
        # The checkpoint is saved at the ceiling before queues are cut there, so that a start after
        # a crash expects entries after it.
        self._save_recovered()
        if self._cut is not None:
            if self.checkpointer.saved_position < 0:
                raise StoreError(
                    f"the commit log is cut at {self._cut}, but that cannot be finished:"
                    f" {self.readiness.why_not}"
                )
            self.finish_truncation_blocking(Position(self._cut))
        if visible_end < recovered.end:
            hidden = hide_from(self.segments, self.queues, self.commit_log, visible_end)
            self.dispatcher.wait_for(hidden, recovered.end)
        self.checkpointer.start()
        self.integrity.scrub.start(recovered.end)

    def _save_recovered(self) -> None:
        self._files.mkdir(self.layout.consume_queues)
        try:
            self.checkpointer.save_blocking()
        except OSError as error:
            self.readiness.set_trouble(f"queues or index could not be saved: {error.strerror}")
