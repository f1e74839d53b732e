"""What is left of ranges by store time. Decides and asks; what brokers say is checked.

Brokers search by time as if the clocks of a queue only went forward, some return a neighbour, and
equal milliseconds may lie on either side. So an answer is a guess. It counts only if the message at
the border proves it: clocks are taken to step back by ``step_ms`` at most, and then everything
before a message stored at ``t`` was stored by ``t + step_ms``, and everything after it not before
``t - step_ms``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from rocketpost.spark.source.plan import Bounds, Offsets, QueueKey, Range
from rocketpost.spark.source.predicates import Numbers


class Stored(NamedTuple):
    """A message, and when it was stored."""

    offset: int
    store_ms: int


class Times(Protocol):
    """What brokers know about store times."""

    def at_time(self, queues: Iterable[QueueKey], ms: dict[QueueKey, int]) -> Offsets:
        """Return about the first offset stored at a time or later, for each queue."""

    def stored(self, offsets: Offsets) -> dict[QueueKey, Stored | None]:
        """Return the first message at an offset or behind it, for each queue."""


def first_since(
    times: Times, bounds: Mapping[QueueKey, Bounds], ms: Mapping[QueueKey, int]
) -> Offsets:
    """Return the first offset stored at a time or later, for each queue; its end if none was.

    Brokers of RocketMQ 4 return the nearest message, and any of several of one millisecond. So the
    messages around what they say are looked at, and further ones as long as that is wrong.

    Args:
        times: Who knows.
        bounds: What each queue has.
        ms: The time for each queue, in milliseconds.
    """
    guesses = times.at_time(bounds, dict(ms))
    # Everything before the first of these is older; nothing from the second on is.
    low = {queue: bound.first for queue, bound in bounds.items()}
    high = {queue: bound.end for queue, bound in bounds.items()}
    attempt = 0
    while unsettled := [queue for queue in bounds if low[queue] < high[queue]]:
        reach = 1 << attempt // 2
        at = {
            queue: _probe(bounds[queue], low[queue], high[queue], guesses[queue], reach)
            for queue in unsettled
        }
        for queue, found in times.stored(at).items():
            if found is None or found.offset >= high[queue] or found.store_ms >= ms[queue]:
                high[queue] = at[queue]
            else:
                low[queue] = max(at[queue], found.offset) + 1
        attempt += 1
    return low


def _probe(bound: Bounds, low: int, high: int, guess: int, reach: int) -> int:
    """Return at which offset to look next: beside a guess, ever further, then between the two."""
    if low > bound.first and high < bound.end:
        return (low + high) // 2
    if low < guess:
        return max(low, min(guess, high) - reach)
    return min(high - 1, max(guess, low) + reach - 1)


def narrowed(times: Times, pieces: list[Range], wanted: Numbers, *, step_ms: int) -> list[Range]:
    """Return what of ranges may have been stored at the times wanted.

    Args:
        times: Who knows.
        pieces: What there is to read.
        wanted: Store times, in milliseconds.
        step_ms: How far clocks may have stepped back.
    """
    queues = {piece.queue for piece in pieces}
    starts, ends = {}, {}
    if wanted.low is not None and wanted.low - step_ms > 1:
        starts = _starts(times, queues, wanted.low - step_ms)
    if wanted.high is not None:
        ends = _ends(times, queues, max(wanted.high + step_ms, 0))
    return [
        Range(piece.queue, start, end)
        for piece in pieces
        if (start := max(piece.start, starts.get(piece.queue, piece.start)))
        < (end := min(piece.end, ends.get(piece.queue, piece.end)))
    ]


def _starts(times: Times, queues: Iterable[QueueKey], ms: int) -> Offsets:
    """Return offsets before which everything was stored before ``ms``, or almost."""
    guesses = times.at_time(queues, dict.fromkeys(queues, ms - 1))
    before = {queue: guess - 1 for queue, guess in guesses.items() if guess > 0}
    return {
        queue: guesses[queue]
        for queue, found in times.stored(before).items()
        if found is not None and found.offset == before[queue] and found.store_ms < ms
    }


def _ends(times: Times, queues: Iterable[QueueKey], ms: int) -> Offsets:
    """Return offsets from which on everything was stored after ``ms``, or almost."""
    guesses = times.at_time(queues, dict.fromkeys(queues, ms + 1))
    # The guess may be the last one at that time, not the first one after it.
    after = {queue: guess + 1 for queue, guess in guesses.items()}
    return {
        queue: after[queue]
        for queue, found in times.stored(after).items()
        if found is not None and found.store_ms > ms
    }
