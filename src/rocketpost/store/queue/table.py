"""All consume queues of a store, by topic and queue id."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from rocketpost.errors import StoreError
from rocketpost.store.deleted_topics import DeletedTopics
from rocketpost.store.layout import Layout, parse_deleted_topic, parse_queue_id
from rocketpost.store.log.segment import ReadPages
from rocketpost.store.queue.check import QueueCheck
from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.store.queue.files import ENTRY, ENTRY_BYTES, QueueFiles
from rocketpost.store.queue.slots import QueueSlots

logger = logging.getLogger(__name__)

_ANYWHERE: Final = 2**63 - 1
_NO_QUEUES: Final[Mapping[int, ConsumeQueue]] = {}
_WITNESS_COUNT_MAX: Final = 4 * 1024 * 1024


class QueueTable:
    """Finds, makes, loads and deletes queues. Owned by the loop thread."""

    def __init__(
        self,
        layout: Layout,
        files: QueueFiles,
        deleted_topics: DeletedTopics,
        *,
        store_time: Callable[[int, ReadPages | None], int],
    ) -> None:
        self._layout = layout
        self._files = files
        self._deleted_topics = deleted_topics
        self._store_time = store_time
        self.slots = QueueSlots()
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self._empty: list[tuple[ConsumeQueue, int]] = []  # without an entry so far
        self._count = 0
        self._end_sum = 0
        self._witnesses: dict[tuple[str, int], tuple[int, bytes]] = {}
        self._known_ends: dict[tuple[str, int], int] = {}
        self.is_incomplete = False
        """Whether files of a queue were missing or damaged, so that the log must be read again."""
        self.get = self._queues.get

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self._queues.values()))

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Return the queues of one topic, by id."""
        queues = self._by_topic.get(topic, {})
        return [queues[queue_id] for queue_id in sorted(queues)]

    def each_of(self, topic: str) -> Iterable[ConsumeQueue]:
        """Return the queues of one topic in any order, for a walk without pauses."""
        return self._by_topic.get(topic, _NO_QUEUES).values()

    def make(self, topic: str, queue_id: int, *, start: int = 0) -> ConsumeQueue:
        """Make a queue that does not exist yet.

        Args:
            topic: The topic.
            queue_id: The queue.
            start: Least offset of its first message; a deleted topic's queue continues its count.
        """
        start = max(start, self._deleted_topics.next_offset(topic, queue_id))
        queue = self._new(topic, queue_id, start)
        self._add(queue)
        self._empty.append((queue, start))
        return queue

    def delete(self, topic: str, position: int) -> None:
        """Delete the queues of a topic at ``position`` of the log, and move their files aside.

        The move is one rename, so that a topic created again at once has an empty directory.
        """
        queues = self.of_topic(topic)
        directory = self._layout.topic_queues(topic)
        serial = self._deleted_topics.serial + 1
        with self._files.writing.first():
            self._files.forget_directory(directory)
            has_files = self._files.files.stat(directory) is not None
            if has_files:
                self._files.files.mkdir(self._layout.deleted_queues)
                target = self._layout.deleted_topic(topic, position, serial)
                self._files.files.rename(directory, target)
            for queue in queues:
                queue.is_deleted = True
                self._remove(queue)
        if queues or has_files:
            next_offsets = {queue.queue_id: int(queue.next_offset) for queue in queues}
            self._deleted_topics.add(topic, position, next_offsets, serial=serial)
        self._uncount(queues)

    def _add(self, queue: ConsumeQueue) -> None:
        self._queues[queue.topic, queue.queue_id] = queue
        self._by_topic.setdefault(queue.topic, {})[queue.queue_id] = queue

    def _remove(self, queue: ConsumeQueue) -> None:
        del self._queues[queue.topic, queue.queue_id]
        of_topic = self._by_topic[queue.topic]
        del of_topic[queue.queue_id]
        if not of_topic:
            del self._by_topic[queue.topic]
        self.slots.remove(queue)

    def _uncount(self, queues: list[ConsumeQueue]) -> None:
        """Subtract deleted queues from the result of :meth:`count`, without counting again."""
        empty = {id(queue) for queue, _ in self._empty}
        self._empty = [pair for pair in self._empty if not pair[0].is_deleted]
        for queue in queues:
            if id(queue) not in empty:
                self._count -= 1
                self._end_sum -= queue.end

    def count(self) -> tuple[int, int]:
        """Return the number of queues with entries, and the sum of their ends.

        A lost file changes these numbers, so they are part of the checkpoint.
        """
        self._empty = [(queue, queue.end) for queue in self if queue.last_position < 0]
        ends = [queue.end for queue in self if queue.last_position >= 0]
        self._count, self._end_sum = len(ends), sum(ends)
        return self._count, self._end_sum

    def count_before(self, position: int) -> tuple[int, int]:
        """Return the result of :meth:`count` for records before ``position`` alone."""
        ends = [queue.end_before(position) for queue in self]
        ends = [each for each in ends if each[1] >= 0]
        return len(ends), sum(end for end, _ in ends)

    def count_added(self, entry_count: int) -> tuple[int, int]:
        """Return the result of :meth:`count` after more puts, without visiting every queue."""
        self._end_sum += entry_count
        if self._empty:
            filled = [start for queue, start in self._empty if queue.last_position >= 0]
            if filled:
                self._count += len(filled)
                self._end_sum += sum(filled)
                self._empty = [pair for pair in self._empty if pair[0].last_position < 0]
        return self._count, self._end_sum

    def start_sum(self) -> int:
        """Return the sum of the offsets at which the first files of the queues may begin.

        A lost first file changes this number; other lost files change :meth:`count`.
        """
        return sum(
            self._start_share(queue, min(int(queue.first), max(int(queue.end) - 1, 0)))
            for queue in self
        )

    def _start_share(self, queue: ConsumeQueue, first: int) -> int:
        per_file = self._files.entries_per_file
        # Queues of a topic that was deleted and created again begin where the old ones ended.
        made_at = self._deleted_topics.next_offset(queue.topic, queue.queue_id)
        return max(0, first - first % per_file - (made_at - made_at % per_file))

    @property
    def has_witnesses(self) -> bool:
        """Whether any file had entries after the trusted ones."""
        return bool(self._witnesses)

    def witness(self, queue: ConsumeQueue, offset: int) -> int | None:
        """Return the position of an offset's record by the queue files found, if known.

        Only entries after the trusted ones are used.
        """
        found = self._witnesses.get((queue.topic, queue.queue_id))
        if found is None:
            return None
        at = (offset - found[0]) * ENTRY_BYTES
        if not 0 <= at < len(found[1]):
            return None
        position: int = ENTRY.unpack_from(found[1], at)[0]
        return position

    def fill_to_known_ends(self) -> None:
        """Extend queues so that none ends before an offset that its files had assigned."""
        for (topic, queue_id), end in self._known_ends.items():
            queue = self.get((topic, queue_id))
            if queue is None:
                if not end:
                    continue
                queue = self.make(topic, queue_id)
                queue.restart_at(max(end, queue.end))
            if queue.end < end:
                logger.error(
                    "messages at the end of a queue are lost topic=%s queue=%s offset=%s count=%s",
                    topic, queue_id, queue.end, end - queue.end,
                )  # fmt: skip
                queue.fill_to(end)
        self._known_ends.clear()
        self._witnesses.clear()

    def forget_empty(self, queue: ConsumeQueue) -> None:
        """Remove a queue that was made for a record that does not belong to it."""
        assert queue.last_position < 0
        if not self._files.starts(self._layout.queue(queue.topic, queue.queue_id)):
            self._remove(queue)

    def load_blocking(
        self,
        *,
        before: int | None,
        clean: bool,
        log_first: int = 0,
        limit: int = _ANYWHERE,
        is_cut: bool = False,
    ) -> None:
        """Find the queues on disk. Sets :attr:`is_incomplete`.

        Args:
            before: Trust only the entries of records before this position; None if it is not known
                how far the files can be trusted, so that they are read to find out.
            clean: Whether the files hold nothing after the last entry.
            log_first: The first position of the commit log.
            limit: Position that no record extends past.
            is_cut: Whether the log was cut there, and the queues may not have been.

        Raises:
            StoreError: The size of a file differs from the settings.
        """
        for topic in self._files.files.listdir(self._layout.consume_queues):
            for name in self._files.files.listdir(self._layout.topic_queues(topic)):
                queue_id = parse_queue_id(name)
                if queue_id is not None:
                    self._load(topic, queue_id, before, clean, log_first, limit, is_cut)

    def check_all_blocking(self, *, limit: int, start_sum: int) -> None:
        """Check every entry of every queue, and discard queues that must be rebuilt.

        Args:
            limit: Position that no record extends past.
            start_sum: Upper bound of :meth:`start_sum`. If it is exceeded, the first file of some
                queue is missing; all queues that may lack theirs are discarded.
        """
        lacks_first = self.start_sum() > start_sum
        for queue in self:
            directory = self._layout.queue(queue.topic, queue.queue_id)
            starts = self._files.starts(directory)
            if not starts:
                continue
            check = QueueCheck(self._files, directory, starts, limit=limit)
            if (lacks_first and self._start_share(queue, starts[0])) or not check.is_whole(
                queue.end
            ):
                self._discard(queue.topic, queue.queue_id, known_end=queue.end)
                self._remove(queue)

    def load_deleted_blocking(self, *, before: int | None) -> None:
        """Load deletions whose files were moved aside but not unlinked yet."""
        files = self._files.files
        known = self._deleted_topics.serial
        for name in files.listdir(self._layout.deleted_queues):
            parsed = parse_deleted_topic(name)
            if parsed is None:
                continue
            topic, position, serial = parsed
            if serial <= known:
                continue
            ends = {}
            for child in files.listdir(f"{self._layout.deleted_queues}/{name}"):
                queue_id = parse_queue_id(child)
                directory = f"{self._layout.deleted_queues}/{name}/{child}"
                starts = self._check_files(directory, False) if queue_id is not None else []
                if queue_id is not None and starts:
                    check = QueueCheck(self._files, directory, starts, limit=_ANYWHERE)
                    ends[queue_id] = _find_end(check, before)
            self._deleted_topics.add(topic, position, ends, serial=serial)

    def _new(self, topic: str, queue_id: int, start: int) -> ConsumeQueue:
        def queue_of(offsets: memoryview, slot: int) -> ConsumeQueue:
            return ConsumeQueue(
                topic,
                queue_id,
                directory=self._layout.queue(topic, queue_id),
                files=self._files,
                store_time=self._store_time,
                start=start,
                offsets=offsets,
                slot=slot,
            )

        return self.slots.make(queue_of)

    def _load(
        self,
        topic: str,
        queue_id: int,
        before: int | None,
        clean: bool,
        log_first: int,
        limit: int,
        is_cut: bool,
    ) -> None:
        directory = self._layout.queue(topic, queue_id)
        starts = self._check_files(directory, clean)
        if not starts:
            return
        run = self._last_run(starts)
        check = QueueCheck(self._files, directory, run, limit=limit)
        end = _find_end(check, before)
        if len(run) < len(starts):
            # Cleaning interrupted by a crash leaves a gap; then all before it has expired.
            expired = check.entry(run[0])[0] < log_first
            if not expired:
                # An unfinished cut may have left the files after the gap: they show no end then.
                is_left_over = is_cut and end == run[0]
                self._discard(topic, queue_id, known_end=0 if is_left_over else end)
                return
            self._unlink(directory, starts[: -len(run)])
        if not check.looks_whole(end):
            self._discard(topic, queue_id, known_end=0)
            return
        if before is not None:
            later = check.later_entries(end, count_max=_WITNESS_COUNT_MAX)
            if later:
                self._witnesses[topic, queue_id] = (end, later)
                self._known_ends[topic, queue_id] = end + len(later) // ENTRY_BYTES
        if not clean:
            self._files.truncate(directory, end)
        if before is not None and end == run[0]:
            # All its entries are newer than the checkpoint and will be rebuilt.
            self._unlink(directory, self._files.starts(directory))
            return
        last = check.last_real(end)
        queue = self._new(topic, queue_id, run[0])
        queue.resume(run[0], end, last[0] if last is not None else -1)
        self._add(queue)

    def _last_run(self, starts: list[int]) -> list[int]:
        """Return the starts of the files after the last gap."""
        run = len(starts) - 1
        while run > 0 and starts[run - 1] + self._files.entries_per_file == starts[run]:
            run -= 1
        return starts[run:]

    def _discard(self, topic: str, queue_id: int, *, known_end: int) -> None:
        """Unlink the files of a queue, to rebuild it from the commit log."""
        logger.error(
            "queue files are missing or damaged, the queue is rebuilt from the commit log "
            "topic=%s queue=%s", topic, queue_id,
        )  # fmt: skip
        directory = self._layout.queue(topic, queue_id)
        self._unlink(directory, self._files.starts(directory))
        known = self._known_ends.get((topic, queue_id), 0)
        self._known_ends[topic, queue_id] = max(known, known_end)
        self.is_incomplete = True

    def _unlink(self, directory: str, starts: list[int]) -> None:
        for start in starts:
            path = self._files.path(directory, start)
            self._files.forget(path)
            self._files.files.unlink(path)

    def _check_files(self, directory: str, clean: bool) -> list[int]:
        starts = self._files.starts(directory)
        if not all(map(self._files.is_aligned, starts)):
            raise StoreError(
                f"the files in {directory} do not start at multiples of "
                f"mappedFileSizeConsumeQueue ({self._files.file_bytes} bytes); set the "
                "value with which they were written"
            )
        for start in list(starts):
            path = self._files.path(directory, start)
            size = self._size(path)
            if size == 0 and start == starts[-1]:
                self._files.files.unlink(path)
                starts.remove(start)
            elif size < self._files.file_bytes and (not clean or self._has_whole_files()):
                self._files.restore_size(path)  # cut short, or a crash while it was made
            elif size != self._files.file_bytes:
                raise StoreError(
                    f"{path} has {size} bytes; mappedFileSizeConsumeQueue is "
                    f"{self._files.file_bytes}. If that setting is right, remove the "
                    "file: the queue is rebuilt from the commit log"
                )
        return starts

    def _size(self, path: str) -> int:
        found = self._files.files.stat(path)
        return found.size if found is not None else 0

    def _has_whole_files(self) -> bool:
        """Tell whether any file has the size in the settings."""
        files = self._files.files
        for topic in files.listdir(self._layout.consume_queues):
            for name in files.listdir(self._layout.topic_queues(topic)):
                directory = f"{self._layout.topic_queues(topic)}/{name}"
                for start in self._files.starts(directory):
                    if self._size(self._files.path(directory, start)) == self._files.file_bytes:
                        return True
        return False


def _find_end(check: QueueCheck, before: int | None) -> int:
    return check.valid_end() if before is None else check.trusted_end(before)
