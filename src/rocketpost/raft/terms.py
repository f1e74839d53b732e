"""The terms of a log's bytes.

A leader writes one unbroken run of bytes in its term, so the terms of a whole log are a short list
of spans. Bytes before the first span have term 0: they are older than the group.

Two logs that agree about the term of one byte are equal up to and including it: only one leader
writes in a term, it writes each position once, and a follower takes bytes only after a position
where the terms agree (Log Matching). So logs are compared by their spans alone.

Invariant: terms and starts ascend strictly, and terms are positive.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from rocketpost.raft.messages import ConflictSpan, TermSpan


class TermTable:
    """Spans of one log. Belongs to the node."""

    def __init__(self, spans: Iterable[TermSpan] = ()) -> None:
        self._terms: list[int] = []
        self._starts: list[int] = []
        for span in spans:
            self.add(span)

    @property
    def spans(self) -> tuple[TermSpan, ...]:
        """All spans."""
        return tuple(map(TermSpan, self._terms, self._starts))

    @property
    def last_term(self) -> int:
        """Term of the last span; 0 if there is none."""
        return self._terms[-1] if self._terms else 0

    def add(self, span: TermSpan) -> None:
        """Add a span. A span of the last term continues the last span."""
        assert span.term > 0
        if span.term == self.last_term:
            assert span.start >= self._starts[-1]
            return
        assert span.term > self.last_term, f"{span} behind term {self.last_term}"
        assert not self._starts or span.start > self._starts[-1], f"{span} in {self.spans}"
        self._terms.append(span.term)
        self._starts.append(span.start)

    def term_before(self, position: int) -> int:
        """Return the term of the byte before a position."""
        index = bisect_left(self._starts, position) - 1
        return self._terms[index] if index >= 0 else 0

    def term_at(self, position: int) -> int:
        """Return the term of the byte at a position."""
        return self.term_before(position + 1)

    def start_of(self, term: int) -> int | None:
        """Return the first position of a term; None if the log has no bytes of it."""
        index = bisect_left(self._terms, term)
        found = index < len(self._terms) and self._terms[index] == term
        return self._starts[index] if found else None

    def cut(self, position: int) -> None:
        """Forget the spans of bytes from a position on."""
        keep = bisect_left(self._starts, position)
        del self._terms[keep:], self._starts[keep:]

    def trim(self, first: int) -> None:
        """Forget the spans that end before a position; keep that of the byte before it."""
        drop = bisect_left(self._starts, first) - 1
        if drop > 0:
            del self._terms[:drop], self._starts[:drop]

    def between(self, start: int, end: int) -> tuple[TermSpan, ...]:
        """Return the spans of the bytes ``[start, end)``; the first begins at ``start``.

        Bytes of term 0 are a span of term 0.
        """
        if start >= end:
            return ()
        if self._starts and start >= self._starts[-1]:
            return (TermSpan(self._terms[-1], start),)
        spans = [TermSpan(self.term_at(start), start)]
        low = bisect_right(self._starts, start)
        high = bisect_left(self._starts, end)
        spans += map(TermSpan, self._terms[low:high], self._starts[low:high])
        return tuple(spans)

    def before(self, position: int) -> tuple[TermSpan, ...]:
        """Return the spans of all bytes before a position."""
        return self.spans[: bisect_left(self._starts, position)]

    def divergence(self, spans: Sequence[TermSpan], start: int, end: int) -> int | None:
        """Return the first position in ``[start, end)`` whose term is not that of ``spans``."""
        theirs = TermTable(span for span in spans if span.term)
        borders = {start, *theirs._starts, *self._starts}
        for position in sorted(border for border in borders if start <= border < end):
            if self.term_at(position) != theirs.term_at(position):
                return position
        return None

    def conflict(self, prev: int, prev_term: int, end: int) -> ConflictSpan:
        """Return the last span before ``prev`` in which a log that ends at ``end`` may agree.

        The other log has ``prev_term`` before ``prev``, and lower terms before that. Own bytes of
        higher terms are passed over at once.
        """
        assert prev > end or self.term_before(prev) != prev_term
        index = bisect_left(self._starts, prev) - 1
        while index >= 0 and self._terms[index] > prev_term:
            index -= 1
        stop = self._starts[index + 1] if index + 1 < len(self._starts) else end
        if index < 0:
            return ConflictSpan(0, 0, stop)
        return ConflictSpan(self._terms[index], self._starts[index], stop)

    def meeting_point(self, conflict: ConflictSpan, end: int) -> int:
        """Return the highest position at which a log that ends at ``end`` may meet the other.

        If this log has bytes of the other's term, the logs agree up to the end of the shorter run.
        Otherwise they can only agree before it.
        """
        index = bisect_right(self._terms, conflict.term)
        stop = self._starts[index] if index < len(self._starts) else end
        has_term = conflict.term == 0 or (index > 0 and self._terms[index - 1] == conflict.term)
        return min(stop, conflict.end if has_term else conflict.start)
