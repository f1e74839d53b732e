"""Shares of queues: all are given out, none twice, and as equal as can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.model.shares import average_share, circle_share, java_order

Share = Callable[[Sequence[int], int, int], list[int]]


@pytest.mark.parametrize("share", [average_share, circle_share])
@given(queue_count=st.integers(0, 40), member_count=st.integers(1, 12))
def test_every_queue_has_one_owner(share: Share, queue_count: int, member_count: int) -> None:
    queues = list(range(queue_count))
    shares = [share(queues, index, member_count) for index in range(member_count)]
    assert sorted(queue for each in shares for queue in each) == queues
    sizes = [len(each) for each in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_blocks_and_cards() -> None:
    assert average_share("abcde", 0, 2) == ["a", "b", "c"]
    assert circle_share("abcde", 0, 2) == ["a", "c", "e"]


def test_texts_are_sorted_as_java_sorts_them() -> None:
    assert sorted(["\uffff", "\U0001f600"], key=java_order) == ["\U0001f600", "\uffff"]
