"""Offsets of a group after a reset, by time or by offset, for each queue.

Either the broker sets the offsets and the next pull of a queue adopts them, whether or not a member
is online; or it notifies the members, as brokers before 5 do, and they set their offsets
themselves. Without force, a group is only moved back, never ahead: unconsumed messages are not
skipped.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from rocketpost.broker.group.offsets import NO_OFFSET, OffsetTable
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.own_state import check_offset
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.faults import GroupNotExist, InvalidParameter, ServerError
from rocketpost.codec.headers.offset import ResetOffset
from rocketpost.model.ids import QueueOffset
from rocketpost.model.topic import TopicConfig


class Queue(Protocol):
    """The part of a consume queue that a reset uses."""

    @property
    def first(self) -> QueueOffset:
        """Offset of the oldest readable message."""
        ...

    @property
    def end(self) -> QueueOffset:
        """Offset one past the newest readable message."""
        ...

    def offset_at(self, timestamp_ms: int, *, upper: bool) -> QueueOffset:
        """Return the offset at a time."""
        ...


class Queues(Protocol):
    """The part of the store that a reset uses."""

    def queue(self, topic: str, queue_id: int) -> Queue | None:
        """Return a queue; None if it was never written."""
        ...


class Plan(NamedTuple):
    """Offsets by queue id: all offsets after the reset, and those of them that change."""

    stand: dict[int, int]
    moved: dict[int, int]


class ResetService:
    """Finds the offsets of a reset; changes nothing. Owned by the event loop."""

    def __init__(
        self, *, topics: TopicTable, groups: GroupTable, offsets: OffsetTable, queues: Queues
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._queues = queues

    def plan(self, request: ResetOffset, *, by_members: bool) -> Plan:
        """Return the group's new offsets; ``by_members`` if its members will set them.

        Raises:
            Fault: The topic, group, queue or offset does not exist, or members would have to
                set an offset that the group never had.
        """
        config = self._check(request)
        count = config.write_queue_nums if by_members else config.read_queue_nums
        stand, moved = {}, {}
        for queue_id in [request.queue_id] if request.queue_id >= 0 else range(count):
            stored = self._offsets.query(request.topic, request.group, queue_id)
            if by_members and stored == NO_OFFSET:
                if self._is_empty(request.topic, queue_id):
                    continue  # there is nothing to consume or commit there
                raise ServerError(
                    f"the group {request.group} has no offset in queue {queue_id} of "
                    f"{request.topic}; let it consume first, or set useServerSideResetOffset=true"
                )
            target = self._target(request, queue_id)
            if request.is_force or stored == NO_OFFSET or target < stored:
                moved[queue_id] = target
            stand[queue_id] = moved.get(queue_id, stored)
        return Plan(stand, moved)

    def _check(self, request: ResetOffset) -> TopicConfig:
        config = self._topics.require(request.topic)
        if self._groups.find(request.group) is None:
            raise GroupNotExist(f"the group {request.group!r} does not exist on this broker")
        check_offset(request.topic, request.group)
        if request.queue_id >= config.read_queue_nums:
            raise InvalidParameter(
                f"queueId={request.queue_id}: {request.topic} has {config.read_queue_nums} queues"
            )
        return config

    def _is_empty(self, topic: str, queue_id: int) -> bool:
        queue = self._queues.queue(topic, queue_id)
        return queue is None or queue.first == queue.end

    def _target(self, request: ResetOffset, queue_id: int) -> int:
        queue = self._queues.queue(request.topic, queue_id)
        first, end = (0, 0) if queue is None else (queue.first, queue.end)
        offset = request.offset
        if request.queue_id >= 0 and offset is not None and offset != NO_OFFSET:
            if not first <= offset <= end + 1:
                raise ServerError(
                    f"offset {offset} is outside queue {queue_id} of {request.topic}, "
                    f"which has {first} to {end}"
                )
            return offset
        if queue is None or request.timestamp < 0:
            return end
        return queue.offset_at(request.timestamp, upper=False)
