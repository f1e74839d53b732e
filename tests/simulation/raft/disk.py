"""The disk of a simulated node: a log of records, and saved states, each written and then durable.

A record stands for bytes of the commit log. It is made once, by one leader, and every copy in
another log is the same object: two different objects are two different byte strings.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Generic, TypeVar

from rocketpost.raft.messages import Members

S = TypeVar("S")


class Record:
    """Bytes ``[start, end)`` of a log, written in ``term`` behind the record ``before``."""

    __slots__ = ("before", "end", "members", "number", "start", "term")

    def __init__(
        self,
        number: int,
        term: int,
        *,
        before: Record | None,
        end: int,
        members: Members | None = None,
    ) -> None:
        self.number = number
        self.term = term
        self.before = before
        self.start = before.end if before is not None else 0
        self.end = end
        self.members = members
        """The members of the group from this record on, if it changes them."""

    def __repr__(self) -> str:
        kind = f" members={self.members}" if self.members is not None else ""
        return f"#{self.number}(t{self.term} {self.start}-{self.end}{kind})"


class Log:
    """Records in order, of which those before ``durable`` survive a power cut."""

    def __init__(self) -> None:
        self.first = 0
        """Position before which the bytes are deleted. Their records stay here, for the checks."""

        self.records: list[Record] = []
        self._ends: list[int] = []
        self._changes: list[Record] = []
        self.durable = 0
        self._syncing = 0

    @property
    def end(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def last(self) -> Record | None:
        return self.records[-1] if self.records else None

    @property
    def changes(self) -> list[Record]:
        """All records that change the members."""
        return self._changes

    def append(self, record: Record) -> None:
        self.records.append(record)
        self._ends.append(record.end)
        if record.members is not None:
            self._changes.append(record)

    def cut(self, position: int) -> None:
        """Remove everything from ``position`` on; it is gone for good."""
        keep = bisect_right(self._ends, position)
        del self.records[keep:]
        del self._ends[keep:]
        while self._changes and self._changes[-1].end > position:
            self._changes.pop()
        self.durable = min(self.durable, self.end)
        self._syncing = min(self._syncing, self.end)

    def before(self, position: int) -> Record | None:
        """Return the record that ends at ``position``."""
        at = bisect_left(self._ends, position)
        if at < len(self._ends) and self._ends[at] == position:
            return self.records[at]
        return None

    def has(self, record: Record | None) -> bool:
        return record is None or self.before(record.end) is record

    def has_durable(self, record: Record) -> bool:
        return record.end <= self.durable and self.before(record.end) is record

    def between(self, start: int, end: int) -> list[Record]:
        """Return the records that lie in ``[start, end)``."""
        return self.records[bisect_right(self._ends, start) : bisect_right(self._ends, end)]

    def spans(self) -> list[tuple[int, int]]:
        """Return each term and the position of its first record, as a start finds them."""
        found: list[tuple[int, int]] = []
        for record in self.records:
            if not found or found[-1][0] != record.term:
                found.append((record.term, record.start))
        return found

    def begin_sync(self) -> None:
        self._syncing = self.end

    def end_sync(self) -> None:
        """Make durable what was written when the sync began, and was not cut since."""
        self.durable = max(self.durable, self._syncing)

    def settle(self) -> None:
        """Sync everything, as a start does with the log that it finds."""
        self.durable = self.end

    def lose(self, rng: random.Random) -> None:
        """Lose power: keep what is durable, and any part of the rest."""
        keep = rng.randint(bisect_right(self._ends, self.durable), len(self._ends))
        self.cut(self._ends[keep - 1] if keep else 0)

    def replace(self, chain: Mapping[int, Record], first: int) -> None:
        """Begin again at ``first``. The records before it are those of ``chain``, by their ends."""
        self.cut(0)
        records: list[Record] = []
        walk = chain.get(first)
        while walk is not None:
            records.append(walk)
            walk = walk.before
        for record in reversed(records):
            self.append(record)
        assert self.end == first
        self.first = self.durable = first


class StateFile(Generic[S]):
    """The newest saved state: durable, or one of those that are still being written."""

    def __init__(self, state: S) -> None:
        self.durable = state
        self.writing: list[S] = []

    def write(self, state: S) -> None:
        self.writing.append(state)

    def sync(self, *, is_kept: bool) -> S:
        """Make the oldest of those being written durable, unless the disk only pretends to."""
        state = self.writing.pop(0)
        if is_kept:
            self.durable = state
        return state

    def lose(self, rng: random.Random) -> None:
        """Stop the process: any of the states being written may have reached the disk."""
        keep = rng.randint(0, len(self.writing))
        if keep:
            self.durable = self.writing[keep - 1]
        self.writing.clear()
