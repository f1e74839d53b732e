"""The slot of the wheel that is being delivered, in memory: its messages by due time.

A million messages may be due within one slot, so each takes a single 64-bit number: its due time
within the slot, and the position of its unit in the timer log.
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


class SlotEntry(NamedTuple):
    """A message in its slot: its due time, and the position of its unit."""

    due_ms: int
    position: int


class Outcome(enum.Enum):
    """Outcome of a message that is due."""

    SENT = enum.auto()
    DROPPED = enum.auto()
    LATER = enum.auto()
    HELD = enum.auto()


class Decision(NamedTuple):
    """A message that is due, its outcome, and the copy to store, if any."""

    entry: SlotEntry
    outcome: Outcome
    topic: str
    unit: Unit
    draft: Draft | None = None
    wait_ms: int = MISSING_RETRY_MS


class OpenSlot:
    """Messages left in a slot, earliest due time first.

    Args:
        slot_ms: Start of the slot.
        chain: Its units, newest first, to be read in parts.
        base: A position at or before every unit of the slot.
    """

    def __init__(self, slot_ms: int, chain: Iterator[tuple[int, Unit]], *, base: int) -> None:
        self.slot_ms = slot_ms
        self.chain: Iterator[tuple[int, Unit]] | None = chain
        self.recalled: set[str] = set()
        """Messages that must not be delivered, by ``recall_key``."""
        self._base = base
        self._sorted = array("q")
        self._late: list[int] = []

    def __len__(self) -> int:
        return len(self._sorted) + len(self._late)

    def add(self, entry: SlotEntry) -> None:
        """Add a message while the chain is read."""
        self._sorted.append(self._number(entry))

    def finish_loading(self, cursor: Cursor) -> None:
        """Note that the chain is read; drop the messages that the cursor has passed."""
        after = -1
        if cursor.position >= 0:
            after = self._number(SlotEntry(cursor.due_ms, max(cursor.position, self._base)))
        left = [number for number in self._sorted if number > after]
        left.sort(reverse=True)
        self._sorted = array("q", left)
        self.chain = None

    def add_late(self, entry: SlotEntry) -> None:
        """Add a message that arrived after the chain was read."""
        heapq.heappush(self._late, self._number(entry))

    def first(self) -> SlotEntry | None:
        """Return the message that is due first."""
        if not self._sorted and not self._late:
            return None
        return self._entry(self._least())

    def pop(self) -> SlotEntry:
        """Remove and return the message that is due first."""
        number = self._least()
        if self._late and self._late[0] == number:
            heapq.heappop(self._late)
        else:
            self._sorted.pop()
        return self._entry(number)

    def put_back(self, entries: list[SlotEntry]) -> None:
        """Put back messages that were popped and not delivered."""
        for entry in entries:
            self.add_late(entry)

    def _least(self) -> int:
        if not self._late:
            return self._sorted[-1]
        return min(self._late[0], self._sorted[-1]) if self._sorted else self._late[0]

    def _number(self, entry: SlotEntry) -> int:
        late_ms = min(max(entry.due_ms - self.slot_ms, 0), _LATE_MS_MAX)
        return late_ms << _POSITION_BITS | entry.position - self._base

    def _entry(self, number: int) -> SlotEntry:
        return SlotEntry(
            self.slot_ms + (number >> _POSITION_BITS), self._base + (number & _POSITION_MASK)
        )
