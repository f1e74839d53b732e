"""Ranges are narrowed by store time without losing a message, whatever brokers guess."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from rocketpost.spark.narrowing import Stored, narrowed
from rocketpost.spark.plan import Offsets, QueueKey, Range
from rocketpost.spark.predicates import Numbers

QUEUE = QueueKey("T", "a", 0)


class FakeTimes:
    """One queue: store times by offset, with gaps, and a search that says anything at all."""

    def __init__(self, stored: dict[int, int], guesses: list[int] | None = None) -> None:
        self._stored = stored
        self._guesses = guesses

    def at_time(self, queues: Iterable[QueueKey], ms: dict[QueueKey, int]) -> Offsets:
        return {queue: self._guess(ms[queue]) for queue in queues}

    def stored(self, offsets: Offsets) -> dict[QueueKey, Stored | None]:
        return {queue: self._first(offset) for queue, offset in offsets.items()}

    def _guess(self, ms: int) -> int:
        if self._guesses is not None:
            return self._guesses.pop()
        later = [offset for offset, at in self._stored.items() if at >= ms]
        return min(later, default=max(self._stored, default=-1) + 1)

    def _first(self, at: int) -> Stored | None:
        offset = min((each for each in self._stored if each >= at), default=None)
        return None if offset is None else Stored(offset, self._stored[offset])


bounds = st.one_of(st.none(), st.integers(0, 60))


@given(
    gaps=st.lists(st.integers(1, 3), max_size=30),
    steps=st.lists(st.integers(0, 4), min_size=30, max_size=30),
    shifts=st.lists(st.integers(0, 5), min_size=30, max_size=30),
    guesses=st.lists(st.integers(0, 70), min_size=2, max_size=2),
    low=bounds,
    high=bounds,
)
def test_nothing_that_was_stored_then_is_left_out(
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
    wanted = Numbers(low, high)
    whole = [Range(QUEUE, 1, offset + 1)]
    expected = {at for at, ms in stored.items() if wanted.admits(ms)}
    for times in (FakeTimes(stored, guesses), FakeTimes(stored)):
        found = narrowed(times, whole, wanted, step_ms=5)
        assert expected <= {at for piece in found for at in range(piece.start, piece.end)}
        assert all(piece.start >= 1 and piece.end <= offset + 1 for piece in found)


def test_a_sound_clock_narrows_to_what_was_asked_for_and_a_step() -> None:
    times = FakeTimes({offset: 1000 + 10 * offset for offset in range(1000)})
    found = narrowed(times, [Range(QUEUE, 0, 1000)], Numbers(5000, 6000), step_ms=100)
    assert found == [Range(QUEUE, 390, 512)]


def test_equal_milliseconds_stay_together() -> None:
    times = FakeTimes({offset: 5 + offset // 10 for offset in range(40)})
    found = narrowed(times, [Range(QUEUE, 0, 40)], Numbers(7, 7), step_ms=0)
    assert found == [Range(QUEUE, 10, 31)]


def test_without_a_time_nobody_is_asked() -> None:
    piece = Range(QUEUE, 3, 9)
    assert narrowed(FakeTimes({}, []), [piece], Numbers(), step_ms=5) == [piece]
