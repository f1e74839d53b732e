from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rocketpost.client.consumer.offset_tracker import OffsetTracker


def tracker_with(*offsets: int) -> OffsetTracker:
    tracker = OffsetTracker(offsets[0])
    tracker.add(offsets, [10] * len(offsets))
    return tracker


def test_a_slow_message_holds_the_offset_back() -> None:
    tracker = tracker_with(*range(101, 111))
    for offset in range(102, 111):
        tracker.finish([offset])
    assert tracker.committable == 101
    assert (tracker.count, tracker.bytes_held) == (1, 10)
    tracker.finish([101])
    assert tracker.committable == 111
    assert (tracker.count, tracker.bytes_held, tracker.span) == (0, 0, 0)


def test_filtered_messages_are_skipped_once_nothing_is_in_hand() -> None:
    tracker = tracker_with(5, 6)
    tracker.skip_to(40)
    assert tracker.committable == 5
    tracker.finish([5])
    tracker.finish([6])
    assert tracker.committable == 40
    tracker.skip_to(30)
    assert tracker.committable == 40


def test_unknown_offsets_are_ignored() -> None:
    tracker = tracker_with(1, 2)
    tracker.finish([9])
    tracker.finish([2])
    tracker.finish([2])
    tracker.add([2, 3], [10, 10])
    assert tracker.count == 2
    assert not tracker.holds(2)
    assert tracker.holds(1)
    assert tracker.holds(3)
    assert tracker.next_offset == 4


@settings(deadline=None)  # a busy machine is no failure
@given(data=st.data(), offsets=st.lists(st.integers(0, 500), min_size=1, unique=True))
def test_the_offset_is_the_smallest_unfinished_one(data: st.DataObject, offsets: list[int]) -> None:
    offsets = sorted(offsets)
    tracker = tracker_with(*offsets)
    left = set(offsets)
    for offset in data.draw(st.permutations(offsets)):
        tracker.finish([offset])
        left.discard(offset)
        assert tracker.committable == (min(left) if left else offsets[-1] + 1)
        assert tracker.count == len(left)
        assert tracker.bytes_held == 10 * len(left)
