"""Forced deletions of held messages are reported; offsets are saved before segments are deleted."""

from __future__ import annotations

import logging

import pytest

from rocketpost.broker.attributes import RETENTION_HOLD
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.group.retention_holds import RetentionHolds
from rocketpost.broker.group.table import GroupTable
from rocketpost.model.group import GroupConfig
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.server.features.retention_holds import RetentionHoldsFeature
from rocketpost.testing.clock import FakeClock

RECORD = 100


class FakeQueue:
    """One queue whose records lie ``RECORD`` bytes apart."""

    def __init__(self, first: int) -> None:
        self.queue_id = 0
        self.first = QueueOffset(first)
        self.end = QueueOffset(10)

    def position_from(self, offset: int) -> Position | None:
        at = max(offset, self.first)
        return Position(at * RECORD) if at < self.end else None

    def first_at(self, position: int) -> QueueOffset:
        return QueueOffset(min(max(self.first, -(-position // RECORD)), self.end))


class World:
    """The topic T with one queue."""

    def __init__(self, first: int) -> None:
        clock = FakeClock(1_000_000)
        self.groups = GroupTable(clock=clock)
        self.offsets = OffsetTable(clock=clock)
        self.queue = FakeQueue(first)
        self.holds = RetentionHolds(groups=self.groups, offsets=self.offsets, queues=self)

    def of_topic(self, topic: str) -> list[FakeQueue]:
        return [self.queue] if topic == "T" else []

    def hold(self, offset: int) -> None:
        attributes = {f"+{RETENTION_HOLD}": "true"}
        self.groups.update(GroupConfig(group_name="archive", attributes=attributes))
        self.offsets.commit("T", "archive", 0, offset)


async def test_forced_deletions_are_reported_and_offsets_are_saved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(first=0)
    saves = []

    async def save() -> None:
        saves.append(world.offsets.query("T", "archive", 0))

    feature = RetentionHoldsFeature(holds=world.holds, save=save)
    await feature.move_messages_before(500)
    assert (saves, feature.runtime_values()) == ([], {})
    world.hold(5)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        await feature.move_messages_before(500)
        assert (saves, caplog.messages) == ([5], [])
        await feature.move_messages_before(800)
    assert caplog.messages == [
        "held messages are forced out: group=archive topic=T queue=0 first=5 last=7"
    ]


def test_tools_see_who_holds_and_what_was_lost() -> None:
    world = World(first=6)
    world.hold(5)

    async def save() -> None:
        raise AssertionError("nothing is deleted")

    assert RetentionHoldsFeature(holds=world.holds, save=save).runtime_values() == {
        "retentionHolds": "archive",
        "retentionHeldPosition": "600",
        "retentionLostMessages": "1",
        "retentionLost": "archive: T queue 0 offsets 5 to 5",
    }
