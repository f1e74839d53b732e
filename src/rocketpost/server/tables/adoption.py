"""Restores topics that were created just before a crash and are missing in the saved table.

Their messages were stored and acknowledged, so the topics must exist. A topic is restored if it has
queues, or if a message waits to be delivered or committed to it. A topic that was deleted while
messages waited for it is not restored: the table was saved after the deletion, and only messages
stored later than the table count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rocketpost.broker.topic import TopicTable
from rocketpost.model import properties as names
from rocketpost.model.names import HALF_TOPIC, SCHEDULE_TOPIC, is_retry_or_dlq
from rocketpost.store.message_store import MessageStore
from rocketpost.store.queue.consume_queue import ConsumeQueue

UNSAVED_MS_MAX: Final = 60_000
"""The longest time that saving the table may take; a save begins at once."""
_QUEUE_DIGITS_MAX: Final = 6


def adopt_topics(
    store: MessageStore, topics: TopicTable, *, queue_nums: int, saved_ms: int, is_old: bool = False
) -> None:
    """Restore the topics of stored messages.

    Args:
        store: The message store. The timer restores the topics of timed messages.
        topics: The table as it was saved.
        queue_nums: The least number of queues of a topic: clients may know more queues than those
            that got a message.
        saved_ms: Time of the last change in the saved table; 0 if the table is new or lost.
        is_old: Whether the table is lost, or may lack changes that were saved.
    """
    counts: dict[str, int] = {}
    for queue in store.queues:
        known = topics.find(queue.topic)
        is_more = known is not None and queue.queue_id >= known.write_queue_nums
        if is_more and queue.store_time(int(queue.end) - 1) < saved_ms:
            continue  # the topic has fewer queues now
        counts[queue.topic] = max(counts.get(queue.topic, 0), queue.queue_id + 1)
    since_ms = saved_ms if is_old else max(saved_ms, store.store_ms - UNSAVED_MS_MAX)
    for waiting in (HALF_TOPIC, SCHEDULE_TOPIC):
        for queue in store.queues_of(waiting):
            for topic, queue_id in _destinations(store, queue, since_ms):
                counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    for topic, count in counts.items():
        topics.adopt(topic, queue_nums=max(count, 1 if is_retry_or_dlq(topic) else queue_nums))


def _destinations(
    store: MessageStore, queue: ConsumeQueue, since_ms: int
) -> Iterator[tuple[str, int]]:
    """Yield the destinations of the messages in a queue since a time, newest first."""
    for offset in range(int(queue.end) - 1, int(queue.first) - 1, -1):
        entry = queue.entry(offset)
        record = store.record_of(queue, offset, *entry[:2]) if entry is not None else None
        if record is None:
            continue
        if record.store_ms < since_ms:
            return
        topic = record.properties.get(names.REAL_TOPIC)
        text = record.properties.get(names.REAL_QUEUE_ID, "")
        if topic and text.isascii() and text.isdecimal() and len(text) <= _QUEUE_DIGITS_MAX:
            yield topic, int(text)
