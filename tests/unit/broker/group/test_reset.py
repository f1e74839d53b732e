from __future__ import annotations

import pytest

from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.group.reset import Plan, ResetService
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.faults import ServerError
from rocketpost.codec.headers.offset import ResetOffset
from rocketpost.model.ids import QueueOffset
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.clock import FakeClock


class Tenfold:
    """A queue of offsets 10 to 20 whose message n was stored at 10 n ms."""

    first, end = QueueOffset(10), QueueOffset(20)

    def offset_at(self, timestamp_ms: int, *, upper: bool) -> QueueOffset:
        return QueueOffset(min(max(-(-timestamp_ms // 10), self.first), self.end))


class OnlyFirst:
    """Of every topic the first queue alone was ever written."""

    def queue(self, topic: str, queue_id: int) -> Tenfold | None:
        return Tenfold() if queue_id == 0 else None


@pytest.fixture
def offsets(clock: FakeClock) -> OffsetTable:
    return OffsetTable(clock=clock)


@pytest.fixture
def service(clock: FakeClock, offsets: OffsetTable) -> ResetService:
    topics = TopicTable(clock=clock, cluster_name="C", broker_name="b")
    topics.update(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=1))
    groups = GroupTable(clock=clock)
    groups.find_or_create("G")
    return ResetService(topics=topics, groups=groups, offsets=offsets, queues=OnlyFirst())


def wish(timestamp: int = -1, **fields: object) -> ResetOffset:
    return ResetOffset(topic="T", group="G", timestamp=timestamp, **fields)  # type: ignore[arg-type]


def test_a_broker_resets_read_queues_and_members_reset_write_queues(
    service: ResetService, offsets: OffsetTable
) -> None:
    assert service.plan(wish(141), by_members=False).stand == {0: 15, 1: 0}
    with pytest.raises(ServerError, match="has no offset in queue 0"):
        service.plan(wish(141), by_members=True)
    offsets.commit("T", "G", 0, 12)
    assert service.plan(wish(141), by_members=True).stand == {0: 15}


@pytest.mark.parametrize(
    ("timestamp", "force", "moved"), [(141, True, {0: 15}), (141, False, {}), (110, False, {0: 11})]
)
def test_without_force_offsets_only_move_back(
    service: ResetService, offsets: OffsetTable, timestamp: int, force: bool, moved: dict[int, int]
) -> None:
    offsets.commit("T", "G", 0, 12)
    plan = service.plan(wish(timestamp, is_force=force, queue_id=0), by_members=False)
    assert plan == Plan(stand={0: 12} | moved, moved=moved)
    assert offsets.row("T", "G") == {0: 12}
