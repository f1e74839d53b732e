from __future__ import annotations

from collections.abc import Collection

import pytest

from rocketpost.broker import expiry as expiry_module
from rocketpost.broker.expiry import CROWDED_AGE_MS, UnusedExpiry
from rocketpost.broker.group.membership import Client, Membership
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.stats import BrokerStats
from rocketpost.broker.topic import TopicTable
from rocketpost.model.group import GroupConfig
from rocketpost.server.features.expiry import ExpiryFeature
from rocketpost.server.settings.broker import broker_settings
from rocketpost.testing.clock import FakeClock

BY = "10.0.0.66:1"
DAY_MS = 86_400_000


class Store:
    def __init__(self) -> None:
        self.queues: set[tuple[str, int]] = set()

    def queue(self, topic: str, queue_id: int) -> object | None:
        return "queue" if (topic, queue_id) in self.queues else None


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.topics = TopicTable(clock=self.clock, cluster_name="C", broker_name="b")
        self.topics.add_builtin()
        self.groups = GroupTable(clock=self.clock)
        self.offsets = OffsetTable(clock=self.clock)
        self.membership = Membership(clock=self.clock, expiry_ms=10 * DAY_MS)
        self.store = Store()
        self.stats = BrokerStats(clock=self.clock)
        self.expiry = UnusedExpiry(
            clock=self.clock,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            membership=self.membership,
            store=self.store,
            stats=self.stats,
        )
        self.groups.find_or_create("g", by=BY)
        self.topics.create_internal("%RETRY%g", queue_nums=1)
        self.topics.create_on_send("t", template="TBW102", queue_nums=2, by=BY)

    def after(self, ms: int = DAY_MS + 1) -> tuple[bool, bool]:
        """Return whether the group and the topic are still there after a while."""
        self.clock.advance(ms)
        used = self.expiry.used_names()
        for name in self.expiry.candidates():
            self.expiry.remove(name, used)
        return self.groups.find("g") is not None, self.topics.find("t") is not None


@pytest.fixture
def world() -> World:
    return World()


def test_an_unused_group_is_removed_with_its_retry_topic(world: World) -> None:
    assert world.after(DAY_MS - 1) == (True, True)
    assert world.after(2) == (False, False)
    assert world.topics.find("%RETRY%g") is None
    assert not world.groups.auto.unused
    assert not world.topics.auto.unused


def test_offsets_keep_both(world: World) -> None:
    world.offsets.commit("t", "g", 0, 0)
    assert world.after() == (True, True)
    assert world.topics.find("%RETRY%g") is not None


def test_a_message_keeps_its_topic(world: World) -> None:
    world.store.queues.add(("t", 1))
    assert world.after() == (False, True)


def test_a_message_that_waits_for_its_topic_keeps_it(world: World) -> None:
    world.topics.auto.remove("t")  # as a send that was taken does, be it delayed or half
    assert world.after() == (False, True)


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g"])
def test_a_message_to_be_retried_keeps_its_group(world: World, topic: str) -> None:
    world.topics.create_internal(topic, queue_nums=1)
    world.store.queues.add((topic, 0))
    assert world.after() == (True, False)


def test_a_message_that_waits_to_be_retried_keeps_its_group(world: World) -> None:
    world.groups.use("g")  # as a message that is sent back does, before its retry topic has it
    assert world.after() == (True, False)
    assert world.topics.find("%RETRY%g") is not None


def test_a_member_keeps_its_group(world: World) -> None:
    world.membership.join_consumer(
        "g",
        Client("connection", "id", "10.0.0.3:1", "JAVA", 479),
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscriptions=[],
    )
    assert world.after() == (True, False)


def test_topics_and_groups_of_an_administrator_stay(world: World) -> None:
    world.groups.update(GroupConfig(group_name="g"))
    world.groups.update(GroupConfig(group_name="Mine"))
    assert world.after() == (True, False)
    assert world.groups.find("Mine") is not None


def test_never_means_never_until_the_table_is_crowded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.expiry.hours = 0
    assert world.after(1000 * DAY_MS) == (True, True)
    monkeypatch.setattr(expiry_module, "GROUP_COUNT_MAX", 1)
    assert world.after(1) == (False, True)


def test_a_crowded_table_forgets_sooner(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry_module, "TOPIC_COUNT_MAX", 10)
    assert world.after(CROWDED_AGE_MS - 1) == (True, True)
    assert world.after(2) == (True, False)


async def test_a_round_removes_whatever_has_become_old(world: World) -> None:
    feature = ExpiryFeature(world.expiry)
    for number in range(700):
        world.groups.find_or_create(f"made-up-{number}", by=BY)
    world.offsets.commit("t", "made-up-7", 0, 0)
    world.clock.advance(DAY_MS + 1)
    await feature.round()
    assert list(world.groups.configs) == ["made-up-7"]


async def test_a_round_forgets_the_counters_of_groups_that_never_committed(world: World) -> None:
    for group in ("g", "used"):
        world.groups.find_or_create(group, by=BY)
        world.stats.count_get("t", group, 1, 100)
        world.stats.count_send_back("t", group)
        world.offsets.note_pull("t", group, 0, 1)
    world.offsets.commit("t", "used", 0, 1)
    world.clock.advance(DAY_MS + 1)
    await ExpiryFeature(world.expiry).round()
    assert [each.reader for each in world.stats.readers()] == [("t", "used")]
    assert world.stats.item("SNDBCK_PUT_NUMS", "t@g") is None
    assert world.offsets.pulled_row("t", "g") == {}
    assert world.offsets.pulled_row("t", "used") == {0: 1}


async def test_a_round_looks_through_the_offsets_once_if_all_names_are_in_use(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1200):
        world.groups.find_or_create(f"in-use-{number}", by=f"10.0.{number}.1:1")
        world.offsets.commit("t", f"in-use-{number}", 0, 0)
    looks = []
    used_names = world.expiry.used_names

    def look() -> Collection[str]:
        looks.append(1)
        return used_names()

    monkeypatch.setattr(world.expiry, "used_names", look)
    world.clock.advance(DAY_MS + 1)
    await ExpiryFeature(world.expiry).round()
    assert len(looks) == 1
    assert len(world.groups.configs) == 1200


def test_the_age_is_a_setting(world: World) -> None:
    broker, store = broker_settings({"storePathRootDir": "/nowhere", "autoCreatedExpireHours": "1"})
    ExpiryFeature(world.expiry).configure(broker, store)
    assert world.after(3_600_001) == (False, False)


@pytest.mark.parametrize("name", ["CID_RMQ_SYS_mine", "rmq_sys_mine"])
async def test_names_of_the_system_that_were_created_by_use_are_removed(
    world: World, name: str
) -> None:
    world.groups.find_or_create(name, by=BY)
    world.topics.create_on_send(name, template="TBW102", queue_nums=2, by=BY)
    world.clock.advance(DAY_MS + 1)
    await ExpiryFeature(world.expiry).round()
    assert world.groups.find(name) is None
    assert world.topics.find(name) is None
    assert world.groups.find("g") is None


async def test_a_topic_that_the_broker_has_by_now_stays(world: World) -> None:
    world.topics.auto.admit("TBW102", BY, count=0, count_max=1)
    world.clock.advance(DAY_MS + 1)
    await ExpiryFeature(world.expiry).round()
    assert world.topics.find("TBW102") is not None
    assert not world.topics.auto.unused
