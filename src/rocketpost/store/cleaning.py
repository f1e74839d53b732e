"""Execution of a cleaning plan, in steps on the loop and on a thread.

    plan_blocking      thread   reads the disk, decides (``store.retention``)
    apply              loop     hides the segments from readers; refuses or accepts writes again
    trim_queues        loop     raises the first offsets, some queues at a time
    unlink_blocking    thread   deletes files of segments, queues and index that are out of use

A segment is deleted only when everything derived from it is on disk: never one that the flusher or
the checkpoint still needs.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final

from rocketpost.model.ids import Position
from rocketpost.store.config import StoreConfig
from rocketpost.store.descriptors import cache_count_max
from rocketpost.store.log.contents import StoreContents
from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.store.retention import CleanPlan, gather_facts_blocking, plan_cleaning

logger = logging.getLogger(__name__)

_MAPS_MAX: Final = 4096
"""Largest number of segments mapped for readers; each map keeps a descriptor."""


class Cleaning:
    """Deletes expired files. Belongs to the loop thread, except for ``*_blocking``."""

    def __init__(
        self,
        config: StoreConfig,
        contents: StoreContents,
        *,
        save_extent: Callable[[], None],
        safe_position: Callable[[], int],
        set_disk_full: Callable[[str | None], None],
    ) -> None:
        self.config = config
        self._layout = contents.layout
        self._files = contents.files
        self._segments = contents.segments
        self._queues = contents.queues
        self._index = contents.index
        self._deleted_topics = contents.deleted_topics
        self._damage = contents.damage
        self._save_extent = save_extent
        self._safe_position = safe_position
        self._set_disk_full = set_disk_full
        self._is_rejecting = False
        self.disk_ratio = 0.0
        """Used share of the fuller partition in the last round."""
        self.why_kept: str | None = None
        """Reason why the last round deleted less than it should."""
        self._untrimmed: list[ConsumeQueue] = []
        self._doomed_segments: list[str] = []
        self._doomed: list[str] = []
        self._unlinking = threading.Lock()

    def plan_blocking(
        self,
        *,
        now_ms: int,
        hour: int,
        is_requested: bool = False,
        held: Position | None = None,
        needed: Position | None = None,
    ) -> CleanPlan:
        """Decide which segments may be deleted; changes nothing. Any thread.

        Args:
            now_ms: The time.
            hour: The hour of the day in the broker's time zone.
            is_requested: Whether an administrator wants expired segments deleted now.
            held: Position of the oldest record that may not expire yet.
            needed: Position of the oldest record that must not be deleted.
        """
        safe = self._safe_position()
        # The plan never deletes the last segment, so the list ends with one that must stay.
        known = [s for s in self._segments.all_from_thread() if s.start <= safe]
        facts = gather_facts_blocking(
            self._files,
            [(Position(s.start), s.size, s.path) for s in known],
            paths=[self._layout.commit_log, self._layout.consume_queues],
            now_ms=now_ms,
            hour=hour,
            is_rejecting=self._is_rejecting,
            is_requested=is_requested,
            held=held,
            needed=needed,
        )
        return plan_cleaning(facts, self.config)

    def apply(self, plan: CleanPlan) -> None:
        """Hide the segments of a plan from readers, and refuse or accept writes as planned."""
        if plan.is_rejecting and not self._is_rejecting:
            logger.error("messages are refused: reason=%s", plan.why_rejecting)
        elif self._is_rejecting and not plan.is_rejecting:
            logger.warning("messages are accepted again: disk_used=%.0f%%", plan.ratio * 100)
        self._is_rejecting = plan.is_rejecting
        self.disk_ratio = plan.ratio
        if plan.why_kept is not None and self.why_kept is None:
            logger.warning("segments are kept, sends may be refused: reason=%s", plan.why_kept)
        self.why_kept = plan.why_kept
        self._set_disk_full(plan.why_rejecting)
        safe = self._safe_position()
        for start in plan.to_delete:
            segment = self._segments.find(start)
            if segment is not None and segment is self._segments.first and segment.end <= safe:
                self._segments.remove(segment)
                self._doomed_segments.append(segment.path)
                logger.info("segment expired path=%s reason=%s", segment.path, plan.why_delete)
        self._close_idle(safe)
        if plan.to_delete:
            self._untrimmed = list(self._queues)
            first = self._segments.first
            if first is not None:
                self._damage.forget_before(first.start)

    def _close_idle(self, safe: int) -> None:
        """Close fully written segments, and unmap some if the limit of open files asks for it."""
        segments = self._segments.all()
        for segment in segments:
            if segment.end <= safe:
                segment.close_descriptor()
        mapped = [segment for segment in segments if segment.is_mapped]
        most = cache_count_max(_MAPS_MAX)
        if len(mapped) > most:
            for segment in mapped[: len(mapped) - most // 2]:
                segment.unmap()

    def trim_queues(self, count_max: int = 200) -> bool:
        """Move the first offsets of some queues up to the log's start; True if more are left.

        A queue whose file cannot be read is left to the next round that deletes segments.
        """
        first = self._segments.first
        if first is not None:
            for queue in self._untrimmed[-count_max:]:
                if not queue.is_deleted:
                    self._trim(queue, first.start)
        del self._untrimmed[-count_max:]
        return bool(self._untrimmed)

    def _trim(self, queue: ConsumeQueue, log_first: int) -> None:
        dead_before = self._deleted_topics.position(queue.topic, queue.queue_id)
        try:
            self._doomed += queue.raise_first(max(log_first, dead_before))
        except OSError as error:
            # Its expired messages are skipped by readers; the others must not stay for its sake.
            logger.error(
                "queue file cannot be read, the queue keeps its expired entries topic=%s queue=%s"
                " reason=%s", queue.topic, queue.queue_id, error,
            )  # fmt: skip

    def unlink_blocking(self) -> int:
        """Unlink the hidden files; returns how many. Any thread.

        Raises:
            OSError: A file cannot be unlinked; the next call continues with it.
        """
        with self._unlinking:
            return self._unlink_all()

    def _unlink_all(self) -> int:
        # Others may be added meanwhile: they wait for the next call, since a start after a crash
        # would report files as lost that are unlinked without this.
        segment_count, queue_file_count = len(self._doomed_segments), len(self._doomed)
        if segment_count or queue_file_count:
            self._save_extent()
        for _ in range(segment_count):
            # One by one, and each before those after it: files left between deleted ones would look
            # like a gap at the next start, which is then refused.
            self._unlink(self._doomed_segments[0])
            self._files.fsync_dir(self._layout.commit_log)
            del self._doomed_segments[0]
        for _ in range(queue_file_count):
            self._unlink(self._doomed[0])
            del self._doomed[0]
        count = segment_count + queue_file_count
        first = self._segments.first
        if self._index is not None and first is not None:
            count += self._index.expire_blocking(Position(first.start))
        return count

    def _unlink(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # the call before has unlinked it, then failed
            self._files.unlink(path)
