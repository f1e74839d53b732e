from __future__ import annotations

import pytest

from rocketpost.broker import auto_created
from rocketpost.broker.auto_created import PER_SECOND, AutoCreated
from rocketpost.broker.group import table as group_module
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.faults import SystemBusy
from rocketpost.errors import StoreError
from rocketpost.model.group import GroupConfig
from rocketpost.testing.clock import FakeClock

STRANGER = "10.0.0.66:40000"
ANOTHER = "10.0.0.1:40000"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def groups(clock: FakeClock) -> GroupTable:
    return GroupTable(clock=clock)


@pytest.fixture
def topics(clock: FakeClock) -> TopicTable:
    topics = TopicTable(clock=clock, cluster_name="C", broker_name="b")
    topics.add_builtin()
    return topics


def make_groups(groups: GroupTable, prefix: str, by: str, count: int = 10_000) -> int:
    """Make groups until that is refused; return how many came into being."""
    for number in range(count):
        try:
            groups.find_or_create(f"{prefix}{number}", by=f"{by.rpartition(':')[0]}:{number}")
        except SystemBusy:
            return number
    return count


def test_one_host_can_create_a_burst_of_groups_and_then_a_few_per_second(
    groups: GroupTable, clock: FakeClock
) -> None:
    assert make_groups(groups, "first", STRANGER) == PER_SECOND * 100
    assert groups.find_or_create("first0", by=STRANGER) is not None  # it is there
    clock.advance(2000)
    assert make_groups(groups, "second", STRANGER) == PER_SECOND
    assert make_groups(groups, "other", ANOTHER, count=50) == 50


def test_many_hosts_together_have_a_bound(groups: GroupTable) -> None:
    made = sum(make_groups(groups, f"{host}-", f"10.0.0.{host}:1") for host in range(20))
    assert made == PER_SECOND * 200


def test_hosts_are_forgotten(groups: GroupTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_created, "_HOSTS_MAX", 5)
    for number in range(100):
        groups.find_or_create(f"g{number}", by=f"10.0.0.{number}:1")
    assert len(groups.auto._hosts) == 5


def test_a_refusal_says_what_to_do(groups: GroupTable) -> None:
    make_groups(groups, "g", STRANGER)
    with pytest.raises(SystemBusy, match="try again in a moment, create it with mqadmin"):
        groups.find_or_create("late", by=STRANGER)


def test_sends_create_topics_at_the_same_rate(topics: TopicTable) -> None:
    for number in range(PER_SECOND * 100):
        topics.create_on_send(f"t{number}", template="TBW102", queue_nums=1, by=STRANGER)
    with pytest.raises(SystemBusy, match="too many topics are being created"):
        topics.create_on_send("late", template="TBW102", queue_nums=1, by=STRANGER)


def test_administrators_have_room_when_use_creates_no_more(
    groups: GroupTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "GROUP_COUNT_MAX", 40)
    groups.auto.per_second = 0
    assert make_groups(groups, "g", STRANGER) == 30
    groups.update(GroupConfig(group_name="Mine"))
    assert groups.find("Mine") is not None


def test_a_change_by_an_administrator_takes_a_name_off_the_list(
    groups: GroupTable, topics: TopicTable
) -> None:
    groups.find_or_create("g", by=STRANGER)
    topics.create_on_send("t", template="TBW102", queue_nums=1, by=STRANGER)
    assert (list(groups.auto.unused), list(topics.auto.unused)) == (["g"], ["t"])
    known = topics.require("t")
    before = groups.auto.revision, topics.auto.revision
    groups.update(GroupConfig(group_name="g"))
    topics.update(known)
    assert not groups.auto.unused
    assert not topics.auto.unused
    assert (groups.auto.revision, topics.auto.revision) > before


def test_a_stored_message_takes_a_name_off_the_list(topics: TopicTable) -> None:
    topics.create_on_send("t", template="TBW102", queue_nums=1, by=STRANGER)
    topics.adopt("t", queue_nums=1)
    assert not topics.auto.unused


def test_the_list_survives_a_restart(groups: GroupTable, clock: FakeClock) -> None:
    groups.find_or_create("g", by=STRANGER)
    again = AutoCreated("group", clock=clock)
    again.load(groups.auto.to_json())
    assert again.unused == groups.auto.unused == {"g": clock.now_ms()}
    for damaged in (b"", b"[]", b'{"g":"x"}', b"\xff"):
        with pytest.raises(StoreError, match="cannot be read"):
            AutoCreated("group", clock=clock).load(damaged)


def test_a_clock_that_is_set_back_does_not_block(groups: GroupTable, clock: FakeClock) -> None:
    make_groups(groups, "g", STRANGER)
    clock._now_ms -= 3_600_000
    assert make_groups(groups, "before", STRANGER) == 0
    clock.advance(1000)
    assert make_groups(groups, "later", STRANGER) == PER_SECOND // 2
