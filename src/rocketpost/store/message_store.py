"""The store's interface to the rest of the broker.

Messages are appended during one loop iteration and written together by one commit. They
become visible when the owner calls :meth:`MessageStore.confirm`. The owner, which is
``server.writer.log_writer``, decides how safe a message must be before that.

**Invariant:** confirmed <= written <= end, durable <= written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from rocketpost.codec.record import Record
from rocketpost.errors import StoreBroken, StoreError
from rocketpost.model.clock import Clock
from rocketpost.model.delay_levels import parse_delay_levels
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.model.names import SCHEDULE_TOPIC
from rocketpost.store.apply import NOT_IN_QUEUE, indexed_keys, schedule_code
from rocketpost.store.checkpointer import Checkpointer
from rocketpost.store.config import StoreConfig
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.store.draft import Appended, Draft
from rocketpost.store.files import FileSystem, RealFiles
from rocketpost.store.integrity.read_check import Unit
from rocketpost.store.parts import StoreParts
from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.store.replica.deletions import TopicDeletions
from rocketpost.store.replica.truncation import Truncation
from rocketpost.store.topic_deletion import QueueDeletion

logger = logging.getLogger(__name__)

_new = tuple.__new__


class MessageStore:
    """Commit log, queues and index of one broker.

    Owned by the loop thread. Another thread may call ``*_blocking`` methods while no method of the
    loop runs (opening, closing), or as they say.
    """

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
        self.config = config
        self.files = files
        self._delays_ms = parse_delay_levels(config.delay_levels)
        parts = StoreParts(
            config,
            clock=clock,
            files=files,
            on_durable=on_durable,
            on_broken=on_broken,
            on_truncated=on_truncated,
        )
        self._parts = parts
        self.deletions = TopicDeletions(parts)
        self._clock = parts.store_clock
        self.layout = parts.layout
        self._readiness = parts.readiness
        self._refusal_reasons = parts.readiness.refusal_reasons
        self.refuses_new: Mapping[str, str] = parts.readiness.new_refusal_reasons
        """Reasons why new messages are refused, always the same object; empty if none."""
        self.segments = parts.segments
        self._allocator = parts.allocator
        self._log = parts.commit_log
        self.view = parts.commit_log.view
        self.damage = parts.damage
        self.queues = parts.queues
        self._find_queue = parts.queues.get
        self.index = parts.index
        self._dispatcher = parts.dispatcher
        self._waiting = parts.dispatcher.pending
        self.integrity = parts.integrity
        self.select_sound = parts.integrity.check.select_sound
        self.record_at = parts.integrity.reader.record_at
        self.record_of = parts.integrity.reader.record_of
        self._flusher = parts.flusher
        self.request_flush = parts.flusher.request
        self._checkpointer = parts.checkpointer
        self.cleaning = parts.cleaning
        self.wave = parts.wave

    @classmethod
    def open_blocking(
        cls,
        config: StoreConfig,
        *,
        clock: Clock,
        files: FileSystem | None = None,
        accept_missing: bool = False,
        ceiling: Position | None = None,
        is_member: bool = False,
        on_durable: Callable[[Position], None] = lambda position: None,
        on_broken: Callable[[str], None] = lambda why: None,
        on_truncated: Callable[[Position], None] = lambda position: None,
    ) -> MessageStore:
        """Lock, load and recover a store.

        Args:
            config: The store's settings.
            clock: Provides store times.
            files: The file system, if not the real one.
            accept_missing: Whether to continue without missing files of the commit log.
            ceiling: No record after this is visible before :meth:`set_ceiling`; None for no limit.
            is_member: Whether ``store.member`` opens the store of a group's member.
            on_durable: Called from a store thread after each sync with the durable position.
            on_broken: Called once, from a store thread, when no more messages can be acknowledged.
            on_truncated: Called with the new end when the log was cut, so that the owner durably
                removes what it derived from the records cut off. Called again after a crash.

        Raises:
            StoreLocked: Another process has the store open.
            StoreError: The store cannot be read with these settings.
        """
        store = cls(
            config,
            clock=clock,
            files=files if files is not None else RealFiles(),
            on_durable=on_durable,
            on_broken=on_broken,
            on_truncated=on_truncated,
        )
        opened = store._parts.open_blocking(
            accept_missing=accept_missing, ceiling=ceiling, is_member=is_member
        )
        store._clock.newest_ms = opened.store_ms
        return store

    # -- writing

    def append(self, draft: Draft) -> Appended:
        """Append a message; nothing is promised before :meth:`commit`.

        Raises:
            StoreFull: There is no room; messages appended before can still be committed.
            StoreBroken: The store accepts no more messages.
        """
        if self._refusal_reasons:
            self._parts.check_appends()
        clock = self._clock
        store_ms = clock.batch_ms or clock.begin()
        topic = draft.topic
        queue_id = draft.queue_id
        log = self._log
        if draft.sys_flag & NOT_IN_QUEUE:
            return self._append_outside(draft, store_ms)
        queue = self._find_queue((topic, queue_id))
        if queue is None:
            queue = self.queues.make(topic, queue_id)
        offsets, slot = queue.offsets, queue.slot
        queue_offset = offsets[slot]
        tags_code = draft.tags_code
        if topic == SCHEDULE_TOPIC:
            # The message may be newer than this wake-up; its delay must not begin earlier.
            store_ms = clock.begin()
            tags_code = schedule_code(draft.properties, tags_code, store_ms, self._delays_ms)
        position = log.append(draft, queue_offset, store_ms)
        offsets[slot] = queue_offset + 1
        appended: Appended = _new(
            Appended,
            (
                position,
                log.end - position,
                queue_offset,
                store_ms,
                topic,
                queue_id,
                tags_code,
                draft.keys,
                queue,
            ),
        )
        self._waiting.append(appended)
        return appended

    def append_batch(self, drafts: Sequence[Draft]) -> list[Appended]:
        """Append messages that stay together: one file, one store time, no other in between.

        Raises:
            StoreFull: There is no room; none of them was appended.
            StoreBroken: The store accepts no more messages.
        """
        if self._refusal_reasons:
            self._parts.check_appends()
        self._log.reserve(sum(map(self._log.size_of, drafts)))
        return [self.append(draft) for draft in drafts]

    def append_raw(self, position: Position, data: bytes | memoryview) -> Position:
        """Append records of a leader as they are; returns the end of the log.

        The records are written, but not visible before :meth:`confirm`. ``data`` holds whole
        records of one segment, including the filler that ends the segment. It is accepted or
        refused as a whole. ``position`` is that of its first byte in the leader's log, and must be
        the end of this log. An empty log may begin at the start of any segment.

        Raises:
            CorruptRecord: A record is damaged, cut short or out of sequence; nothing was changed.
            StoreError: The chunk does not belong at the end of the log; nothing was changed.
            StoreFull: There is no room; nothing was changed.
            StoreBroken: The write failed; the store accepts no more messages.
        """
        if self._refusal_reasons:
            self._parts.check_appends()
        clock = self._clock
        chunk = self._parts.append_raw(position, data, store_ms=clock.newest_ms)
        clock.newest_ms = max(clock.newest_ms, chunk.store_ms)
        self.wave.forget_written()
        return chunk.end

    def truncate_to_blocking(self, position: Position, *, below_confirmed: bool = False) -> None:
        """Cut the log at a record border, and cut queues, index and checkpoint to match.

        Durable when it returns; a crash leaves the old end or the new one. Call it while nothing
        else uses the store and everything appended is committed.

        Args:
            position: The new end.
            below_confirmed: Whether visible messages may be cut off.

        Raises:
            StoreError: The log cannot be cut there, or not now (StoreFull); nothing was changed.
            StoreBroken: A file could not be changed; the next start finishes the cut.
        """
        Truncation(self._parts).run_blocking(position, below_confirmed=below_confirmed)

    def stamp_ms(self) -> int:
        """Return the earliest store time of a message appended now.

        Messages of one wake-up share one store time, so it may be behind the clock.
        """
        return self._clock.stamp_ms()

    def commit(self) -> Position:
        """Write the messages appended since the last commit; returns the end of the log.

        Readers do not see them before :meth:`confirm`.

        Raises:
            StoreFull: There was no room; everything since the last commit is undone.
            StoreBroken: The write failed; the same, and the store accepts no more messages.
        """
        log, wave = self._log, self.wave
        wave.settle()
        self._clock.batch_ms = 0
        try:
            log.write()
        except StoreError as error:
            self._dispatcher.forget_from(log.end)
            wave.end_batch(is_written=False)
            if isinstance(error, StoreBroken):
                self._readiness.break_from_thread(str(error))
            raise
        wave.end_batch(is_written=True)
        return Position(log.end)

    def confirm(self, position: Position) -> list[Arrival]:
        """Make every message before ``position`` visible; returns a notice for each queue."""
        assert position <= self._log.written
        dispatcher = self._dispatcher
        arrivals = dispatcher.confirm(position)
        if dispatcher.indexing is not None and dispatcher.indexing.why_not is not None:
            self._readiness.set_unindexed(dispatcher.indexing.why_not)
        return arrivals

    @property
    def ceiling(self) -> Position | None:
        """Position up to which :meth:`confirm` makes records visible; None if unlimited."""
        return self._dispatcher.ceiling

    def set_ceiling(self, position: Position | None) -> None:
        """Set the position up to which :meth:`confirm` makes records visible; None for no limit.

        Raises:
            StoreError: Records after it are visible already.
        """
        self._dispatcher.set_ceiling(position)

    request_flush: Callable[[], None]
    """Asks the flusher's thread to make committed messages durable now."""

    def report_to(
        self,
        *,
        on_durable: Callable[[Position], None] = lambda position: None,
        on_broken: Callable[[str], None] = lambda why: None,
    ) -> None:
        """Replace the receivers of reports that :meth:`open_blocking` describes."""
        self._flusher.on_durable = on_durable
        self._readiness.on_broken = on_broken

    def delete_queues(self, topic: str) -> QueueDeletion:
        """Delete the queues of a topic; its messages can no longer be read by queue.

        Takes effect at once; the caller then runs ``finish_blocking`` in a thread. Queues created
        again under this name continue their offsets, so that no offset ever means two messages.

        Raises:
            StoreError: Messages appended before cannot be committed; nothing was deleted.
        """
        position = self.commit()
        try:
            self.queues.delete(topic, position)
        except OSError as error:
            raise StoreError(f"the queues of {topic} cannot be moved: {error.strerror}") from error
        self._dispatcher.refresh_mark()
        return QueueDeletion(self._parts.topic_deleter, checkpoint=self._checkpointer.save_blocking)

    # -- reading

    view: Callable[[int, int], memoryview | None]
    """``view(position, size)``: bytes of the log without a copy; None if the log lacks them."""

    select_sound: Callable[..., list[Unit]]
    """``select_sound(topic, queue_id, offset, units)``: entries whose records may be served."""

    record_at: Callable[[int], Record | None]
    """``record_at(position)``: the visible record there; None if there is none or it is damaged."""

    record_of: Callable[[ConsumeQueue, int, int, int], Record | None]
    """``record_of(queue, offset, position, size)``: the record of a queue entry, or None."""

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, or None if it never had a message."""
        return self._find_queue((topic, queue_id))

    def queues_of(self, topic: str) -> list[ConsumeQueue]:
        """Return the queues of a topic, by id."""
        return self.queues.of_topic(topic)

    def find(
        self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int
    ) -> list[Position]:
        """Return positions of messages that may have this key, newest first; hashes can collide."""
        if self.index is None:
            return []
        before = self._dispatcher.position
        return self.index.find(topic, key, count_max, begin_ms, end_ms, before=before)

    def store_time_at(self, position: int) -> int:
        """Return the store time of the record at ``position``; -1 if it cannot be read."""
        return self._log.store_time(position)

    # -- state

    @property
    def first_position(self) -> Position:
        """Position of the oldest byte kept."""
        return Position(self._log.first)

    @property
    def end_position(self) -> Position:
        """Position of the next record."""
        return Position(self._log.end)

    @property
    def written_position(self) -> Position:
        """Position before which everything is in the files, and survives a kill of the process."""
        return Position(self._log.written)

    @property
    def durable_position(self) -> Position:
        """Position before which everything is on disk."""
        return self._flusher.durable

    @property
    def sync_count(self) -> int:
        """Number of times that the log was made durable since it was opened."""
        return self._flusher.sync_count

    @property
    def confirmed_position(self) -> Position:
        """Position before which everything is visible."""
        return self._dispatcher.position

    @property
    def store_ms(self) -> int:
        """Store time of the newest message."""
        return self._clock.newest_ms

    @property
    def writable(self) -> bool:
        """Whether new messages are accepted."""
        return self._readiness.is_ready

    @property
    def why_not_writable(self) -> str | None:
        """Reason why new messages are refused."""
        return self._readiness.why_not

    @property
    def broken(self) -> bool:
        """Whether a write or sync failed, so that only a restart helps."""
        return self._readiness.is_broken

    def check_writable(self) -> None:
        """Check that new messages are accepted, after retrying index entries that found no room.

        Raises:
            StoreFull: There is no room, or hardly any.
            StoreBroken: Only a restart helps.
        """
        if self._refusal_reasons:
            self._parts.check_appends()
        self._readiness.check()

    def set_disk_full(self, why: str | None) -> None:
        """Refuse new messages because the disk is nearly full, or accept them. Any thread.

        Appends still succeed: delivering or moving messages accepted before needs them.
        """
        self._readiness.set_nearly_full(why)

    # -- maintenance

    def configure(self, config: StoreConfig) -> None:
        """Apply settings that may change while the store is open: intervals and retention."""
        self.cleaning.config = config
        self._checkpointer.config = config
        self._flusher.interval_ms = config.flush_interval_ms
        self.integrity.configure(config)

    def flush_blocking(self) -> None:
        """Return once everything written before the call is on disk. Any thread.

        Raises:
            StoreBroken: The log cannot be made durable.
        """
        self._flusher.flush_blocking()

    @property
    def checkpoint(self) -> Checkpointer:
        """Saves the progress of queues and index, and a slave's knowledge of its master."""
        return self._checkpointer

    def save_blocking(self) -> None:
        """Make queues, index and checkpoint durable now. Any thread."""
        self._checkpointer.save_blocking()

    def unlink_deleted_blocking(self) -> None:
        """Unlink the queue files of deleted topics. Any thread."""
        self._parts.topic_deleter.unlink_blocking()

    def close_blocking(self) -> None:
        """Stop cleanly: everything on disk, checkpoint exact, nothing left to recover.

        A broken store is only released; its next start recovers it.
        """
        if not self._parts.lock.is_held:
            return
        clean = False
        try:
            clean = self._settle()
        finally:
            self._readiness.close()
            self._flusher.close_blocking()
            self._checkpointer.close_blocking()
            self._parts.release_blocking(clean=clean)

    def _settle(self) -> bool:
        if self.broken:
            return False
        try:
            self.commit()
            self._flusher.flush_blocking()
            self.confirm(Position(self._log.written))
            self._checkpointer.save_blocking()
        except (StoreError, OSError) as error:
            logger.error(
                "store not stopped cleanly, it recovers at the next start reason=%s", error
            )
            return False
        return True

    def _append_outside(self, draft: Draft, store_ms: int) -> Appended:
        position = self._log.append(draft, 0, store_ms)
        appended = Appended(
            Position(position),
            self._log.end - position,
            QueueOffset(0),
            store_ms,
            draft.topic,
            draft.queue_id,
            draft.tags_code,
            indexed_keys(draft.sys_flag, draft.keys),
            None,
        )
        self._waiting.append(appended)
        return appended
