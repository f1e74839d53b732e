"""Tables of a slave that take over their master's: topics, groups, modes, filters, progress."""

from __future__ import annotations

import pytest

from rocketpost.broker.auto_created import AutoCreated
from rocketpost.broker.delay.progress import DelayProgress
from rocketpost.broker.filter.named import NamedFilters
from rocketpost.broker.group.request_modes import RequestModes
from rocketpost.broker.group.table import FORBIDDEN_READ_BIT, GroupTable
from rocketpost.broker.pop.batch import Batch, Batches
from rocketpost.broker.pop.targets import Cursor
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.bodies.assignment import RequestMode, decode_request_modes
from rocketpost.codec.bodies.group import GroupTableBody
from rocketpost.codec.bodies.topic import TopicTableBody
from rocketpost.errors import StoreError
from rocketpost.model.group import GroupConfig
from rocketpost.model.ids import Position
from rocketpost.model.topic import DataVersion, TopicConfig
from rocketpost.testing.clock import FakeClock

VERSION = DataVersion(9, 0, 7)


@pytest.fixture
def topics(clock: FakeClock) -> TopicTable:
    table = TopicTable(clock=clock, cluster_name="C", broker_name="b")
    table.add_builtin()
    return table


def test_topics_that_the_master_lacks_go_and_the_others_stay(topics: TopicTable) -> None:
    for name in ("Kept", "Changed", "Gone"):
        topics.update(TopicConfig(topic_name=name))
    changed: list[str] = []
    topics.on_change = changed.append
    wanted = {
        "Kept": TopicConfig(topic_name="Kept"),
        "Changed": TopicConfig(topic_name="Changed", read_queue_nums=3),
        "New": TopicConfig(topic_name="New", attributes={"message.type": "FIFO"}),
        "../bad": TopicConfig(topic_name="../bad"),
    }
    topics.follow(TopicTableBody(data_version=VERSION, topic_config_table=wanted))
    assert sorted(changed) == ["Changed", "Gone", "New"]
    del wanted["../bad"]
    assert {name: topics.find(name) for name in wanted} == wanted
    assert topics.find("Gone") is None
    assert topics.find("SCHEDULE_TOPIC_XXXX") is not None, "built-in topics stay"
    assert topics.version == VERSION
    revision = topics.revision
    topics.follow(topics.body())
    assert (topics.revision, topics.version) == (revision, VERSION)


def test_groups_follow_with_their_forbidden_topics(clock: FakeClock) -> None:
    groups = GroupTable(clock=clock)
    groups.add_builtin()
    groups.update(GroupConfig(group_name="Gone"))
    wanted = GroupConfig(group_name="G", retry_max_times=3)
    body = GroupTableBody(
        data_version=VERSION,
        subscription_group_table={"G": wanted},
        forbidden_table={"G": {"T": 1 << FORBIDDEN_READ_BIT}},
    )
    groups.follow(body)
    assert groups.find("G") == wanted
    assert groups.find("Gone") is None
    assert groups.find("TOOLS_CONSUMER") is not None
    assert not groups.may_read("G", "T")
    assert groups.version == VERSION


def test_request_modes_follow() -> None:
    master, slave = RequestModes(), RequestModes()
    master.set(RequestMode(topic="T", consumer_group="G", mode="POP"))
    slave.set(RequestMode(topic="U", consumer_group="G", mode="POP"))
    slave.follow(decode_request_modes(master.body()))
    assert slave.body() == master.body()
    revision = slave.revision
    slave.follow(decode_request_modes(master.body()))
    assert slave.revision == revision


def test_named_filters_follow(clock: FakeClock) -> None:
    master, slave = NamedFilters(clock=clock), NamedFilters(clock=clock)
    master.enabled = slave.enabled = True
    master.put("f", "a > 1")
    slave.put("g", "a > 2")
    slave.follow(master.to_json())
    assert slave.to_json() == master.to_json()


def test_names_created_by_use_follow(clock: FakeClock) -> None:
    master, slave = (AutoCreated("topic", clock=clock) for _ in range(2))
    master.admit("T", "", count=0, count_max=100)
    slave.admit("U", "", count=0, count_max=100)
    slave.follow(master.to_json())
    assert dict(slave.unused) == dict(master.unused)
    with pytest.raises(StoreError):
        slave.follow(b"[]")


def test_delay_progress_follows_with_the_positions_of_copies(clock: FakeClock) -> None:
    master, slave = DelayProgress(clock=clock), DelayProgress(clock=clock)
    master.durable = lambda: Position(100)
    master.advance(1, 7, position=Position(90))
    revision = slave.revision
    slave.follow(master.to_json())
    assert slave.to_json() == master.to_json()
    assert (slave.next_offset(1), slave.delivered_before(1)) == (7, 90)
    assert slave.revision == revision + 1
    slave.follow(master.to_json())
    assert slave.revision == revision + 1


def test_batches_popped_in_order_follow() -> None:
    master, slave = Batches(), Batches()
    cursor = Cursor("T", "G", 0)
    master.put(cursor, Batch([3, 4], pop_ms=1, invisible_ms=2))
    slave.put(Cursor("U", "G", 0), Batch([1], pop_ms=1, invisible_ms=2))
    slave.follow(master.to_json())
    assert slave.to_json() == master.to_json()
    assert len(slave) == 1
