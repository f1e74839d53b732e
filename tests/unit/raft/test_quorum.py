from __future__ import annotations

import pytest

from rocketpost.raft.quorum import has_majority, majority, majority_position


@pytest.mark.parametrize(("count", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_is_more_than_half(count: int, needed: int) -> None:
    voters = [str(number) for number in range(count)]
    assert majority(voters) == needed
    assert has_majority(voters, set(voters[:needed]))
    assert not has_majority(voters, set(voters[: needed - 1]))


def test_only_voters_count() -> None:
    assert not has_majority({"a", "b", "c"}, {"a", "x", "y"})
    assert not has_majority(set(), {"a"})


def test_the_position_of_a_majority() -> None:
    positions = {"a": 30, "b": 10, "c": 20}
    assert majority_position(positions.keys(), positions.__getitem__) == 20
    positions = {"a": 30, "b": 10, "c": 20, "d": 20}
    assert majority_position(positions.keys(), positions.__getitem__) == 20
    assert majority_position([], positions.__getitem__) == 0
