from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketpost.model.histogram import Histogram


def test_a_value_that_equals_a_bound_counts_below_it() -> None:
    histogram = Histogram((1, 3))
    for value in (0, 1, 1.5, 3, 4):
        histogram.add(value)
    assert histogram.counts == [2, 2, 1]
    assert (histogram.count, histogram.sum) == (5, 9.5)


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(1, 5))))
def test_equal_values_count_as_if_they_were_added_one_by_one(
    added: list[tuple[int, int]],
) -> None:
    at_once, singly = Histogram((2, 5, 7)), Histogram((2, 5, 7))
    for value, count in added:
        at_once.add(value, count)
        for _ in range(count):
            singly.add(value)
    assert (at_once.counts, at_once.sum) == (singly.counts, singly.sum)


def test_the_values_of_two_histograms_are_added() -> None:
    one, other = Histogram((2, 5)), Histogram((2, 5))
    one.add(1, 3)
    other.add(7)
    both = one + other
    assert (both.counts, both.sum) == ([3, 0, 1], 10)
    assert (one.counts, other.counts) == ([3, 0, 0], [0, 0, 1])
