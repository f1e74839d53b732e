"""Holds: groups that must have consumed a message before it may expire.

A group with the attribute ``retention.hold=true`` holds the topics in which it has offsets. In such
a topic, a queue without an offset is held entirely. A full disk may still force messages to be
deleted; then this module can name exactly those messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from rocketpost.broker.attributes import RETENTION_HOLD
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.group.table import GroupTable
from rocketpost.model.ids import Position, QueueOffset

_TRUE: Final = "true"


class Queue(Protocol):
    """The part of a consume queue that this module uses."""

    queue_id: int
    first: QueueOffset
    end: QueueOffset

    def position_from(self, offset: int) -> Position | None:
        """Return the position of the first message at an offset or later, None if there is none."""
        ...

    def first_at(self, position: int) -> QueueOffset:
        """Return the first offset whose message is at a position or later."""
        ...


class Queues(Protocol):
    """The queues of the store."""

    def of_topic(self, topic: str) -> Sequence[Queue]:
        """Return the queues of one topic, by id."""
        ...


class LostMessages(NamedTuple):
    """Messages that a group held and lost unread: from ``first`` to before ``end``."""

    group: str
    topic: str
    queue_id: int
    first: int
    end: int

    def __str__(self) -> str:
        what = f"{self.topic} queue {self.queue_id} offsets {self.first} to {self.end - 1}"
        return f"{self.group}: {what}"


class RetentionHolds:
    """Messages that holding groups still need. Owned by the event loop."""

    def __init__(self, *, groups: GroupTable, offsets: OffsetTable, queues: Queues) -> None:
        self._groups = groups
        self._offsets = offsets
        self._queues = queues

    @property
    def groups(self) -> list[str]:
        """The groups with a hold."""
        return [
            name
            for name, config in self._groups.configs.items()
            if config.attributes.get(RETENTION_HOLD) == _TRUE
        ]

    def oldest_needed_position(self) -> Position | None:
        """Return the position of the oldest message that is still needed; None if none is."""
        found = (queue.position_from(offset) for _, _, queue, offset in self._unread_queues())
        return min((position for position in found if position is not None), default=None)

    def losses(self, position: int | None = None) -> list[LostMessages]:
        """Return the held messages that are gone, or would be if the log began at ``position``."""
        losses = []
        for group, topic, queue, offset in self._unread_queues():
            first = queue.first if position is None else queue.first_at(position)
            if first > offset:
                losses.append(LostMessages(group, topic, queue.queue_id, offset, first))
        return losses

    def _unread_queues(self) -> Iterator[tuple[str, str, Queue, int]]:
        """Yield group, topic, queue and the next offset that the group needs."""
        for group in self.groups:
            for topic in self._offsets.topics_of(group):
                row = self._offsets.row(topic, group)
                for queue in self._queues.of_topic(topic):
                    yield group, topic, queue, row.get(queue.queue_id, queue.first)
