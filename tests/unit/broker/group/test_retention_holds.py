from __future__ import annotations

import pytest

from rocketpost.broker.attributes import RETENTION_HOLD
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.group.retention_holds import LostMessages, RetentionHolds
from rocketpost.broker.group.table import GroupTable
from rocketpost.codec.faults import ServerError
from rocketpost.model.group import GroupConfig
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.testing.clock import FakeClock

RECORD = 100


class FakeQueue:
    """A queue whose records lie ``RECORD`` bytes apart, from ``base`` on."""

    def __init__(self, queue_id: int, first: int, end: int, base: int = 0) -> None:
        self.queue_id = queue_id
        self.first = QueueOffset(first)
        self.end = QueueOffset(end)
        self._base = base

    def position_from(self, offset: int) -> Position | None:
        at = max(offset, self.first)
        return Position(self._base + at * RECORD) if at < self.end else None

    def first_at(self, position: int) -> QueueOffset:
        at = -(-(position - self._base) // RECORD)
        return QueueOffset(min(max(self.first, at), self.end))


class World:
    def __init__(self, **queues: list[FakeQueue]) -> None:
        clock = FakeClock(1_000_000)
        self.groups = GroupTable(clock=clock)
        self.offsets = OffsetTable(clock=clock)
        self.queues = queues
        self.holds = RetentionHolds(groups=self.groups, offsets=self.offsets, queues=self)

    def of_topic(self, topic: str) -> list[FakeQueue]:
        return self.queues.get(topic, [])

    def hold(self, group: str, value: str = "+true") -> None:
        attributes = {value[0] + RETENTION_HOLD: value[1:]}
        self.groups.update(GroupConfig(group_name=group, attributes=attributes))


def test_without_holds_nothing_is_held() -> None:
    world = World(T=[FakeQueue(0, 0, 10)])
    world.offsets.commit("T", "g", 0, 3)
    assert world.holds.oldest_needed_position() is None
    assert world.holds.losses() == []
    assert world.holds.groups == []


def test_the_oldest_message_that_a_holding_group_needs_bounds_retention() -> None:
    world = World(T=[FakeQueue(0, 0, 10), FakeQueue(1, 0, 10, base=50)], U=[FakeQueue(0, 0, 9)])
    world.hold("archive")
    assert world.holds.oldest_needed_position() is None  # it has no offset anywhere
    world.offsets.commit("T", "archive", 0, 7)
    assert (
        world.holds.oldest_needed_position() == 50
    )  # a queue of the topic without an offset is held whole
    world.offsets.commit("T", "archive", 1, 8)
    assert world.holds.oldest_needed_position() == 700
    world.offsets.commit("T", "archive", 0, 10)
    assert world.holds.oldest_needed_position() == 850
    world.offsets.commit("T", "archive", 1, 10)
    assert world.holds.oldest_needed_position() is None
    world.hold("other")
    world.offsets.commit("U", "other", 0, 2)
    assert world.holds.oldest_needed_position() == 200
    world.hold("other", "-")
    assert world.holds.oldest_needed_position() is None


def test_losses_are_reported_exactly() -> None:
    world = World(T=[FakeQueue(0, 4, 10), FakeQueue(1, 4, 10)])
    world.hold("archive")
    world.offsets.commit("T", "archive", 0, 2)
    world.offsets.commit("T", "archive", 1, 9)
    assert world.holds.losses() == [LostMessages("archive", "T", 0, 2, 4)]
    assert world.holds.losses(650) == [LostMessages("archive", "T", 0, 2, 7)]
    assert str(world.holds.losses()[0]) == "archive: T queue 0 offsets 2 to 3"


def test_a_hold_is_true_or_false() -> None:
    world = World()
    world.hold("g", "+false")
    assert world.holds.groups == []
    with pytest.raises(ServerError, match=r"retention\.hold"):
        world.hold("g", "+yes")
