"""Messages that were delivered before a crash, but after the last save of the timer's files.

After a crash the files are as they were last saved, but later deliveries are in the commit log. A
copy by Rocketpost names its original; a copy by RocketMQ is recognised by its contents. Without a
key index no copy is found, and messages delivered since the last save are delivered again.
"""

from __future__ import annotations

from typing import Final

from rocketpost.broker.delivery import Records
from rocketpost.codec.record import Record
from rocketpost.model import properties as names
from rocketpost.model.names import TIMER_TOPIC

_COPIES_MAX: Final = 64
_TIME_MAX: Final = 2**63 - 1


class Copies:
    """Finds copies that were made before a crash. Owned by the event loop.

    Args:
        crash_end: End of the commit log when the broker started.
        crash_ms: Store time of the last message before that; -1 if there was no crash.
        read_ms: The slot at which the wheel continues.
    """

    def __init__(self, *, store: Records, crash_end: int, crash_ms: int, read_ms: int) -> None:
        self._store = store
        self._crash_end = crash_end
        self._crash_ms = crash_ms
        # A clock that was set back leaves the wheel ahead: late messages wait in its first slot.
        self._suspect_until_ms = max(crash_ms, read_ms)
        queue = store.queue(TIMER_TOPIC, 0)
        self._crash_offset = int(queue.end) if queue is not None else 0
        self._claimed: set[int] = set()
        self.found = 0
        """Number of messages that had already been delivered."""

    def is_needed(self, due_ms: int) -> bool:
        """Tell whether messages due at a time may have been delivered before the crash."""
        return due_ms <= self._crash_ms

    def may_wait(self, *, read_ms: int, queue_offset: int) -> bool:
        """Tell whether messages that were delivered before the crash may still wait."""
        return self._crash_ms >= 0 and (
            read_ms <= self._suspect_until_ms or queue_offset < self._crash_offset
        )

    def exists(self, record: Record, properties: dict[str, str], topic: str) -> bool:
        """Tell whether a message left the wheel before the crash, delivered or postponed."""
        if self._crash_ms < 0 or record.position >= self._crash_end:
            return False
        found = self._has_copy(record, properties, topic) or self._has_copy(
            record, properties, TIMER_TOPIC
        )
        self.found += found
        return found

    def _has_copy(self, record: Record, properties: dict[str, str], topic: str) -> bool:
        """Tell whether a message has a copy in a topic."""
        key = properties.get(names.UNIQUE_KEY, "")
        if not key:
            return False
        positions = self._store.find(
            topic, key, count_max=_COPIES_MAX, begin_ms=0, end_ms=_TIME_MAX
        )
        for position in positions:
            copy = self._store.record_at(position)
            if copy is None or copy.topic != topic or position <= record.position:
                continue
            if copy.prepared_position == record.position or (
                position not in self._claimed and _is_java_copy(copy, record, properties)
            ):
                self._claimed.add(position)
                return True
        return False


def _is_java_copy(copy: Record, record: Record, properties: dict[str, str]) -> bool:
    """Tell whether a record is RocketMQ's copy of a message, which carries no mark."""
    if copy.prepared_position or copy.born_ms != record.born_ms:
        return False
    if copy.body_crc != record.body_crc or copy.reconsume_times != record.reconsume_times:
        return False
    added = {names.TIMER_ENQUEUE_MS, names.TIMER_DEQUEUE_MS, names.TIMER_ROLL_TIMES}
    theirs = copy.properties
    if names.TIMER_DEQUEUE_MS not in theirs:
        return False
    return all(theirs.get(name) == value for name, value in properties.items() if name not in added)
