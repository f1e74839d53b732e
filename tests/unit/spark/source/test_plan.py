"""Offsets in, ranges out: nothing twice, nothing left out."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketpost.errors import ConfigError
from rocketpost.spark.source import plan
from rocketpost.spark.source.plan import Bounds, Offsets, QueueKey, Range

A0, A1, B0 = QueueKey("T", "a", 0), QueueKey("T", "a", 1), QueueKey("T", "b", 0)
queues = st.builds(QueueKey, st.sampled_from("TU"), st.sampled_from("ab"), st.integers(0, 12))
offsets = st.dictionaries(queues, st.integers(0, 10_000), max_size=12)


@settings(deadline=None)
@given(offsets)
def test_offsets_survive_json(some: Offsets) -> None:
    assert plan.flatten_offsets(json.loads(json.dumps(plan.nest_offsets(some))), what="it") == some


@settings(deadline=None)
@given(offsets)
def test_equal_offsets_are_equal_text(some: Offsets) -> None:
    shuffled = dict(reversed(list(some.items())))
    assert json.dumps(plan.nest_offsets(some)) == json.dumps(plan.nest_offsets(shuffled))


@pytest.mark.parametrize("value", [[], {"T": 1}, {"T": {"a": {"x": 1}}}, {"T": {"a": {"0": "1"}}}])
def test_other_json_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(ConfigError, match="startingOffsets must look like"):
        plan.flatten_offsets(value, what="startingOffsets")


def test_queues_are_described_by_broker() -> None:
    some = [QueueKey("T", broker, at) for broker in "cab" for at in (0, 1, 2, 5)]
    assert plan.describe_queues(some[:3]) == "queues 0-2 of T on c"
    assert plan.describe_queues(some[:8]) == "queues 0-2, 5 of T on a, queues 0-2, 5 of T on c"
    many = [QueueKey("T", f"b{at}", 3) for at in range(9)]
    assert plan.describe_queues(many).startswith("queue 3 of T on b0, queue 3 of T on b1, ")
    assert plan.describe_queues(many).endswith(" and others on 5 brokers")


def test_the_first_end_carries_the_start_that_it_belongs_to() -> None:
    first = plan.initial_json({A0: 5})
    end = plan.end_json(first, {A0: 9})
    later = plan.initial_json({A0: 7})  # asked again after a restart, when latest has moved on
    assert plan.range_start(first, end) == {A0: 5}
    assert plan.range_start(later, end) == {A0: 5}


def test_a_later_end_carries_no_start() -> None:
    end = plan.end_json(plan.initial_json({A0: 5}), {A0: 9})
    following = plan.end_json(end, {A0: 12})
    assert "base" not in following
    assert plan.range_start(end, following) == {A0: 9}


def test_an_offset_of_another_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="not written by this source"):
        plan.checkpoint_offsets({"v": 2, "queues": {}})


@settings(deadline=None)
@given(offsets, st.dictionaries(queues, st.integers(0, 10_000), max_size=12), st.integers(1, 9999))
def test_admission_moves_every_backlog_and_nothing_too_far(
    start: Offsets, available: Offsets, count_max: int
) -> None:
    ends = plan.limit_ends(start, available, count_max)
    moved = 0
    for queue, end in ends.items():
        begun = start.get(queue, end)
        there = available.get(queue, begun)
        if there < begun:
            assert end == there  # made anew
            continue
        assert begun <= end <= there
        assert end > begun or there == begun or queue not in start
        moved += end - begun
    assert moved <= count_max + len(ends)
    assert set(ends) == set(start) | set(available)


def test_a_recreated_queue_is_reported_and_read_from_its_beginning() -> None:
    ends = plan.limit_ends({A0: 90}, {A0: 7}, None)
    found, losses = plan.plan_ranges({A0: 90}, ends, {A0: Bounds(2, 7)})
    assert found == [Range(A0, 2, 7)]
    assert "but offset 90 existed" in losses[0].text


def test_a_recreated_queue_has_no_backlog() -> None:
    assert plan.count_backlog({A0: 90, A1: 2}, {A0: 7, A1: 5}) == {A0: 0, A1: 3}


def test_without_a_limit_all_offsets_are_admitted() -> None:
    assert plan.limit_ends({A0: 1}, {A0: 9, A1: 4}, None) == {A0: 9, A1: 4}


def test_ranges_and_losses() -> None:
    start = {A0: 5, A1: 3, B0: 2}
    end = {A0: 20, A1: 10, B0: 7, QueueKey("T", "b", 1): 4}
    bounds = {A0: Bounds(8, 30), A1: Bounds(0, 6), QueueKey("T", "b", 1): Bounds(1, 4)}
    found, losses = plan.plan_ranges(start, end, bounds)
    assert found == [
        Range(A0, 8, 20),
        Range(A1, 3, 6),
        Range(QueueKey("T", "b", 1), 1, 4),
    ]
    assert [loss.queue for loss in losses] == [A0, A1, B0]
    assert "5 to 8 were deleted" in losses[0].text
    assert "created again" in losses[1].text
    assert "no longer exists" in losses[2].text


ranges_ = st.lists(
    st.builds(lambda q, s, n: Range(q, s, s + n), queues, st.integers(0, 99), st.integers(1, 5000)),
    max_size=40,
    unique_by=lambda piece: piece.queue,
)


@settings(deadline=None)
@given(
    ranges_,
    st.none() | st.integers(1, 64),
    st.none() | st.integers(1, 2000),
    st.sampled_from([0, 1, 4, 32]),
)
def test_tasks_cover_every_range_once_and_in_order(
    pieces: list[Range], count_min: int | None, records_max: int | None, count_max: int
) -> None:
    tasks = plan.plan_tasks(
        pieces, count_min=count_min, records_max=records_max, count_max=count_max
    )
    assert all(tasks)
    parts = sorted(part for task in tasks for part in task)
    for piece in pieces:
        mine = [part for part in parts if part.queue == piece.queue]
        assert mine[0].start == piece.start
        assert mine[-1].end == piece.end
        assert all(a.end == b.start for a, b in pairwise(mine))
    for task in tasks:
        assert task == sorted(task, key=lambda p: (p.queue.broker, p.queue, p.start))
    if count_max and not count_min and not records_max:
        assert len(tasks) <= count_max


def test_a_long_queue_is_split_and_short_ones_share() -> None:
    long = [Range(A0, 0, 1000)]
    assert len(plan.plan_tasks(long, count_min=4, records_max=None, count_max=32)) == 4
    short = [Range(QueueKey("T", "a", q), 0, 1) for q in range(100)]
    assert len(plan.plan_tasks(short, count_min=None, records_max=None, count_max=8)) == 8
    assert len(plan.plan_tasks(short, count_min=None, records_max=None, count_max=0)) == 100
