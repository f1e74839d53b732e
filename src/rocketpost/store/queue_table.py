"""All consume queues of a store, by topic and queue id."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from rocketpost.errors import StoreError
from rocketpost.store.consume_queue import ConsumeQueue
from rocketpost.store.drops import DroppedTopics
from rocketpost.store.layout import Layout, parse_dropped_topic, parse_queue_id
from rocketpost.store.queue_files import ENTRY, ENTRY_BYTES, FILLER_SIZE, QueueFiles

log = logging.getLogger(__name__)

_SCANNED_FILES: int = 3
_ENTRIES_AT_ONCE: int = 8192
_ENTRIES_AT_A_LOOK: int = 200  # one page


class QueueTable:
    """Finds, makes, loads and drops queues. Owned by the loop thread."""

    def __init__(
        self,
        layout: Layout,
        files: QueueFiles,
        drops: DroppedTopics,
        *,
        store_time: Callable[[int], int],
    ) -> None:
        self._layout = layout
        self._files = files
        self._drops = drops
        self._store_time = store_time
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._empty: list[tuple[ConsumeQueue, int]] = []  # made, but without an entry so far
        self._count = 0
        self._end_sum = 0
        self.get = self._queues.get

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self._queues.values()))

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Return the queues of one topic, by id."""
        found = [queue for (name, _), queue in self._queues.items() if name == topic]
        return sorted(found, key=lambda queue: queue.queue_id)

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Make a queue that is not there yet."""
        start = self._drops.next_offset(topic, queue_id)
        queue = self._new(topic, queue_id, start)
        self._queues[topic, queue_id] = queue
        self._empty.append((queue, start))
        return queue

    def drop(self, topic: str, position: int) -> None:
        """Forget the queues of a topic deleted at ``position``, and move their files aside.

        The move is one rename, so that a topic made again at once starts with an empty directory.
        """
        queues = self.of_topic(topic)
        directory = self._layout.topic_queues(topic)
        serial = self._drops.serial + 1
        with self._files.writing:
            self._files.forget_directory(directory)
            if self._files.files.stat(directory) is not None:
                self._files.files.mkdir(self._layout.dropped)
                target = self._layout.dropped_topic(topic, position, serial)
                self._files.files.rename(directory, target)
            for queue in queues:
                queue.dropped = True
                del self._queues[topic, queue.queue_id]
        if queues:
            next_offsets = {queue.queue_id: int(queue.next_offset) for queue in queues}
            self._drops.add(topic, position, next_offsets, serial=serial)
        self.count()

    def count(self) -> tuple[int, int]:
        """Return how many queues have entries and the sum of their ends.

        A file that is lost shows in these two numbers, so they are part of the checkpoint.
        """
        self._empty = [(queue, queue.end) for queue in self if queue.last_position < 0]
        ends = [queue.end for queue in self if queue.last_position >= 0]
        self._count, self._end_sum = len(ends), sum(ends)
        return self._count, self._end_sum

    def grown(self, entry_count: int) -> tuple[int, int]:
        """Return what :meth:`count` would after so many puts, without looking at every queue."""
        self._end_sum += entry_count
        if self._empty:
            filled = [start for queue, start in self._empty if queue.last_position >= 0]
            if filled:
                self._count += len(filled)
                self._end_sum += sum(filled)
                self._empty = [pair for pair in self._empty if pair[0].last_position < 0]
        return self._count, self._end_sum

    def load_blocking(self, *, before: int | None, clean: bool, log_first: int = 0) -> None:
        """Find the queues on disk.

        Args:
            before: Trust the entries of records before this position and no others; None if it is
                not known how far the files can be trusted, so that they are read to find out.
            clean: Whether nothing can lie behind the last entry.
            log_first: Where the commit log begins.

        Raises:
            StoreError: A file has another size than the settings say.
        """
        for topic in self._files.files.listdir(self._layout.consume_queues):
            for name in self._files.files.listdir(self._layout.topic_queues(topic)):
                queue_id = parse_queue_id(name)
                if queue_id is not None:
                    self._load(topic, queue_id, before, clean, log_first)

    def load_dropped_blocking(self, *, before: int | None) -> None:
        """Learn of deletions whose files were moved aside but not unlinked yet."""
        files = self._files.files
        known = self._drops.serial
        for name in files.listdir(self._layout.dropped):
            parsed = parse_dropped_topic(name)
            if parsed is None:
                continue
            topic, position, serial = parsed
            if serial <= known:
                continue
            ends = {}
            for child in files.listdir(f"{self._layout.dropped}/{name}"):
                queue_id = parse_queue_id(child)
                directory = f"{self._layout.dropped}/{name}/{child}"
                starts = self._check_files(directory, False) if queue_id is not None else []
                if queue_id is not None and starts:
                    ends[queue_id] = self._find_end(directory, starts, before)
            self._drops.add(topic, position, ends, serial=serial)

    def _new(self, topic: str, queue_id: int, start: int) -> ConsumeQueue:
        return ConsumeQueue(
            topic,
            queue_id,
            directory=self._layout.queue(topic, queue_id),
            files=self._files,
            store_time=self._store_time,
            start=start,
        )

    def _load(
        self, topic: str, queue_id: int, before: int | None, clean: bool, log_first: int
    ) -> None:
        directory = self._layout.queue(topic, queue_id)
        starts = self._check_files(directory, clean)
        if not starts:
            return
        starts = self._mend_gap(directory, starts, log_first)
        if not starts:
            return
        queue = self._new(topic, queue_id, starts[0])
        end = self._find_end(directory, starts, before)
        if not clean:
            self._files.truncate(directory, end)
        last = self._entry(directory, end - 1) if end > starts[0] else None
        real = last is not None and last[1] != FILLER_SIZE
        if before is not None and not real:
            # All its entries are newer than the checkpoint and will be made again.
            queue.remove_files()
            return
        queue.resume(starts[0], end, last[0] if last is not None and real else -1)
        self._queues[topic, queue_id] = queue

    def _mend_gap(self, directory: str, starts: list[int], log_first: int) -> list[int]:
        """Remove what lies before a missing file; returns the starts of what is left.

        A gap is left by cleaning that a crash cut short: then all before it has expired. Else the
        queue is built again, which is possible as the log has everything from the gap on.
        """
        run = len(starts) - 1
        while run > 0 and starts[run - 1] + self._files.entries_per_file == starts[run]:
            run -= 1
        if run == 0:
            return starts
        expired = self._entry(directory, starts[run])[0] < log_first
        log.error("queue has a file missing directory=%s build_again=%s", directory, not expired)
        doomed = starts[:run] if expired else starts
        for start in doomed:
            path = self._files.path(directory, start)
            self._files.forget(path)
            self._files.files.unlink(path)
        return starts[len(doomed) :]

    def _check_files(self, directory: str, clean: bool) -> list[int]:
        starts = self._files.starts(directory)
        if not all(map(self._files.is_aligned, starts)):
            raise StoreError(
                f"the files in {directory} are not mappedFileSizeConsumeQueue"
                f" ({self._files.file_bytes} bytes) apart"
            )
        for start in list(starts):
            path = self._files.path(directory, start)
            found = self._files.files.stat(path)
            size = found.size if found is not None else 0
            if size == 0 and start == starts[-1]:
                self._files.files.unlink(path)
                starts.remove(start)
            elif size < self._files.file_bytes and not clean:
                self._files.restore_size(path)  # a crash came while it was made or cut
            elif size != self._files.file_bytes:
                raise StoreError(
                    f"{path} has {size} bytes; mappedFileSizeConsumeQueue says"
                    f" {self._files.file_bytes}"
                )
        return starts

    def _entry(self, directory: str, offset: int) -> tuple[int, int, int]:
        return ENTRY.unpack(self._files.read(directory, offset, 1))

    def _find_end(self, directory: str, starts: list[int], before: int | None) -> int:
        if before is None:
            return self._valid_end(directory, starts)
        return self._trusted_end(directory, starts, before)

    def _trusted_end(self, directory: str, starts: list[int], before: int) -> int:
        """Return the offset after the last entry of a record before ``before``."""
        for start in reversed(starts):
            end = start + self._trusted_count(directory, start, before)
            if end > start:
                return end
        return starts[0]

    def _trusted_count(self, directory: str, start: int, before: int) -> int:
        """Count the entries of one file that may be trusted: the first ones, and all of them.

        Most queues are short, so the search doubles its steps from the front.
        """
        low, step, high = 0, _ENTRIES_AT_A_LOOK, self._files.entries_per_file
        while low + step < high:
            position, size, _ = self._entry(directory, start + low + step - 1)
            if size > 0 and position < before:
                low += step
                step *= 2
            else:
                high = low + step - 1
                step = max(_ENTRIES_AT_A_LOOK, (high - low) // 2)
                if high - low <= _ENTRIES_AT_A_LOOK:
                    break
        for at, (position, size, _) in enumerate(self._entries(directory, start + low, high - low)):
            if size <= 0 or position >= before:
                return low + at
        return high

    def _entries(self, directory: str, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        while count:
            data = self._files.read(directory, offset, min(count, _ENTRIES_AT_ONCE))
            yield from ENTRY.iter_unpack(data)
            offset += len(data) // ENTRY_BYTES
            count -= len(data) // ENTRY_BYTES

    def _valid_end(self, directory: str, starts: list[int]) -> int:
        """Return the offset after the last entry that looks like one, as Java finds it."""
        count = self._files.entries_per_file
        for start in starts[-_SCANNED_FILES:]:
            for at, (position, size, _) in enumerate(self._entries(directory, start, count)):
                if position < 0 or size <= 0:
                    return start + at
        return starts[-1] + count
