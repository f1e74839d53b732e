"""Comparison of records with their queue entries, for the scrub thread."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from rocketpost.model.names import SCHEDULE_TOPIC
from rocketpost.store.apply import NOT_IN_QUEUE
from rocketpost.store.deleted_topics import DeletedTopics
from rocketpost.store.files import FileSystem
from rocketpost.store.integrity.record_evidence import (
    RECORD_BYTES_MIN,
    FoundRecord,
    entry_code,
    read_record,
    stated_place,
)
from rocketpost.store.log.segmented_log import SegmentedLog
from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.store.queue.files import ENTRY, ENTRY_BYTES
from rocketpost.store.queue.table import QueueTable

logger = logging.getLogger(__name__)

BLOCK_COUNT: Final = 256
"""Number of queue entries read at once."""
BLOCKS_MAX: Final = 1024
OWNER_COUNT_MAX: Final = 64
_EXTENDED_CODE_MAX: Final = -(2**62)
"""Largest tags code that is an address in Java's extended queues."""


class EntryCheck:
    """Finds and mends damaged queue entries. Belongs to the scrub thread.

    Args:
        visible_end: Returns the position before which records are in their queues.
    """

    def __init__(
        self,
        files: FileSystem,
        *,
        segments: SegmentedLog,
        queues: QueueTable,
        deleted_topics: DeletedTopics,
        delays_ms: tuple[int, ...],
        visible_end: Callable[[], int],
    ) -> None:
        self._files = files
        self._segments = segments
        self._queues = queues
        self._deleted_topics = deleted_topics
        self._delays_ms = delays_ms
        self.visible_end = visible_end
        self._blocks: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
        self.mended_count = 0
        """Number of damaged queue entries that were mended."""

    def check_from_thread(self, found: FoundRecord, record: bytes) -> str | None:
        """Compare a sound record with its entry, and mend the entry if it is damaged.

        Returns:
            The reason if the record is damaged after all, because it states a wrong place; or None.
        """
        if found.sys_flag & NOT_IN_QUEUE or found.position >= self.visible_end():
            return None
        queue = self._queues.get((found.topic, found.queue_id))
        if queue is None or found.queue_offset < queue.first:
            return None  # a deleted topic, or one that was created again
        is_behind = found.queue_offset >= queue.end
        dead_before = self._deleted_topics.position(found.topic, found.queue_id)
        if queue.is_deleted or found.position < dead_before:
            return None
        if is_behind:
            if self._is_older(queue, found):
                return None
            return f"it states the queue offset {found.queue_offset}, which its queue does not have"
        entry = self._entry(queue, found.queue_offset)
        if entry is None:
            return None  # the entry is in memory
        code = entry_code(found, record, self._delays_ms)
        if entry[:2] == (found.position, found.size):
            is_coded = found.topic == SCHEDULE_TOPIC or entry[2] <= _EXTENDED_CODE_MAX
            if not is_coded and entry[2] != code:
                self._mend(queue, found, code)
        elif not self._leads_to_its_record(queue, found.queue_offset, entry):
            if not self._is_older(queue, found):
                self._mend(queue, found, code)
        elif entry[0] < found.position:
            return (
                f"it states the queue offset {found.queue_offset}, which belongs to another record"
            )
        return None

    def place_of_from_thread(self, position: int, head: bytes) -> tuple[str | None, int, int]:
        """Return the place of an unreadable record, from the entry that points to it, if any."""
        stated = stated_place(head, 0, position)
        if stated is None:
            return None, -1, -1
        queue_id, offset = stated
        owners = [
            queue
            for queue in self._queues
            if queue.queue_id == queue_id and queue.first <= offset < queue.end
        ]
        for queue in owners[:OWNER_COUNT_MAX]:
            entry = self._entry(queue, offset)
            if entry is not None and entry[0] == position:
                return queue.topic, queue_id, offset
        return None, -1, -1

    def _entry(self, queue: ConsumeQueue, offset: int) -> tuple[int, int, int] | None:
        start = offset - offset % BLOCK_COUNT
        key = (queue.topic, queue.queue_id, start)
        block = self._blocks.get(key)
        at = (offset - start) * ENTRY_BYTES
        if block is None or len(block) < at + ENTRY_BYTES:
            block = queue.read_from_thread(start, BLOCK_COUNT)
            self._blocks[key] = block
            if len(self._blocks) > BLOCKS_MAX:
                self._blocks.popitem(last=False)
        if len(block) < at + ENTRY_BYTES:
            return None
        position, size, code = ENTRY.unpack_from(block, at)
        return position, size, code

    def forget_entries(self) -> None:
        """Clear the cache of queue entries, before another segment is read."""
        self._blocks.clear()

    def _is_older(self, queue: ConsumeQueue, found: FoundRecord) -> bool:
        """Tell whether a record is older than all records of its queue.

        It then belonged to the queue before a Java broker deleted the topic. That leaves records in
        the log, and a topic that is created again counts from 0.
        """
        first = int(queue.first)
        entry = self._entry(queue, first)
        if entry is None:  # the entry is in memory
            return True
        return found.position < entry[0] and self._leads_to_its_record(queue, first, entry)

    def _leads_to_its_record(
        self, queue: ConsumeQueue, offset: int, entry: tuple[int, int, int]
    ) -> bool:
        position, size, _ = entry
        segment = self._segments.find(position)
        if segment is None or not RECORD_BYTES_MIN <= size <= segment.end - position:
            return False
        fd = self._files.open(segment.path)
        try:
            data = self._files.pread(fd, size, position - segment.start)
        finally:
            self._files.close(fd)
        found = read_record(data, 0, position)
        if found is None or not found.is_sound or found.size != size:
            return False
        return found.place == (queue.topic, queue.queue_id, offset)

    def _mend(self, queue: ConsumeQueue, found: FoundRecord, code: int) -> None:
        self._blocks.clear()
        if queue.mend_from_thread(found.queue_offset, found.position, found.size, code):
            self.mended_count += 1
            logger.error(
                "queue entry was damaged and is mended topic=%s queue=%s offset=%s position=%s",
                found.topic, found.queue_id, found.queue_offset, found.position,
            )  # fmt: skip
