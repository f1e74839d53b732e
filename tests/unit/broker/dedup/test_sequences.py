from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.broker.dedup.sequences import SequenceSet


@given(st.lists(st.integers(0, 60)))
def test_the_numbers_form_a_set(numbers: list[int]) -> None:
    seen = SequenceSet()
    for number in numbers:
        seen.add(number, runs_max=100)
    assert [n for n in range(-1, 62) if n in seen] == sorted(set(numbers))
    assert seen.last == max(numbers, default=None)
    assert SequenceSet(seen.runs).runs == seen.runs
    for (_, end), (start, _) in zip(seen.runs, seen.runs[1:], strict=False):
        assert end < start


@given(st.lists(st.integers(0, 200)), st.integers(1, 5))
def test_with_too_many_runs_the_lowest_is_forgotten(numbers: list[int], runs_max: int) -> None:
    seen = SequenceSet()
    added: set[int] = set()
    for number in numbers:
        if number >= seen.horizon:
            seen.add(number, runs_max=runs_max)
            added.add(number)
        assert len(seen) <= runs_max
    for number in range(seen.horizon, 201):
        assert (number in seen) == (number in added)


def test_consecutive_numbers_are_one_run() -> None:
    seen = SequenceSet()
    for number in range(1000):
        seen.add(number, runs_max=1)
    assert seen.runs == [(0, 1000)]


@pytest.mark.parametrize("runs", [[(5, 5)], [(0, 3), (3, 4)], [(4, 6), (1, 2)]])
def test_impossible_runs_are_refused(runs: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="does not follow"):
        SequenceSet(runs)
    with pytest.raises(ValueError, match="does not follow"):
        SequenceSet([(1, 2)], horizon=5)
