"""The number of slaves that a message needs: fixed, or following the replicas in sync."""

from __future__ import annotations

import pytest

from rocketpost.server.writer.replica_demand import Demand, ReplicaPolicy, demand_now


@pytest.mark.parametrize(
    ("replicas", "in_sync", "demand"),
    [
        (1, 0, Demand(0, is_enough=True)),
        (2, 0, Demand(1, is_enough=False)),
        (2, 1, Demand(1, is_enough=True)),
        (3, 1, Demand(2, is_enough=False)),
        (3, 5, Demand(2, is_enough=True)),
    ],
)
def test_a_classic_group_always_needs_the_same(replicas: int, in_sync: int, demand: Demand) -> None:
    policy = ReplicaPolicy(replicas=replicas, gap_bytes=1, adapts=True, replicas_min=3)
    assert demand_now(policy, slaves_in_sync=in_sync, alive=1) == demand, "only with acting masters"


@pytest.mark.parametrize(
    ("in_sync", "alive", "is_enough"), [(1, None, True), (1, 2, True), (1, 1, False), (0, 2, False)]
)
def test_an_acting_group_counts_replicas_that_are_alive_and_in_sync(
    in_sync: int, alive: int | None, is_enough: bool
) -> None:
    policy = ReplicaPolicy(replicas=2, gap_bytes=1, refuses=True)
    assert demand_now(policy, slaves_in_sync=in_sync, alive=alive) == Demand(1, is_enough)


@pytest.mark.parametrize(
    ("in_sync", "alive", "least", "demand"),
    [
        (2, 3, 1, Demand(2, is_enough=True)),
        (1, 3, 1, Demand(1, is_enough=True)),
        (2, 2, 1, Demand(1, is_enough=True)),
        (0, 3, 1, Demand(0, is_enough=True)),
        (0, 3, 2, Demand(1, is_enough=False)),
        (5, 9, 1, Demand(2, is_enough=True)),
        (1, 2, 4, Demand(3, is_enough=False)),
    ],
)
def test_the_demand_follows_the_replicas_in_sync_down_to_a_minimum(
    in_sync: int, alive: int, least: int, demand: Demand
) -> None:
    policy = ReplicaPolicy(replicas=3, gap_bytes=1, refuses=True, adapts=True, replicas_min=least)
    assert demand_now(policy, slaves_in_sync=in_sync, alive=alive) == demand
