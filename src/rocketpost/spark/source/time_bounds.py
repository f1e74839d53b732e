"""Ranges bounded by store time, with answers of brokers that are checked.

Brokers search by time as if the clocks of a queue only went forward. Some return an adjacent
message, and messages of the same millisecond may be on either side. So an answer is a guess, which
is used only if the message at the boundary proves it. Clocks may step back by ``step_ms`` at most.
Then all messages before one stored at ``t`` were stored by ``t + step_ms``, and all
messages after it not before ``t - step_ms``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from rocketpost.spark.source.plan import Bounds, Offsets, QueueKey, Range
from rocketpost.spark.source.predicates import NumberBounds


class StoredMessage(NamedTuple):
    """The offset and the store time of a message."""

    offset: int
    store_ms: int


class StoreTimes(Protocol):
    """Questions to brokers about store times."""

    def search_offsets(self, queues: Iterable[QueueKey], ms: dict[QueueKey, int]) -> Offsets:
        """Return roughly the first offset stored at a time or later, for each queue."""

    def read_stored(self, offsets: Offsets) -> dict[QueueKey, StoredMessage | None]:
        """Return the first message at an offset or after it, for each queue."""


def find_first_since(
    times: StoreTimes, bounds: Mapping[QueueKey, Bounds], ms: Mapping[QueueKey, int]
) -> Offsets:
    """Return the first offset stored at a time or later, for each queue; its end if none was.

    Brokers of RocketMQ 4 return the nearest message, and any of several of one millisecond. So the
    messages around their answer are read, and more distant ones until the answer is proven.

    Args:
        times: Answers about store times.
        bounds: The first and the end offset of each queue.
        ms: The time for each queue, in milliseconds.
    """
    guesses = times.search_offsets(bounds, dict(ms))
    # All messages before ``low`` are older; no message from ``high`` on is.
    low = {queue: bound.first for queue, bound in bounds.items()}
    high = {queue: bound.end for queue, bound in bounds.items()}
    attempt = 0
    while unsettled := [queue for queue in bounds if low[queue] < high[queue]]:
        reach = 1 << attempt // 2
        at = {
            queue: _choose_probe(bounds[queue], low[queue], high[queue], guesses[queue], reach)
            for queue in unsettled
        }
        for queue, found in times.read_stored(at).items():
            if found is None or found.offset >= high[queue] or found.store_ms >= ms[queue]:
                high[queue] = at[queue]
            else:
                low[queue] = max(at[queue], found.offset) + 1
        attempt += 1
    return low


def _choose_probe(bound: Bounds, low: int, high: int, guess: int, reach: int) -> int:
    """Return the offset to read next: ever further from the guess, then by bisection."""
    if low > bound.first and high < bound.end:
        return (low + high) // 2
    if low < guess:
        return max(low, min(guess, high) - reach)
    return min(high - 1, max(guess, low) + reach - 1)


def narrow_by_time(
    times: StoreTimes, ranges: list[Range], wanted: NumberBounds, *, step_ms: int
) -> list[Range]:
    """Return the parts of ranges that may have been stored within time bounds.

    Args:
        times: Answers about store times.
        ranges: The ranges to read.
        wanted: Bounds of store times, in milliseconds.
        step_ms: The most that clocks may have stepped back.
    """
    queues = {each.queue for each in ranges}
    starts, ends = {}, {}
    if wanted.low is not None and wanted.low - step_ms > 1:
        starts = _find_starts(times, queues, wanted.low - step_ms)
    if wanted.high is not None:
        ends = _find_ends(times, queues, max(wanted.high + step_ms, 0))
    return [
        Range(each.queue, start, end)
        for each in ranges
        if (start := max(each.start, starts.get(each.queue, each.start)))
        < (end := min(each.end, ends.get(each.queue, each.end)))
    ]


def _find_starts(times: StoreTimes, queues: Iterable[QueueKey], ms: int) -> Offsets:
    """Return offsets whose earlier messages were stored before ``ms``, as far as clocks allow."""
    guesses = times.search_offsets(queues, dict.fromkeys(queues, ms - 1))
    before = {queue: guess - 1 for queue, guess in guesses.items() if guess > 0}
    return {
        queue: guesses[queue]
        for queue, found in times.read_stored(before).items()
        if found is not None and found.offset == before[queue] and found.store_ms < ms
    }


def _find_ends(times: StoreTimes, queues: Iterable[QueueKey], ms: int) -> Offsets:
    """Return offsets from which on messages were stored after ``ms``, as far as clocks allow."""
    guesses = times.search_offsets(queues, dict.fromkeys(queues, ms + 1))
    # The guess may be the last message at that time, not the first one after it.
    after = {queue: guess + 1 for queue, guess in guesses.items()}
    return {
        queue: after[queue]
        for queue, found in times.read_stored(after).items()
        if found is not None and found.store_ms > ms
    }
