"""Sets of mostly consecutive sequence numbers, kept as runs; usually one run is enough.

A set with too many runs drops its lowest run and keeps only the end of it as its horizon. Nothing
is known about numbers below the horizon: they may have been seen or not.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable


class SequenceSet:
    """Numbers seen, as runs [start, end).

    Args:
        runs: The runs seen before, ascending and disjoint.
        horizon: Numbers below it are unknown.
    """

    __slots__ = ("_ends", "_starts", "horizon")

    def __init__(self, runs: Iterable[tuple[int, int]] = (), horizon: int = 0) -> None:
        self._starts = array("q")
        self._ends = array("q")
        self.horizon = horizon
        end_before = horizon - 1
        for start, end in runs:
            if not end_before < start < end:
                raise ValueError(f"the run [{start}, {end}) does not follow {end_before}")
            self._starts.append(start)
            self._ends.append(end)
            end_before = end

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._starts)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    @property
    def last(self) -> int | None:
        """The highest number in the set."""
        return self._ends[-1] - 1 if self._ends else None

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The runs, ascending."""
        return list(zip(self._starts, self._ends, strict=True))

    def forget_below_first(self) -> None:
        """Note that numbers below the first known one may have been stored too."""
        if self._starts:
            self.horizon = max(self.horizon, self._starts[0])

    def add(self, number: int, *, runs_max: int) -> None:
        """Add a number that is not below the horizon."""
        starts, ends = self._starts, self._ends
        if ends and ends[-1] == number:
            ends[-1] = number + 1
            return
        at = bisect_right(starts, number)
        if at and number < ends[at - 1]:
            return
        follows = at > 0 and ends[at - 1] == number
        precedes = at < len(starts) and starts[at] == number + 1
        if follows and precedes:
            ends[at - 1] = ends[at]
            del starts[at], ends[at]
        elif follows:
            ends[at - 1] = number + 1
        elif precedes:
            starts[at] = number
        else:
            starts.insert(at, number)
            ends.insert(at, number + 1)
            if len(starts) > runs_max:
                self.horizon = ends[0]
                del starts[0], ends[0]
