"""Refusals of requests that would change the broker's own state.

The broker keeps some work as messages in its own topics (delay levels, timers, half messages, the
log of popping), and its progress as offsets of its own groups. Any client may read those topics.
Only the broker may take messages out of them, store messages in them, or move or delete those
offsets: otherwise transactions would be lost, and popped messages would never be redelivered.
Every handler that changes offsets, pops, or deletes checks here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rocketpost.codec.faults import InvalidParameter, NoPermission
from rocketpost.codec.record import Record
from rocketpost.model import names, properties

_WAITING: Final = frozenset({names.SCHEDULE_TOPIC, names.TIMER_TOPIC, names.HALF_TOPIC})


def check_offset(topic: str, group: str) -> None:
    """Check that a client may move the offsets of a group in a topic.

    Raises:
        NoPermission: The offsets record the broker's own progress.
    """
    if names.is_own_offset(topic, group):
        raise NoPermission(f"the offsets of {group} in {topic} belong to the broker")


def check_pop(topic: str, group: str) -> None:
    """Check that a client may pop messages of a topic, or acknowledge them.

    Raises:
        NoPermission: The messages are the broker's own work, or the group is its own.
    """
    if names.is_work_topic(topic):
        raise NoPermission(f"the messages of {topic} belong to the broker; pull to read them")
    check_offset(topic, group)


def check_deletion(group: str) -> None:
    """Check that a client may delete a group.

    Raises:
        InvalidParameter: The system needs the group.
    """
    if names.is_system_group(group):
        raise InvalidParameter(f"the group {group!r} belongs to the system; it cannot be deleted")


def check_send_back(topic: str) -> None:
    """Check that a message of a topic may be stored again for a group that could not consume it.

    Raises:
        NoPermission: No consumer received it: it waits for its time or for its transaction.
    """
    if names.is_work_topic(topic):
        raise NoPermission(f"a message of {topic} cannot be sent back: no group consumes it")


def message_topic(record_at: Callable[[int], Record | None], position: int) -> str | None:
    """Return the topic whose users may touch a stored message; None if there is no message.

    A message that waits for its time or for its transaction belongs to the topic that it is for.
    """
    record = record_at(position)
    if record is None:
        return None
    if record.topic not in _WAITING:  # a property of any other message may name any topic
        return record.topic
    return record.properties.get(properties.REAL_TOPIC, record.topic)
