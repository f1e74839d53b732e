"""Ranges are narrowed by store time without losing a message, whatever brokers guess."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from rocketpost.spark.source.plan import Bounds, Offsets, QueueKey, Range
from rocketpost.spark.source.predicates import NumberBounds
from rocketpost.spark.source.time_bounds import StoredMessage, find_first_since, narrow_by_time

QUEUE = QueueKey("T", "a", 0)


class FakeTimes:
    """One queue: store times by offset, with gaps, and a search that says anything at all."""

    def __init__(self, stored: dict[int, int], guesses: list[int] | None = None) -> None:
        self._stored = stored
        self._guesses = guesses

    def search_offsets(self, queues: Iterable[QueueKey], ms: dict[QueueKey, int]) -> Offsets:
        return {queue: self._guess(ms[queue]) for queue in queues}

    def read_stored(self, offsets: Offsets) -> dict[QueueKey, StoredMessage | None]:
        return {queue: self._first(offset) for queue, offset in offsets.items()}

    def _guess(self, ms: int) -> int:
        if self._guesses is not None:
            return self._guesses.pop()
        later = [offset for offset, at in self._stored.items() if at >= ms]
        return min(later, default=max(self._stored, default=-1) + 1)

    def _first(self, at: int) -> StoredMessage | None:
        offset = min((each for each in self._stored if each >= at), default=None)
        return None if offset is None else StoredMessage(offset, self._stored[offset])


bounds = st.one_of(st.none(), st.integers(0, 60))


@given(
    gaps=st.lists(st.integers(1, 3), max_size=30),
    steps=st.lists(st.integers(0, 4), min_size=30, max_size=30),
    shifts=st.lists(st.integers(0, 5), min_size=30, max_size=30),
    guesses=st.lists(st.integers(0, 70), min_size=2, max_size=2),
    low=bounds,
    high=bounds,
)
def test_no_message_stored_at_that_time_is_left_out(
    gaps: list[int],
    steps: list[int],
    shifts: list[int],
    guesses: list[int],
    low: int | None,
    high: int | None,
) -> None:
    # Time goes on by steps, and a clock shows up to 5 ms less.
    stored: dict[int, int] = {}
    offset, now = 0, 10
    for gap, step, shift in zip(gaps, steps, shifts, strict=False):
        offset, now = offset + gap, now + step
        stored[offset] = now - shift
    wanted = NumberBounds(low, high)
    whole = [Range(QUEUE, 1, offset + 1)]
    expected = {at for at, ms in stored.items() if wanted.admits(ms)}
    for times in (FakeTimes(stored, guesses), FakeTimes(stored)):
        found = narrow_by_time(times, whole, wanted, step_ms=5)
        assert expected <= {at for piece in found for at in range(piece.start, piece.end)}
        assert all(piece.start >= 1 and piece.end <= offset + 1 for piece in found)


def test_a_sound_clock_narrows_the_range_to_the_query_plus_one_step() -> None:
    times = FakeTimes({offset: 1000 + 10 * offset for offset in range(1000)})
    found = narrow_by_time(times, [Range(QUEUE, 0, 1000)], NumberBounds(5000, 6000), step_ms=100)
    assert found == [Range(QUEUE, 390, 512)]


def test_equal_milliseconds_stay_together() -> None:
    times = FakeTimes({offset: 5 + offset // 10 for offset in range(40)})
    found = narrow_by_time(times, [Range(QUEUE, 0, 40)], NumberBounds(7, 7), step_ms=0)
    assert found == [Range(QUEUE, 10, 31)]


def test_without_a_time_no_broker_is_asked() -> None:
    piece = Range(QUEUE, 3, 9)
    assert narrow_by_time(FakeTimes({}, []), [piece], NumberBounds(), step_ms=5) == [piece]


@given(
    gaps=st.lists(st.integers(1, 3), max_size=40),
    steps=st.lists(st.integers(0, 2), min_size=40, max_size=40),
    guess=st.integers(-5, 130),
    ms=st.integers(0, 90),
)
def test_the_first_message_since_a_time_whatever_brokers_say(
    gaps: list[int], steps: list[int], guess: int, ms: int
) -> None:
    stored = dict(zip(accumulate(gaps), accumulate(steps), strict=False))
    bound = Bounds(min(stored, default=4), max(stored, default=3) + 1)
    found = find_first_since(FakeTimes(stored, [guess]), {QUEUE: bound}, {QUEUE: ms})[QUEUE]
    assert bound.first <= found <= bound.end
    assert [at for at in stored if at >= found] == [at for at in stored if stored[at] >= ms]


class CountingTimes(FakeTimes):
    """Counts how often messages are looked at."""

    looks = 0

    def read_stored(self, offsets: Offsets) -> dict[QueueKey, StoredMessage | None]:
        self.looks += 1
        return super().read_stored(offsets)


def test_a_correct_time_search_needs_two_checks_and_a_wrong_one_few() -> None:
    stored = {at: 1000 + at // 1000 for at in range(5000)}  # a thousand in each millisecond
    for guess, looks in ((2000, 2), (1999, 5), (2001, 5), (2999, 40), (0, 40), (5000, 40)):
        times = CountingTimes(stored, [guess])
        assert find_first_since(times, {QUEUE: Bounds(0, 5000)}, {QUEUE: 1002}) == {QUEUE: 2000}
        assert times.looks <= looks, guess


def test_trap_a_batch_is_one_record_that_begins_before_the_offset() -> None:
    class Batched(FakeTimes):
        def _first(self, at: int) -> StoredMessage | None:
            return StoredMessage(at // 4 * 4, 1000 + at // 4) if at < 40 else None

    found = find_first_since(Batched({}, [21]), {QUEUE: Bounds(0, 40)}, {QUEUE: 1005})
    assert found == {QUEUE: 20}
