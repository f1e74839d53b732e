"""Delayed messages: their waiting queues, due times and delivery.

A message with a DELAY level waits in ``SCHEDULE_TOPIC_XXXX``, in the queue of its level. Its
REAL_TOPIC and REAL_QID name its destination. The tags code of its queue entry is its due time. All
messages of a level wait equally long, so each queue is in order of delivery, and one offset records
its progress.

A delivered message is a copy in its destination with the properties of the original, including
those three, as RocketMQ stores it. ADR 0013 explains why a crash delivers few of them twice, and
how a message whose topic is gone is handled.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

import msgspec

from rocketpost.broker.delay.progress import DelayProgress
from rocketpost.broker.delivery import Groups, Store, Topics, Wait
from rocketpost.codec.properties import (
    PROPERTIES_BYTES_MAX,
    decode_properties,
    encode_properties,
)
from rocketpost.codec.record import Record
from rocketpost.errors import LocalProtocolError
from rocketpost.model import properties as names
from rocketpost.model.clock import Clock
from rocketpost.model.ids import Position
from rocketpost.model.names import HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC
from rocketpost.store.draft import Draft
from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.store.queue.files import ENTRY, ENTRY_BYTES

logger = logging.getLogger(__name__)

BATCH_COUNT_MAX: Final = 256
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
MISSING_MS_MAX: Final = 60_000
"""Time that a level waits for a topic that does not exist."""
MISSING_RETRY_MS: Final = 1000
_COPIES_MAX: Final = 64
_LEVEL_DIGITS_MAX: Final = 9
_TIME_MAX: Final = 2**63 - 1


class DueBatch(NamedTuple):
    """Messages to deliver now; ``next_offset`` is the level's progress once they are stored."""

    drafts: list[Draft]
    offsets: list[int]
    """Queue offset of each message in its level."""
    next_offset: int


def level_of(text: str | None) -> int | None:
    """Return the level that a DELAY property asks for, 0 for none; None if it is not a number."""
    if not text:
        return 0
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > _LEVEL_DIGITS_MAX:
        return None
    return max(0, int(text))


def delayed_draft(draft: Draft, level: int, *, level_max: int) -> Draft:
    """Return ``draft`` as stored in the queue of its level; the store sets its tags code.

    Raises:
        LocalProtocolError: There is no room for the two properties that name its destination.
    """
    properties = decode_properties(draft.properties)
    for name in (names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS):
        properties.pop(name, None)
    level = min(level, level_max)
    properties[names.DELAY_LEVEL] = str(level)
    properties[names.REAL_TOPIC] = draft.topic
    properties[names.REAL_QUEUE_ID] = str(draft.queue_id)
    encoded = encode_properties(properties)
    if len(encoded) > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(f"the message properties take {len(encoded)} bytes")
    return msgspec.structs.replace(
        draft, topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=encoded
    )


class _Step(NamedTuple):
    """Entries before ``end``, stored while the clock was ahead; they wait until ``until_ms``."""

    end: int
    until_ms: int


class DelayService:
    """Decides which messages each level delivers. Owned by the event loop; waits for nothing.

    Args:
        delays_ms: The delays of level 1, 2 and so on.
        store_host: The address of this broker, for the ids of delivered messages.
    """

    def __init__(
        self,
        *,
        store: Store,
        topics: Topics,
        groups: Groups,
        clock: Clock,
        progress: DelayProgress,
        delays_ms: tuple[int, ...],
        store_host: bytes,
    ) -> None:
        assert delays_ms
        self._store = store
        self._topics = topics
        self._groups = groups
        self._clock = clock
        self._progress = progress
        self._delays_ms = delays_ms
        self._store_host = store_host
        self._steps: dict[int, _Step] = {}
        self._missing_since: dict[str, int] = {}
        self._claimed: set[int] = set()

    def next(self, level: int) -> DueBatch | Wait:
        """Return the messages that a level must deliver now, or how long it has none."""
        queue = self._store.queue(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return Wait(None)
        start = offset = self._start(level, queue)
        # A message must not be stored with a store time before its due time.
        now_ms = min(self._clock.now_ms(), self._store.stamp_ms())
        drafts: list[Draft] = []
        offsets: list[int] = []
        size_sum = 0
        wait = Wait(None)
        for entry in ENTRY.iter_unpack(_entries(queue, offset)):
            found = self._judge(level, queue, offset, entry, now_ms=now_ms)
            if isinstance(found, Wait):
                wait = found
                break
            if found is not None:
                size_sum += entry[1]
                if drafts and size_sum > BATCH_BYTES_MAX:
                    break
                drafts.append(found)
                offsets.append(offset)
            offset += 1
        return DueBatch(drafts, offsets, offset) if offset > start else wait

    def skip_delivered(self, level: int) -> bool:
        """Skip one message whose copy is already in the log; return False once there is none.

        After a crash the saved progress is behind. Levels deliver in order, so the messages
        delivered since then are the first remaining ones. Each copy counts for one message.
        """
        queue = self._store.queue(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return False
        offset = self._start(level, queue)
        entry = queue.entry(offset) if offset < queue.end else None
        if entry is None or entry[2] > self._clock.now_ms():
            return False
        record = self._store.record_of(queue, offset, entry[0], entry[1])
        after = self._progress.delivered_before(level)
        copy = self._copy_of(record, after) if record is not None else None
        if copy is None:
            return False
        self._claimed.add(copy.position)
        end = Position(copy.position + copy.size)
        self._progress.advance(level, offset + 1, position=end)
        return True

    def state(self, level: int) -> tuple[int, int]:
        """Return the delivered offset of a level, and the end of its queue."""
        queue = self._store.queue(SCHEDULE_TOPIC, level - 1)
        return self._progress.next_offset(level), int(queue.end) if queue is not None else 0

    def _judge(
        self,
        level: int,
        queue: ConsumeQueue,
        offset: int,
        entry: tuple[int, int, int],
        *,
        now_ms: int,
    ) -> Draft | Wait | None:
        """Return the message to deliver for an entry, its remaining wait, or None to skip it."""
        position, size, code = entry
        due_ms = self._due_ms(level, offset, code, queue.end, now_ms)
        if due_ms > now_ms:
            return Wait(due_ms - now_ms)
        record = self._store.record_of(queue, offset, position, size)
        if record is None:
            logger.warning("delayed message is gone or damaged: level=%s offset=%s", level, offset)
            return None
        if code < record.store_ms:  # the code of a tag, not a time
            due_ms = record.store_ms + self._delay_ms(level)
            if due_ms > now_ms:
                return Wait(due_ms - now_ms)
        draft = self._delivered(record)
        if draft is None or not self._is_missing(draft.topic, now_ms):
            return draft
        return None if self._gave_up(draft, now_ms) else Wait(MISSING_RETRY_MS)

    def _start(self, level: int, queue: ConsumeQueue) -> int:
        """Return the progress of a level, corrected to the bounds of its queue."""
        offset = self._progress.next_offset(level)
        corrected = min(max(offset, int(queue.first)), int(queue.end))
        if corrected != offset:
            logger.warning(
                "delay progress corrected: level=%s saved=%s now=%s", level, offset, corrected
            )
            self._progress.advance(level, corrected, position=Position(0))
        return corrected

    def _due_ms(self, level: int, offset: int, code: int, end: int, now_ms: int) -> int:
        """Return when an entry is due: at most the delay of its level after it is first seen."""
        latest_ms = now_ms + self._delay_ms(level)
        step = self._steps.get(level)
        if step is not None and offset < step.end and step.until_ms <= latest_ms:
            return min(code, step.until_ms)
        if code <= latest_ms:
            return code
        logger.warning(
            "due time is too far ahead, using one delay from now: level=%s ahead_ms=%s",
            level, code - latest_ms,
        )  # fmt: skip
        self._steps[level] = _Step(end, latest_ms)
        return latest_ms

    def _delay_ms(self, level: int) -> int:
        return self._delays_ms[min(level, len(self._delays_ms)) - 1]

    def _delivered(self, record: Record) -> Draft | None:
        """Return the copy to store when a message is due; None if it has no destination."""
        properties = record.properties
        topic = properties.get(names.REAL_TOPIC)
        queue_id = level_of(properties.get(names.REAL_QUEUE_ID))
        if topic is None or queue_id is None or topic in (HALF_TOPIC, SCHEDULE_TOPIC):
            logger.error("delayed message without destination: position=%s", record.position)
            return None
        config = self._topics.find(topic)
        if config is not None and queue_id >= max(config.write_queue_nums, config.read_queue_nums):
            queue_id %= max(1, config.write_queue_nums)  # the topic has fewer queues now
        return Draft.copy_of(record, topic=topic, queue_id=queue_id, store_host=self._store_host)

    def _is_missing(self, topic: str, now_ms: int) -> bool:
        if self._topics.find(topic) is None:
            group = topic.removeprefix(RETRY_PREFIX)
            if not topic.startswith(RETRY_PREFIX) or self._groups.find(group) is None:
                self._missing_since.setdefault(topic, now_ms)
                return True
            self._topics.create_internal(topic, queue_nums=1)
        self._missing_since.pop(topic, None)
        return False

    def _gave_up(self, draft: Draft, now_ms: int) -> bool:
        since_ms = self._missing_since[draft.topic]
        if since_ms > now_ms:  # the clock was set back
            since_ms = self._missing_since[draft.topic] = now_ms
        if now_ms - since_ms < MISSING_MS_MAX:
            if now_ms == since_ms:
                logger.warning("delayed message waits for a missing topic: topic=%s", draft.topic)
            return False
        logger.error(
            "delayed message discarded, its topic was deleted: topic=%s keys=%s",
            draft.topic, draft.keys[:1],
        )  # fmt: skip
        return True

    def _copy_of(self, record: Record, after: int) -> Record | None:
        """Return the delivered copy of a message, unless it is counted for another message.

        The saved progress already counts the copies before ``after``.
        """
        properties = record.properties
        topic = properties.get(names.REAL_TOPIC, "")
        key = properties.get(names.UNIQUE_KEY, "")
        if not topic or not key:
            return None
        positions = self._store.find(
            topic, key, count_max=_COPIES_MAX, begin_ms=0, end_ms=_TIME_MAX
        )
        for position in reversed(positions):  # oldest first
            copy = self._store.record_at(position)
            if (
                copy is not None
                and position > record.position
                and position >= after
                and position not in self._claimed
                and copy.topic == topic
                and copy.reconsume_times == record.reconsume_times
                and copy.born_ms == record.born_ms
                and copy.body_crc == record.body_crc
                and copy.properties == properties
            ):
                return copy
        return None


def _entries(queue: ConsumeQueue, offset: int) -> bytes:
    count = min(BATCH_COUNT_MAX, int(queue.end) - offset)
    data = queue.read(offset, count) if count > 0 else b""
    return data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]
