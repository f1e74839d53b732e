"""Refusals of requests that would change what the broker keeps for its own work.

Some work is kept as messages in topics of the broker (delay levels, timers, halves of transactions,
the log of popping), and its progress as offsets of groups of the broker. Anybody may read
those topics. Nobody but the broker may take messages out of them, store messages in them, or move
or delete those offsets: transactions would be lost, and popped messages would never come back.
Every handler that changes offsets, pops, or deletes asks here.
"""

from __future__ import annotations

from rocketpost.codec.faults import InvalidParameter, NoPermission
from rocketpost.model import names


def check_offset(topic: str, group: str) -> None:
    """Check that a client may move the offsets of a group in a topic.

    Raises:
        NoPermission: They say how far the broker's own work is done.
    """
    if names.is_own_offset(topic, group):
        raise NoPermission(f"the offsets of {group} in {topic} are the broker's own")


def check_pop(topic: str, group: str) -> None:
    """Check that a client may take messages of a topic, or answer for those it took.

    Raises:
        NoPermission: The messages are the broker's own work, or the group is its own.
    """
    if names.is_work_topic(topic):
        raise NoPermission(f"the messages of {topic} are the broker's own work; pull to look at it")
    check_offset(topic, group)


def check_deletion(group: str) -> None:
    """Check that a client may delete a group.

    Raises:
        InvalidParameter: The system needs it.
    """
    if names.is_system_group(group):
        raise InvalidParameter(f"the group {group!r} belongs to the system")


def check_send_back(topic: str) -> None:
    """Check that a message of a topic may be stored again for a group that could not consume it.

    Raises:
        NoPermission: No consumer was given it: it waits for its time or for its transaction.
    """
    if names.is_work_topic(topic):
        raise NoPermission(f"a message of {topic} cannot be sent back: no group consumes it")
