from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketpost.client import (
    AllocationStrategy,
    Average,
    AverageByCircle,
    ByConfiguration,
    ConfigError,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
    MessageQueue,
)

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "allocation.json").read_text())


class Rooms:
    """A room is what stands before the first at sign."""

    def queue_room(self, queue: MessageQueue) -> str:
        return queue.broker_name.split("@")[0]

    def member_room(self, client_id: str) -> str:
        return client_id.split("@")[0]


COMPLETE: list[AllocationStrategy] = [
    Average(),
    AverageByCircle(),
    ConsistentHash(),
    ConsistentHash(1),
    MachineRoom(["hall", "shed", "attic"]),
    MachineRoomNearby(Average(), Rooms()),
    MachineRoomNearby(ConsistentHash(), Rooms()),
]


def strategy_of(case: dict[str, Any]) -> AllocationStrategy:
    if case["strategy"] == "CONSISTENT_HASH":
        return ConsistentHash(case.get("nodes", 10))
    if case["strategy"] == "MACHINE_ROOM":
        return MachineRoom(case["rooms"].split(","))
    return next(each for each in COMPLETE if each.name == case["strategy"])


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("hall@b", queue_id, "T") for queue_id in range(count)]


def shares(strategy: AllocationStrategy, count: int, members: int) -> list[list[int]]:
    names = sorted(f"client{n:03}" for n in range(members))
    return [[q.queue_id for q in strategy(name, queues(count), names)] for name in names]


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["strategy"])
def test_shares_are_those_of_the_java_client(case: dict[str, Any]) -> None:
    all_queues = [
        MessageQueue(broker, int(queue_id), GOLDEN["topic"])
        for broker, _, queue_id in (text.rpartition(":") for text in case["queues"])
    ]
    strategy = strategy_of(case)
    assert strategy.name == case["strategy"]
    computed = [strategy(member, all_queues, case["members"]) for member in case["members"]]
    assert computed == [[all_queues[at] for at in share] for share in case["shares"]]


@pytest.mark.parametrize(
    ("count", "members", "sizes"),
    [
        (5, 2, [3, 2]),
        (6, 3, [2, 2, 2]),
        (20, 6, [4, 4, 3, 3, 3, 3]),
        (10, 20, [1] * 10 + [0] * 10),
    ],
)
def test_average_gives_the_sizes_that_java_gives(
    count: int, members: int, sizes: list[int]
) -> None:
    assert [len(share) for share in shares(Average(), count, members)] == sizes


def test_average_gives_blocks_and_circle_deals() -> None:
    assert shares(Average(), 8, 3) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert shares(AverageByCircle(), 8, 3) == [[0, 3, 6], [1, 4, 7], [2, 5]]


@pytest.mark.parametrize("strategy", COMPLETE, ids=lambda strategy: strategy.name)
def test_a_client_that_is_no_member_gets_nothing(strategy: AllocationStrategy) -> None:
    assert strategy("stranger", queues(4), ["a", "b"]) == []


members_of_rooms = st.lists(
    st.builds("{}@{}".format, st.sampled_from(["hall", "shed", "cellar"]), st.integers(0, 99)),
    min_size=1,
    max_size=20,
    unique=True,
).map(sorted)
queues_of_rooms = st.lists(
    st.builds(
        MessageQueue,
        st.sampled_from(["hall@a", "hall@b", "shed@c", "attic@d"]),
        st.integers(0, 15),
        st.just("T"),
    ),
    min_size=1,
    max_size=40,
    unique=True,
).map(lambda found: sorted(found, key=lambda queue: queue.sort_key))


@settings(deadline=None)  # a busy machine is no failure
@given(strategy=st.sampled_from(COMPLETE), all_queues=queues_of_rooms, members=members_of_rooms)
def test_every_queue_has_exactly_one_owner(
    strategy: AllocationStrategy, all_queues: list[MessageQueue], members: list[str]
) -> None:
    owned = [queue for member in members for queue in strategy(member, all_queues, members)]
    assert sorted(owned, key=lambda queue: queue.sort_key) == all_queues


@settings(deadline=None)
@given(all_queues=queues_of_rooms, members=members_of_rooms)
def test_on_the_ring_a_member_that_leaves_moves_its_own_queues_only(
    all_queues: list[MessageQueue], members: list[str]
) -> None:
    strategy, gone = ConsistentHash(), members[0]
    for member in members[1:]:
        before = strategy(member, all_queues, members)
        after = strategy(member, all_queues, [each for each in members if each != gone])
        assert set(before) <= set(after)


def test_configured_queues_are_given_topic_by_topic() -> None:
    mine = [MessageQueue("b", 2, "T"), MessageQueue("b", 1, "U")]
    strategy = ByConfiguration(mine)
    assert strategy("me", queues(4), ["me", "you"]) == [mine[0]]
    assert ByConfiguration()("me", queues(4), ["me"]) == []


def test_a_room_that_nobody_knows_is_an_error() -> None:
    strategy = MachineRoomNearby(Average(), Rooms())
    with pytest.raises(ConfigError):
        strategy("@1", queues(1), ["@1"])
    with pytest.raises(ConfigError):
        ConsistentHash(0)
