"""The slot of the wheel that is being delivered, in memory: what is due when, in order.

A million messages may be due within one slot, so each takes one number of 64 bits: how far into the
slot it is due, and where its unit lies in the timer log.
"""

from __future__ import annotations

import enum
import heapq
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from rocketpost.broker.timer.target import MISSING_RETRY_MS
from rocketpost.store.draft import Draft
from rocketpost.store.timer.log import Unit
from rocketpost.store.timer.values import Cursor

_POSITION_BITS: Final = 43
_POSITION_MASK: Final = (1 << _POSITION_BITS) - 1
_LATE_MS_MAX: Final = (1 << 63 - _POSITION_BITS) - 1


class Place(NamedTuple):
    """A message in its slot: when it is due, and where its unit lies."""

    due_ms: int
    position: int


class Fate(enum.Enum):
    """Outcome of a message whose time has come."""

    SENT = enum.auto()
    DROPPED = enum.auto()
    LATER = enum.auto()
    HELD = enum.auto()


class Judged(NamedTuple):
    """A message whose time has come, what becomes of it, and what is stored if anything is."""

    place: Place
    fate: Fate
    topic: str
    unit: Unit
    draft: Draft | None = None
    wait_ms: int = MISSING_RETRY_MS


class OpenSlot:
    """Messages left in a slot, first due first.

    Args:
        slot_ms: Where the slot begins.
        chain: Its units, newest first, to be read bit by bit.
        base: A position that no unit of the slot lies before.
    """

    def __init__(self, slot_ms: int, chain: Iterator[tuple[int, Unit]], *, base: int) -> None:
        self.slot_ms = slot_ms
        self.chain: Iterator[tuple[int, Unit]] | None = chain
        self.recalled: set[str] = set()
        """What is not to be delivered, by ``recall_key``."""
        self._base = base
        self._sorted = array("q")
        self._late: list[int] = []

    def __len__(self) -> int:
        return len(self._sorted) + len(self._late)

    def add(self, place: Place) -> None:
        """Take a message while the chain is read."""
        self._sorted.append(self._number(place))

    def loaded(self, cursor: Cursor) -> None:
        """Note that the chain is read; what the cursor has passed is done."""
        after = -1
        if cursor.position >= 0:
            after = self._number(Place(cursor.due_ms, max(cursor.position, self._base)))
        left = [number for number in self._sorted if number > after]
        left.sort(reverse=True)
        self._sorted = array("q", left)
        self.chain = None

    def add_late(self, place: Place) -> None:
        """Take a message that came when the chain was read already."""
        heapq.heappush(self._late, self._number(place))

    def first(self) -> Place | None:
        """Return what is due first."""
        if not self._sorted and not self._late:
            return None
        return self._place(self._least())

    def pop(self) -> Place:
        """Take away what is due first."""
        number = self._least()
        if self._late and self._late[0] == number:
            heapq.heappop(self._late)
        else:
            self._sorted.pop()
        return self._place(number)

    def put_back(self, places: list[Place]) -> None:
        """Take back what was popped and not delivered."""
        for place in places:
            self.add_late(place)

    def _least(self) -> int:
        if not self._late:
            return self._sorted[-1]
        return min(self._late[0], self._sorted[-1]) if self._sorted else self._late[0]

    def _number(self, place: Place) -> int:
        late_ms = min(max(place.due_ms - self.slot_ms, 0), _LATE_MS_MAX)
        return late_ms << _POSITION_BITS | place.position - self._base

    def _place(self, number: int) -> Place:
        return Place(
            self.slot_ms + (number >> _POSITION_BITS), self._base + (number & _POSITION_MASK)
        )
