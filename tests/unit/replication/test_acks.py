"""Replicas are counted, not connections."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.errors import ReplicationError
from rocketpost.replication.acks import POSITION_MAX, ReplicaAcks


def test_positions_by_number_of_slaves() -> None:
    acks = ReplicaAcks()
    for number, position in enumerate((50, 300, 200)):
        acks.add(number, f"10.0.0.{number}", number + 1, 0)
        acks.report(number, position, 0)
    assert [acks.position_of(count) for count in range(5)] == [POSITION_MAX, 300, 200, 50, 0]
    assert acks.in_sync(300, 100) == 1
    assert acks.in_sync(300, 101) == 2
    assert acks.in_sync(300, 1000) == 3
    acks.remove(1)
    acks.remove(1)
    assert [acks.position_of(count) for count in (1, 2, 3)] == [200, 50, 0]


def test_a_slave_counts_with_its_first_report() -> None:
    acks = ReplicaAcks()
    acks.add("a", "10.0.0.1", 1, 0)
    assert acks.in_sync(0, 100) == 0
    acks.report("a", 0, 0)
    assert acks.in_sync(0, 100) == 1


def test_a_broker_id_counts_once_with_its_youngest_connection() -> None:
    acks = ReplicaAcks()
    acks.add("old", "10.0.0.1", 1, 0)
    acks.report("old", 100, 0)
    acks.add("new", "10.0.0.2", 1, 10)  # another address of the same broker
    assert acks.position_of(1) == 0
    acks.report("new", 80, 10)  # it was restarted, and has lost something
    acks.report("old", 120, 60_000)
    assert [acks.position_of(count) for count in (1, 2)] == [80, 0]
    acks.remove("new")
    assert acks.position_of(1) == 0
    acks.report("old", 130, 60_001)
    assert [acks.position_of(count) for count in (1, 2)] == [130, 0]


def test_a_dead_connection_of_a_foreign_slave_does_not_count_beside_its_successor() -> None:
    acks = ReplicaAcks(settle_ms=1000)
    acks.add("old", "10.0.0.1", None, 0)
    acks.report("old", 100, 0)
    assert acks.position_of(1) == 100
    acks.add("new", "10.0.0.1", None, 5000)
    acks.report("old", 110, 5999)  # was sent before its end, and read late
    acks.report("new", 90, 5999)
    assert [acks.position_of(count) for count in (1, 2)] == [90, 0]


def test_two_foreign_slaves_of_one_host_count_once_both_have_reported() -> None:
    acks = ReplicaAcks(settle_ms=1000)
    acks.add("one", "10.0.0.1", None, 0)
    acks.add("two", "10.0.0.1", None, 100)
    acks.report("one", 100, 1099)
    acks.report("two", 90, 1099)
    assert acks.position_of(2) == 0
    acks.report("one", 100, 1100)
    assert acks.position_of(2) == 90
    acks.add("elsewhere", "10.0.0.2", None, 1200)
    acks.add("ours", "10.0.0.1", 3, 1200)  # has a name, so it is not one of those
    assert acks.position_of(2) == 90


def test_a_slave_that_cannot_be_served_does_not_count() -> None:
    acks = ReplicaAcks()
    acks.add("a", "10.0.0.1", 1, 0)
    acks.report("a", 50, 0)
    acks.report("a", 50, 0, is_stuck=True)
    assert acks.in_sync(50, 100) == 0
    assert acks.position_of(1) == 0
    assert acks.silent(10, 20) == []


def test_silent_connections() -> None:
    acks = ReplicaAcks()
    acks.add("a", "10.0.0.1", None, 0)
    acks.add("b", "10.0.0.2", None, 0)
    acks.report("b", 0, 1)
    assert acks.silent(20_000, 20_000) == []
    assert acks.silent(20_001, 20_000) == ["a"]
    assert acks.silent(20_002, 20_000) == ["a", "b"]


def test_a_slave_that_has_less_than_before_is_refused() -> None:
    acks = ReplicaAcks()
    acks.add("a", "10.0.0.1", None, 0)
    acks.report("a", 100, 0)
    with pytest.raises(ReplicationError, match="has 99 after 100"):
        acks.report("a", 99, 0)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["connect", "report", "lose"]), st.integers(0, 5)), max_size=60
    )
)
def test_never_more_replicas_than_slaves(steps: list[tuple[str, int]]) -> None:
    """Three slaves of ours, each with any number of connections, dead or alive."""
    acks = ReplicaAcks()
    connections: list[tuple[int, int]] = []
    for number, (step, choice) in enumerate(steps):
        if step == "connect":
            connections.append((number, choice % 3))
            acks.add(number, "10.0.0.1", choice % 3, number)
        elif step == "report" and connections:
            acks.report(connections[choice % len(connections)][0], number, number)
        elif connections:
            acks.remove(connections.pop(choice % len(connections))[0])
        live = {slave for _, slave in connections}
        assert acks.in_sync(0, 1) <= len(live)
        assert acks.position_of(len(live) + 1) == 0
