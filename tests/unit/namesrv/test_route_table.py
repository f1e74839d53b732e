"""Routes: who registers, who wins, who expires, and what clients are told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.bodies.route import QueueMapping
from rocketpost.codec.faults import (
    Fault,
    InvalidParameter,
    NoPermission,
    ServerError,
    SystemBusy,
)
from rocketpost.codec.headers.namesrv import RegisterBrokerResponse
from rocketpost.model.route import QueueData
from rocketpost.model.topic import DataVersion
from rocketpost.namesrv.claims import (
    MEMBER_MS,
    PAST_MS,
    SILENT_MS,
    STATE_VERSION_MAX,
)
from rocketpost.namesrv.min_broker import MinBrokerChange
from rocketpost.namesrv.report import BrokerReport
from rocketpost.namesrv.route_table import LIVE_MS_MAX, RouteLimits, RouteTable, restrict_to_zone

from .reports import identity, report, topics

MASTER = identity()
SLAVE = identity(id=1, address="10.0.0.2:10911")
SLAVE_2 = identity(id=2, address="10.0.0.3:10911")


def register(
    table: RouteTable,
    sent: BrokerReport,
    owner: str = "link",
    now_ms: int = 0,
    source: str = "10.0.0.1",
) -> object:
    return table.register(sent, owner=owner, now_ms=now_ms, source=source)


def perm(table: RouteTable, topic: str, name: str = "broker-a") -> int:
    found = table.route(topic)
    assert found is not None
    return next(each.perm for each in found.route.queue_datas if each.broker_name == name)


@pytest.fixture
def table() -> RouteTable:
    """A name server that knows one master with two topics."""
    table = RouteTable()
    register(table, report(MASTER, ha_address="10.0.0.1:10912"))
    return table


def test_a_registered_broker_is_routed_to(table: RouteTable) -> None:
    found = table.route("TopicA")
    assert found is not None
    (broker,) = found.route.broker_datas
    assert (broker.cluster, broker.broker_addrs) == ("C", {0: "10.0.0.1:10911"})
    assert found.route.queue_datas == [
        QueueData(broker_name="broker-a", read_queue_nums=4, write_queue_nums=4)
    ]
    assert table.route("Unknown") is None
    assert table.topics() == ["TopicA", "TopicB"]


def test_a_first_registration_must_be_a_full_one() -> None:
    table = RouteTable()
    with pytest.raises(ServerError, match="register broker failed"):
        register(table, report(table=topics("TopicA")))
    assert table.topics() == []
    assert table.cluster_info()[0].cluster_addr_table == {}


def test_later_a_single_changed_topic_is_enough(table: RouteTable) -> None:
    register(table, report(table=topics("TopicC"), counter=2))
    assert table.topics() == ["TopicA", "TopicB", "TopicC"]
    assert table.data_version("C", MASTER.address) == DataVersion(2, 0, 1_700_000_000_000)


def test_an_unchanged_version_changes_nothing_but_adds_unknown_topics(table: RouteTable) -> None:
    register(table, report(table=topics("TopicA", "TopicC", write_queue_nums=9)))
    assert table.topics() == ["TopicA", "TopicB", "TopicC"]
    found = table.route("TopicA")
    assert found is not None
    assert found.route.queue_datas[0].write_queue_nums == 4


def test_a_changed_version_replaces_queues(table: RouteTable) -> None:
    register(table, report(table=topics("TopicA", "TopicB", write_queue_nums=9), counter=2))
    found = table.route("TopicA")
    assert found is not None
    assert found.route.queue_datas[0].write_queue_nums == 9


def test_topics_that_a_broker_no_longer_has_stay_unless_wished(table: RouteTable) -> None:
    left = report(table=topics("TopicB", "TopicC"), counter=2)
    register(table, left)
    assert "TopicA" in table.topics()
    table.register(left, owner="link", now_ms=0, drop_missing_topics=True)
    assert table.topics() == ["TopicB", "TopicC"]


def test_a_repeated_registration_leaves_the_edition_alone(table: RouteTable) -> None:
    before = table.edition
    register(table, report(MASTER, ha_address="10.0.0.1:10912"), now_ms=30_000)
    assert table.edition == before
    register(table, report(MASTER, filters=["10.0.0.9:1"]))
    assert table.edition > before


# Masters and slaves.


def test_a_slave_learns_its_master_and_brings_no_topics(table: RouteTable) -> None:
    told = register(table, report(SLAVE, topics("TopicA", "Slave")))
    assert told == RegisterBrokerResponse(
        master_addr="10.0.0.1:10911", ha_server_addr="10.0.0.1:10912"
    )
    assert table.topics() == ["TopicA", "TopicB"]
    assert table.member_group("C", "broker-a").broker_addrs == {
        0: MASTER.address,
        1: SLAVE.address,
    }


def test_a_slave_without_master_of_an_old_broker_brings_no_topics() -> None:
    table = RouteTable()
    assert register(table, report(SLAVE)) == RegisterBrokerResponse()
    assert table.topics() == []


def test_the_first_slave_without_master_brings_topics_without_write_permission() -> None:
    table = RouteTable()
    register(table, report(SLAVE, acting_master=True))
    register(table, report(SLAVE_2, topics("Late", "Later"), acting_master=True))
    assert perm(table, "TopicA") == 4
    assert "Late" not in table.topics()
    found = table.route("TopicA", acting_master=True)
    assert found is not None
    assert found.route.broker_datas[0].broker_addrs == {0: SLAVE.address, 2: SLAVE_2.address}
    plain = table.route("TopicA")
    assert plain is not None
    assert plain.route.broker_datas[0].master is None


def test_without_acting_masters_the_first_slave_keeps_permissions() -> None:
    table = RouteTable()
    register(table, report(SLAVE, acting_master=False))
    assert perm(table, "TopicA") == 6
    table.wipe_write_perm("broker-a")
    found = table.route("TopicA", acting_master=True)
    assert found is not None
    assert found.route.broker_datas[0].master is None


def test_losing_an_acting_brokers_master_takes_write_permission_away(table: RouteTable) -> None:
    register(table, report(MASTER, acting_master=True), owner="m")
    register(table, report(SLAVE, acting_master=True), owner="s")
    assert table.remove_lost("m") == [MASTER]
    assert perm(table, "TopicA") == 4
    register(table, report(MASTER, acting_master=True), owner="m")
    assert perm(table, "TopicA") == 6


def test_the_topic_of_the_members_shows_them_as_they_are() -> None:
    members = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    table = RouteTable()
    register(table, report(SLAVE, topics("TopicA", members, perm=1), acting_master=True))
    found = table.route(members, acting_master=True)
    assert found is not None
    assert found.route.broker_datas[0].broker_addrs == {1: SLAVE.address}


def test_a_slave_is_told_its_master_only_while_the_master_lives(table: RouteTable) -> None:
    answer = register(table, report(SLAVE, acting_master=True), owner="s")
    assert answer == RegisterBrokerResponse(
        ha_server_addr="10.0.0.1:10912", master_addr=MASTER.address
    )
    table.remove_lost("link")
    assert register(table, report(SLAVE, acting_master=True), owner="s") == RegisterBrokerResponse()


def test_members_are_told_when_another_one_has_the_smallest_id() -> None:
    told: list[MinBrokerChange] = []
    table = RouteTable(on_min_change=told.append)
    for who, owner in ((SLAVE_2, "s2"), (SLAVE, "s1"), (MASTER, "m"), (MASTER, "m")):
        sent = report(who, ha_address=who.address.replace("10911", "10912"), acting_master=True)
        register(table, sent, owner=owner)
    table.remove_lost("s2")
    table.remove_lost("m")
    table.remove_lost("s1")
    first, master, gone = told
    assert first == ("broker-a", (SLAVE_2.address,), 1, SLAVE.address, None, "10.0.0.2:10912")
    assert master.recipients == (SLAVE.address, SLAVE_2.address)
    assert (master.id, master.address, master.offline_address) == (0, MASTER.address, None)
    assert gone == ("broker-a", (SLAVE.address,), 1, SLAVE.address, MASTER.address, None)


def test_nobody_is_told_of_groups_in_which_no_slave_acts() -> None:
    told: list[MinBrokerChange] = []
    table = RouteTable(on_min_change=told.append)
    for who in (SLAVE, MASTER):
        register(table, report(who, acting_master=False), owner=who.address)
    table.remove_lost(MASTER.address)
    assert not told


def test_losing_a_plain_master_leaves_permissions(table: RouteTable) -> None:
    register(table, report(SLAVE), owner="s")
    assert table.remove_lost("link") == [MASTER]
    assert perm(table, "TopicA") == 6


# Conflicts.


def test_an_address_has_one_id_a_slave_that_becomes_master(table: RouteTable) -> None:
    register(table, report(SLAVE), owner="s")
    table.remove_lost("link")
    register(table, report(identity(id=0, address=SLAVE.address)), owner="s")
    assert table.member_group("C", "broker-a").broker_addrs == {0: SLAVE.address}


MOVED = identity(address="10.0.0.7:10911")


def test_a_new_address_takes_the_id_over_from_one_that_is_silent(table: RouteTable) -> None:
    moved = report(MOVED, topics("TopicA", "TopicB", write_queue_nums=9))
    with pytest.raises(ServerError, match=r"id 0 of broker-a is taken by 10\.0\.0\.1:10911"):
        register(table, moved, owner="new", now_ms=SILENT_MS)
    register(table, moved, owner="new", now_ms=SILENT_MS + 1)
    assert table.member_group("C", "broker-a").broker_addrs == {0: MOVED.address}
    assert table.remove_lost("link") == []
    found = table.route("TopicA")
    assert found is not None
    assert found.route.queue_datas[0].write_queue_nums == 9


def test_a_new_address_takes_the_id_over_from_one_that_is_gone(table: RouteTable) -> None:
    table.remove_lost("link")
    register(table, report(MOVED), owner="new")
    assert table.member_group("C", "broker-a").broker_addrs == {0: MOVED.address}


@pytest.mark.parametrize("state", [0, 1, STATE_VERSION_MAX])
def test_no_stranger_takes_the_place_of_a_living_broker(table: RouteTable, state: int) -> None:
    before = table.edition
    with pytest.raises(ServerError, match="which is alive"):
        register(table, report(MOVED, topics("X", "Y"), state=state), owner="s", source="10.6.6.6")
    assert table.edition == before
    assert table.topics() == ["TopicA", "TopicB"]
    assert table.data_version("C", MOVED.address) is None


def test_a_state_version_from_the_far_future_is_refused() -> None:
    table = RouteTable()
    with pytest.raises(InvalidParameter, match="stateVersion"):
        register(table, report(MASTER, state=2**62))


def test_a_member_that_was_elected_takes_the_id_over(table: RouteTable) -> None:
    joined = MEMBER_MS + 1  # later than the members of a new group do
    now_ms = joined + MEMBER_MS
    register(table, report(SLAVE), owner="s", source="10.0.0.2", now_ms=joined)
    elected = report(identity(id=0, address=SLAVE.address), state=1)
    with pytest.raises(ServerError, match="which is alive"):  # it came a moment ago
        register(table, elected, owner="s", source="10.0.0.2", now_ms=now_ms - 1)
    with pytest.raises(ServerError, match=r"by 10\.0\.0\.2, which is alive"):  # it is another
        register(table, elected, owner="evil", source="10.6.6.6", now_ms=now_ms)
    same_term = report(identity(id=0, address=SLAVE.address))
    with pytest.raises(ServerError, match="which is alive"):  # nobody elected it
        register(table, same_term, owner="s", source="10.0.0.2", now_ms=now_ms)
    register(table, elected, owner="s", source="10.0.0.2", now_ms=now_ms)
    assert table.member_group("C", "broker-a").broker_addrs == {0: SLAVE.address}
    with pytest.raises(ServerError, match="which is alive"):  # the old master comes late
        register(table, report(MASTER), now_ms=now_ms)
    register(table, report(identity(id=1)), now_ms=now_ms)
    assert table.member_group("C", "broker-a").broker_addrs == {
        0: SLAVE.address,
        1: MASTER.address,
    }


def test_the_members_of_a_new_group_take_the_id_over_at_once(table: RouteTable) -> None:
    register(table, report(SLAVE), owner="s", source="10.0.0.2", now_ms=MEMBER_MS)
    elected = report(identity(id=0, address=SLAVE.address), state=1)
    register(table, elected, owner="s", source="10.0.0.2", now_ms=MEMBER_MS + 1)
    assert table.member_group("C", "broker-a").broker_addrs == {0: SLAVE.address}


def test_a_member_that_was_restarted_takes_the_id_over_at_once(table: RouteTable) -> None:
    joined = MEMBER_MS + 1
    gone = joined + MEMBER_MS
    register(table, report(SLAVE), owner="s", source="10.0.0.2", now_ms=joined)
    register(table, report(SLAVE), owner="s", source="10.0.0.2", now_ms=gone)
    table.remove_lost("s")
    register(table, report(SLAVE), owner="again", source="10.0.0.2", now_ms=gone + 5)
    elected = report(identity(id=0, address=SLAVE.address), state=1)
    register(table, elected, owner="again", source="10.0.0.2", now_ms=gone + 6)
    assert table.member_group("C", "broker-a").broker_addrs == {0: SLAVE.address}


@pytest.mark.parametrize(("source", "away_ms"), [("10.6.6.6", 5), ("10.0.0.2", PAST_MS + 1)])
def test_another_host_or_a_late_return_is_a_new_member(
    table: RouteTable, source: str, away_ms: int
) -> None:
    gone = MEMBER_MS + 1 + MEMBER_MS
    register(table, report(SLAVE), owner="s", source="10.0.0.2", now_ms=MEMBER_MS + 1)
    register(table, report(SLAVE), owner="s", source="10.0.0.2", now_ms=gone)
    table.remove_lost("s")
    back = gone + away_ms
    for now_ms in (gone, gone + away_ms // 2, back):
        register(table, report(MASTER), now_ms=now_ms)
    register(table, report(SLAVE), owner="again", source=source, now_ms=back)
    elected = report(identity(id=0, address=SLAVE.address), state=1)
    with pytest.raises(ServerError, match="which is alive"):
        register(table, elected, owner="again", source=source, now_ms=back + 1)


def test_nobody_else_registers_the_address_of_a_living_broker(table: RouteTable) -> None:
    for stolen in (MASTER, identity(name="evil"), identity(cluster="D")):
        with pytest.raises(ServerError, match=r"10\.0\.0\.1:10911 is registered as broker-a"):
            register(table, report(stolen), owner="evil", source="10.6.6.6")
    with pytest.raises(ServerError, match="is registered as broker-a"):
        register(table, report(identity(name="evil")), owner="another of this host")
    assert list(table.cluster_info()[0].broker_addr_table) == ["broker-a"]


def test_a_broker_comes_back_through_another_connection_of_its_host(table: RouteTable) -> None:
    register(table, report(MASTER, counter=2), owner="second link", now_ms=1)
    assert table.remove_lost("link") == []
    assert table.route("TopicA") is not None


def test_only_its_host_unregisters_a_broker_or_gives_signs_of_life(table: RouteTable) -> None:
    with pytest.raises(NoPermission, match="nobody else can unregister it"):
        table.unregister(MASTER, owner="evil", source="10.6.6.6")
    assert not table.touch("C", MASTER.address, 100_000, source="10.6.6.6")
    assert table.route("TopicA") is not None
    assert table.unregister(MASTER, owner="another", source="10.0.0.1")


def test_one_host_cannot_use_up_the_name_server() -> None:
    table = RouteTable(RouteLimits(brokers_max=10, brokers_a_host_max=3, entries_max=100))
    for number in range(3):
        fake = identity(f"fake-{number}", address=f"10.6.6.6:{number + 1}")
        register(table, report(fake), owner=f"s{number}", source="10.6.6.6")
    with pytest.raises(SystemBusy, match=r"10\.6\.6\.6 has registered 3 brokers"):
        register(table, report(identity("fake-4", address="10.6.6.6:9")), source="10.6.6.6")
    register(table, report(), source="10.0.0.1")
    table.remove_lost("s0")
    many = topics(*(f"T{number}" for number in range(47)))
    with pytest.raises(SystemBusy, match="has registered 4 topic entries"):
        register(table, report(identity("fake-4", address="10.6.6.6:9"), many), source="10.6.6.6")
    register(table, report(identity("fake-4", address="10.6.6.6:9")), source="10.6.6.6")


def test_brokers_are_removed_one_after_the_other(table: RouteTable) -> None:
    register(table, report(identity(name="broker-b", address="10.0.0.4:1")))
    assert len(table.remove_lost("link", count_max=1)) == 1
    assert len(table.expire(10**9, count_max=1)) == 1
    assert table.topics() == []


def test_dropping_a_broker_does_not_look_at_the_topics_of_others() -> None:
    """Many brokers that went together kept everybody waiting: each looked at all topics."""

    class Looked(dict[str, object]):
        count = 0

        def get(self, *args: object) -> object:  # type: ignore[override]
            self.count += 1
            return super().get(*args)  # type: ignore[arg-type]

    table = RouteTable()
    for number in range(20):
        names = (f"T{number}-{each}" for each in range(50))
        who = identity(f"b{number}", address=f"10.0.0.1:{number + 1}")
        register(table, report(who, topics(*names)), owner=str(number))
    looked = table._queues._topics = Looked(table._queues._topics)  # type: ignore[assignment]
    for number in range(20):
        table.remove_lost(str(number))
    assert looked.count == 20 * 50


def test_a_broker_that_changes_its_name_leaves_the_old_one(table: RouteTable) -> None:
    renamed = identity(name="broker-b")
    register(table, report(renamed))
    assert list(table.cluster_info()[0].broker_addr_table) == ["broker-b"]
    assert table.unregister(MASTER) is False


def test_a_broker_that_changes_its_cluster_leaves_the_old_one(table: RouteTable) -> None:
    register(table, report(identity(cluster="D"), topics("T", "U")))
    assert table.cluster_info()[0].cluster_addr_table == {"D": ["broker-a"]}
    assert table.topics() == ["T", "U"]


def test_a_broker_name_belongs_to_one_cluster(table: RouteTable) -> None:
    with pytest.raises(ServerError, match="taken by cluster C"):
        register(table, report(identity(cluster="D", address="10.0.0.7:10911")))
    assert table.cluster_info()[0].cluster_addr_table == {"C": ["broker-a"]}


# Life and death.


def test_silence_beyond_the_time_out_ends_a_broker(table: RouteTable) -> None:
    assert table.expire(120_000) == []
    ((who, owner),) = table.expire(120_001)
    assert (who, owner) == (MASTER, "link")
    assert table.route("TopicA") is None
    assert table.topics() == []
    assert table.expire(10**9) == []


def test_a_broker_may_name_its_own_time_out() -> None:
    table = RouteTable()
    register(table, report(timeout_ms=10_000))
    assert table.expire(10_000) == []
    assert len(table.expire(10_001)) == 1
    register(table, report(timeout_ms=2**62))
    assert len(table.expire(LIVE_MS_MAX + 1)) == 1
    register(table, report(timeout_ms=-5))
    assert table.expire(120_000) == []


def test_signs_of_life(table: RouteTable) -> None:
    host = "10.0.0.1"
    assert table.touch("C", MASTER.address, 100_000, source=host)
    assert not table.touch("D", MASTER.address, 10**9, source=host)
    assert not table.touch("C", "10.9.9.9:1", 10**9, source=host)
    assert table.expire(220_000) == []
    assert len(table.expire(220_001)) == 1


def test_unregistering(table: RouteTable) -> None:
    assert not table.unregister(identity(name="broker-x"))
    assert not table.unregister(identity(address="10.9.9.9:1"))
    assert table.unregister(MASTER, owner="link")
    assert table.route("TopicA") is None
    assert table.cluster_info()[0].broker_addr_table == {}


def test_a_connection_that_was_replaced_takes_nobody_with_it(table: RouteTable) -> None:
    register(table, report(MASTER), owner="new link")
    assert table.remove_lost("link") == []
    assert table.route("TopicA") is not None
    assert table.remove_lost("new link") == [MASTER]


def test_one_connection_may_carry_several_brokers(table: RouteTable) -> None:
    register(table, report(identity(name="broker-b", address="10.0.0.4:1")))
    assert sorted(who.name for who in table.remove_lost("link")) == ["broker-a", "broker-b"]


# What tools ask and change.


def test_lists_of_topics() -> None:
    table = RouteTable()
    flags = {"Plain": 0, "Unit": 1, "Sub": 2, "Both": 3}
    configs = {name: topics(name, topic_sys_flag=flag)[name] for name, flag in flags.items()}
    register(table, report(MASTER, configs))
    other = identity("broker-b", address="10.0.0.4:1", cluster="D")
    register(table, report(other, topics("Plain", "InD")))
    assert table.topics_of_cluster("C") == ["Both", "Plain", "Sub", "Unit"]
    assert table.topics_of_cluster("D") == ["InD", "Plain"]
    assert table.topics_of_cluster("E") == []
    assert table.topics_by_flag(lambda flag: bool(flag & 1)) == ["Both", "Unit"]
    assert table.system_topics() == (["C", "broker-a", "D", "broker-b"], MASTER.address)
    assert RouteTable().system_topics() == ([], None)


def test_write_permission_comes_and_goes(table: RouteTable) -> None:
    register(table, report(table=topics("TopicC", perm=7), counter=2))
    assert table.wipe_write_perm("broker-a") == 3
    assert (perm(table, "TopicA"), perm(table, "TopicC")) == (4, 5)
    register(table, report(counter=2))
    assert perm(table, "TopicA") == 4, "an unchanged version must not undo it"
    assert table.add_write_perm("broker-a") == 3
    assert perm(table, "TopicC") == 6
    assert table.wipe_write_perm("nobody") == 0
    table.wipe_write_perm("broker-a")
    register(table, report(counter=3))
    assert perm(table, "TopicA") == 6


def test_a_topic_is_deleted_in_one_cluster_or_in_all(table: RouteTable) -> None:
    register(table, report(identity("broker-b", address="10.0.0.4:1", cluster="D")))
    table.delete_topic("TopicA", "D")
    found = table.route("TopicA")
    assert found is not None
    assert [each.broker_name for each in found.route.broker_datas] == ["broker-a"]
    table.delete_topic("TopicB")
    assert table.route("TopicB") is None
    table.delete_topic("Unknown")


def test_a_single_topic_of_known_brokers(table: RouteTable) -> None:
    table.register_topic("New", [QueueData(broker_name="broker-a", write_queue_nums=3)])
    assert table.route("New") is not None
    with pytest.raises(ServerError, match="no broker 'ghost'"):
        table.register_topic(
            "Other", [QueueData(broker_name="broker-a"), QueueData(broker_name="ghost")]
        )
    with pytest.raises(InvalidParameter):
        table.register_topic("a/b", [])
    assert table.route("Other") is None


def test_static_topics_filters_and_zones() -> None:
    table = RouteTable()
    mapping = QueueMapping(bname="broker-a", curr_id_map={0: 0}, topic="TopicA", total_queues=1)
    ghost = QueueMapping(bname="broker-a", topic="Nowhere")
    sent = report(filters=["10.0.0.9:1"], mappings={"TopicA": mapping, "Nowhere": ghost}, zone="Z1")
    register(table, sent)
    register(table, report(identity("broker-b", address="10.0.0.4:1"), zone="z2"), owner="b")
    found = table.route("TopicA")
    assert found is not None
    assert found.mappings == {"broker-a": mapping}
    assert found.zones == {"broker-a": "Z1", "broker-b": "z2"}
    assert found.route.filter_server_table == {MASTER.address: ["10.0.0.9:1"]}
    near = restrict_to_zone(found, "z1").route
    assert [each.broker_name for each in near.broker_datas] == ["broker-a"]
    assert [each.broker_name for each in near.queue_datas] == ["broker-a"]
    assert restrict_to_zone(found, "z2").route.filter_server_table == {}
    table.delete_topic("TopicA")
    register(table, report(counter=2))
    again = table.route("TopicA")
    assert again is not None
    assert again.mappings == {}


def test_a_broker_without_master_stays_in_every_zone() -> None:
    table = RouteTable()
    register(table, report(SLAVE, acting_master=False, zone="z1"))
    found = table.route("TopicA")
    assert found is not None
    assert restrict_to_zone(found, "z2").route == found.route


# Bounds.


def test_a_full_name_server_refuses_and_keeps_what_it_has() -> None:
    table = RouteTable(RouteLimits(brokers_max=2, entries_max=5))
    register(table, report())
    other = identity("broker-b", address="10.0.0.4:1")
    with pytest.raises(SystemBusy, match="2 of 5"):
        register(table, source="10.0.0.4", sent=report(other, topics("a", "b", "c", "d")))
    mapping = QueueMapping(
        bname="broker-b", curr_id_map={0: 0, 1: 1}, topic="TopicA", total_queues=1
    )
    with pytest.raises(SystemBusy):
        register(table, source="10.0.0.4", sent=report(other, mappings={"TopicA": mapping}))
    assert list(table.cluster_info()[0].broker_addr_table) == ["broker-a"]
    register(table, source="10.0.0.4", sent=report(other))
    with pytest.raises(SystemBusy):
        table.register_topic(
            "New", [QueueData(broker_name="broker-a"), QueueData(broker_name="broker-b")]
        )
    with pytest.raises(SystemBusy, match="2 brokers"):
        register(table, report(identity("broker-c", address="10.0.0.5:1")))
    register(table, source="10.0.0.4", sent=report(other, counter=2))
    table.unregister(MASTER, owner="link")
    register(table, report(identity("broker-c", address="10.0.0.5:1")))


brokers = st.builds(
    identity,
    name=st.sampled_from(["a", "b"]),
    id=st.integers(0, 2),
    address=st.sampled_from(["h:1", "h:2", "h:3"]),
    cluster=st.sampled_from(["C", "D"]),
)
tables = st.sets(st.sampled_from(["T", "U", "V"])).map(lambda names: topics(*names))
steps = st.one_of(
    st.tuples(
        st.just("register"),
        st.builds(
            report,
            brokers,
            tables,
            counter=st.integers(0, 2),
            state=st.integers(0, 1),
            acting_master=st.sampled_from([None, False, True]),
        ),
        st.sampled_from(["x", "y"]),
    ),
    st.tuples(st.just("unregister"), brokers, st.none()),
    st.tuples(st.just("remove_lost"), st.sampled_from(["x", "y"]), st.none()),
    st.tuples(st.just("delete"), st.sampled_from(["T", "U"]), st.sampled_from([None, "C"])),
    st.tuples(st.just("expire"), st.integers(0, 300_000), st.none()),
)


@given(st.lists(steps, max_size=25))
def test_whatever_happens_the_tables_agree(history: list[tuple[str, object, object]]) -> None:
    table = RouteTable()
    for step, subject, detail in history:
        try:
            if step == "register":
                register(table, subject, str(detail))  # type: ignore[arg-type]
            elif step == "delete":
                table.delete_topic(subject, detail)  # type: ignore[arg-type]
            elif step == "unregister":
                table.unregister(subject, owner="x")  # type: ignore[arg-type]
            else:
                getattr(table, step)(subject)
        except Fault:
            continue
        finally:
            check_agreement(table)
    table.remove_lost("x")
    table.remove_lost("y")
    assert table.topics() == []
    assert table._queues.entries == 0
    assert not table._owned
    assert not table._hosts
    assert not table._queues._served


def check_agreement(table: RouteTable) -> None:
    info, _ = table.cluster_info()
    addresses = [a for each in info.broker_addr_table.values() for a in each.broker_addrs.values()]
    assert len(addresses) == len(set(addresses))
    assert set(addresses) == set(table._live)
    assert all(each.broker_addrs for each in info.broker_addr_table.values())
    entries = 0
    for topic in table.topics():
        found = table.route(topic)
        assert found is not None
        assert found.route.broker_datas
        entries += len(found.route.queue_datas)
    assert entries == table._queues.entries
