"""What was delivered before a crash, of which the timer's files do not know.

After a crash the files are as they were last saved; what came out of the wheel since is in the
commit log all the same. A copy of ours names the message it was made from; one of RocketMQ's is
known by its contents. Without a key index nothing is found, and what came since the last save comes
again.
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
        crash_end: Where the commit log ended when the broker started.
        crash_ms: When the last message before that was stored; -1 if there was no crash.
    """

    def __init__(self, *, store: Records, crash_end: int, crash_ms: int) -> None:
        self._store = store
        self._crash_end = crash_end
        self._crash_ms = crash_ms
        self._claimed: set[int] = set()
        self.found = 0
        """Messages that turned out to have been delivered."""

    def is_needed(self, due_ms: int) -> bool:
        """Tell whether what is due at a time may have been delivered before the crash."""
        return due_ms <= self._crash_ms

    def exists(self, record: Record, properties: dict[str, str], topic: str) -> bool:
        """Tell whether a message left the wheel before the crash, delivered or put off."""
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
    """Tell whether RocketMQ, which leaves no mark, made a copy of a message."""
    if copy.prepared_position or copy.born_ms != record.born_ms:
        return False
    if copy.body_crc != record.body_crc or copy.reconsume_times != record.reconsume_times:
        return False
    added = {names.TIMER_ENQUEUE_MS, names.TIMER_DEQUEUE_MS, names.TIMER_ROLL_TIMES}
    theirs = copy.properties
    if names.TIMER_DEQUEUE_MS not in theirs:
        return False
    return all(theirs.get(name) == value for name, value in properties.items() if name not in added)
