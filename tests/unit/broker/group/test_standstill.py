from __future__ import annotations

import logging

import pytest

from rocketpost.broker.group import standstill as module
from rocketpost.broker.group.membership import Client, Membership
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.group.queue_locks import QueueLocks
from rocketpost.broker.group.standstill import Standstill, StandstillWatch
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.topic import TopicTable
from rocketpost.model.group import GroupConfig, parse_tags
from rocketpost.model.ids import QueueOffset
from rocketpost.model.route import MessageQueue
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.clock import FakeClock


class Ends:
    """Queues of which only the ends are known."""

    def __init__(self) -> None:
        self.ends = {0: 10, 1: 10}

    def queue(self, topic: str, queue_id: int) -> Ends | None:
        self.end = QueueOffset(self.ends[queue_id])
        return self


class World:
    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.ends = Ends()
        self.offsets = OffsetTable(clock=clock)
        self.topics = TopicTable(clock=clock, cluster_name="C", broker_name="b")
        self.topics.update(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
        self.groups = GroupTable(clock=clock)
        self.membership = Membership(clock=clock)
        self.locks = QueueLocks(clock=clock)
        self.standstill = Standstill(
            clock=clock,
            broker_name="b",
            queues=self.ends,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            membership=self.membership,
            locks=self.locks,
        )
        self.watch = StandstillWatch(clock=clock, offsets=self.offsets, standstill=self.standstill)

    def join(self, *topics: str, tags: str = "*") -> None:
        self.membership.join_consumer(
            "G",
            Client("connection", "id", "10.0.0.3:1", "JAVA", 479),
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscriptions=[parse_tags(topic, tags, version=1) for topic in topics],
        )

    def kind(self) -> str | None:
        cause = self.standstill.cause("T", "G", 0)
        return None if cause is None else cause.kind

    def round(self, seconds: int = 61) -> None:
        self.clock.advance(seconds * 1000)
        for topic, group in self.watch.begin_round():
            self.watch.look(topic, group)


@pytest.fixture
def world(clock: FakeClock) -> World:
    return World(clock)


def test_every_visible_cause_is_named(world: World) -> None:
    world.offsets.commit("T", "G", 0, 10)
    assert world.kind() is None
    world.offsets.commit("T", "G", 0, 12)
    assert world.standstill.cause("T", "G", 0) == (
        "offset",
        "its offset 12 is beyond the end of the queue at 10",
    )
    world.offsets.commit("T", "G", 0, 4)
    assert world.kind() == "offline"
    world.join("Other")
    assert world.kind() == "unsubscribed"
    world.join("T")
    assert world.kind() == "untaken"
    world.offsets.note_pull("T", "G", 0, 8)
    world.locks.lock("G", "me", [MessageQueue("b", 0, "T")])
    world.clock.advance(15_000)
    assert world.standstill.cause("T", "G", 0) == (
        "busy",
        "a member was given messages up to 8 and has not finished 4, locked by me for 45 s more",
    )
    world.groups.update(GroupConfig(group_name="G", consume_enable=False))
    assert world.kind() == "disabled"
    world.groups.update(GroupConfig(group_name="G"))
    world.topics.update(TopicConfig(topic_name="T", perm=2))
    assert world.kind() == "forbidden"


@pytest.mark.parametrize(
    ("tags", "more"), [("*", ""), ("paid || bad", ", or none of them matches paid || bad")]
)
def test_messages_that_wait_may_match_nothing(world: World, tags: str, more: str) -> None:
    world.offsets.commit("T", "G", 0, 4)
    world.join("T", tags=tags)
    assert world.standstill.cause("T", "G", 0) == (
        "untaken",
        "no member takes messages: the queue has no owner, is paused, or its owner is busy" + more,
    )


def test_a_queue_that_stops_for_a_minute_is_logged_once_per_cause(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, module.__name__)
    world.offsets.commit("T", "G", 0, 4)
    world.offsets.commit("T", "G", 1, 7)
    world.round()
    assert not caplog.messages  # it is seen for the first time
    world.round()
    world.round()
    assert caplog.messages == [
        "queues stand still: group=G topic=T queues=0,1 lag=9 cause=offline "
        "reason=no member is online"
    ]
    caplog.clear()
    world.join("T")
    world.offsets.commit("T", "G", 1, 8)
    world.round()
    assert [message.partition(" lag")[0] for message in caplog.messages] == [
        "queues stand still: group=G topic=T queues=0",
        "queues move again: group=G topic=T queues=1",
    ]
    caplog.clear()
    world.offsets.commit("T", "G", 0, 10)
    world.offsets.commit("T", "G", 1, 10)
    world.round()
    world.round()
    assert caplog.messages == ["queues move again: group=G topic=T queues=0"]


def test_the_groups_of_the_broker_itself_are_not_watched(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.offsets.commit("T", "CID_RMQ_SYS_REVIVE_GROUP", 0, QueueOffset(2))
    world.round()
    world.round()
    assert not caplog.records
    world.offsets.commit("T", "G", 0, QueueOffset(2))
    world.round()
    world.round()
    assert "group=G" in caplog.text


def test_a_queue_that_moves_a_little_or_is_gone_is_not_reported(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, module.__name__)
    for offset in range(4):
        world.offsets.commit("T", "G", 0, offset)
        world.round()
    world.offsets.forget_group("G")
    world.round()
    world.offsets.commit("T", "G", 0, 3)
    world.round()
    world.round(30)
    assert not caplog.messages


def test_the_log_lines_of_a_round_are_bounded(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINES_MAX", 2)
    caplog.set_level(logging.WARNING, module.__name__)
    for number in range(5):
        world.offsets.commit("T", f"G{number}", 0, 1)
    world.round()
    world.round()
    assert len(caplog.messages) == 2
    world.watch.begin_round()
    assert caplog.messages[2] == "more queues stand still: lines_left_out=3"
