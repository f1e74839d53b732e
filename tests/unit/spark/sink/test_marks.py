"""The offsets where messages of a batch may be, by what is known of a queue."""

from __future__ import annotations

import pytest

from rocketpost.errors import ConfigError
from rocketpost.model.names import group_problem
from rocketpost.spark.sink.marks import UNMARKED_MAX, QueueMarks, mark_group, plan_search
from rocketpost.spark.source.plan import Bounds, QueueKey, Range

QUEUE = QueueKey("T", "a", 0)
OTHER = QueueKey("T", "a", 1)


def test_a_batch_uses_the_mark_of_the_previous_batch() -> None:
    stand = QueueMarks(marks=(10, 20), bounds=Bounds(0, 30))
    assert stand.search_bounds(3) == Bounds(10, 30)  # batch 2 left it
    assert stand.search_bounds(4) == Bounds(20, 30)  # batch 3 left it
    assert stand.search_bounds(0) == Bounds(20, 30)  # what was there when the sink began


def test_nothing_is_searched_if_nothing_was_stored_since_the_mark() -> None:
    assert plan_search({QUEUE: QueueMarks((30, 30), Bounds(0, 30))}, 5) == []


@pytest.mark.parametrize(
    ("mark", "bounds", "start"),
    [
        (0, Bounds(0, 30), 0),  # lost, or never there
        (5, Bounds(10, 30), 10),  # deleted meanwhile
        (31, Bounds(0, 30), 0),  # of a topic that was made anew
        (31, Bounds(4, 30), 4),
    ],
)
def test_an_invalid_mark_makes_the_search_longer(mark: int, bounds: Bounds, start: int) -> None:
    assert plan_search({QUEUE: QueueMarks((mark, mark), bounds)}, 5) == [Range(QUEUE, start, 30)]


def test_a_long_search_without_a_mark_must_be_asked_for() -> None:
    half = UNMARKED_MAX // 2 + 1
    stands = {queue: QueueMarks((0, half), Bounds(0, half)) for queue in (QUEUE, OTHER)}
    with pytest.raises(ConfigError, match=f"{2 * half} messages.*scanSince=") as raised:
        plan_search(stands, 5)
    assert "no mark in T" in str(raised.value)
    assert len(plan_search(stands, 5, is_bounded=True)) == 2
    assert plan_search(stands, 4) == []


def test_every_sink_has_its_own_groups() -> None:
    assert mark_group("orders", 0) == "SPARK_SINK_orders_0"
    strange = [mark_group(name, 1) for name in ("a/b", "a b", "ü" * 300)]
    assert len(set(strange)) == 3
    assert [group_problem(name) for name in strange] == [None] * 3
