from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketpost.client.allocation import AllocationStrategy, Average, AverageByCircle
from rocketpost.model.route import MessageQueue

STRATEGIES: list[AllocationStrategy] = [Average(), AverageByCircle()]


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("b", queue_id, "T") for queue_id in range(count)]


def shares(strategy: AllocationStrategy, count: int, members: int) -> list[list[int]]:
    names = sorted(f"client{n:03}" for n in range(members))
    return [[q.queue_id for q in strategy(name, queues(count), names)] for name in names]


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


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_a_client_that_is_no_member_gets_nothing(strategy: AllocationStrategy) -> None:
    assert strategy("stranger", queues(4), ["a", "b"]) == []


@settings(deadline=None)  # a busy machine is no failure
@given(
    strategy=st.sampled_from(STRATEGIES),
    count=st.integers(1, 50),
    members=st.integers(1, 50),
)
def test_every_queue_has_exactly_one_owner(
    strategy: AllocationStrategy, count: int, members: int
) -> None:
    owned = [queue_id for share in shares(strategy, count, members) for queue_id in share]
    assert sorted(owned) == list(range(count))
