"""Halves whose transaction has not ended, and the progress in the two queues of transactions.

A half is found by its identity, which all its copies share; its place is that of the newest copy.
An offset of the half queue is *open* until the record that closes it (a commit, a newer copy, an op
message) is on disk. Only then may the saved progress pass it. Otherwise a power cut could lose the
commit after the half is forgotten.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Iterator
from enum import Enum
from typing import Final

from rocketpost.broker.transaction.log import Identity

PENDING_MAX: Final = 500_000
"""Transactions that have not ended, of all producers; more are refused."""
_STALE_MAX: Final = 1024


class Fate(Enum):
    """Outcome of a half that is being stored, not yet durable."""

    COMMIT = "committed"
    ROLLBACK = "rolled back"
    DISCARD = "discarded"


class Half:
    """A transaction that has not ended."""

    __slots__ = (
        "checks",
        "covered",
        "due_ms",
        "ending",
        "group",
        "identity",
        "is_asked",
        "is_confirmed",
        "is_open",
        "offset",
        "position",
        "since_ms",
        "topic",
    )

    def __init__(
        self,
        identity: Identity,
        *,
        offset: int,
        position: int,
        group: str,
        checks: int,
        since_ms: int,
        due_ms: int,
        is_confirmed: bool,
        topic: str = "",
    ) -> None:
        self.identity = identity
        self.offset = offset
        """Queue offset and position of the newest copy."""
        self.position = position
        self.group = group
        self.topic = topic
        """Destination of its message."""
        self.checks = checks
        self.since_ms = since_ms
        """Store time of its first copy, as far as it is known."""
        self.due_ms = due_ms
        """Time of the next check."""
        self.is_confirmed = is_confirmed
        """False after a restart, until its commit was looked up."""
        self.is_open = True
        self.is_asked = False
        """Whether its producer was asked and has not answered."""
        self.ending: Fate | None = None
        self.covered = -1
        """Offset named by the op message that is being stored with the next copy; -1 for none."""

    @property
    def is_moving(self) -> bool:
        """Whether a newer copy is being stored."""
        return self.covered == self.offset


class PendingTable:
    """All pending halves. Owned by the event loop."""

    def __init__(self) -> None:
        self._halves: dict[Identity, Half] = {}
        self.topic_counts: Counter[str] = Counter()
        """Number of halves by the topic of their messages."""
        self._heap: list[tuple[int, int, Half]] = []
        self._ticket = itertools.count()
        self._open: set[int] = set()
        self._order: deque[int] = deque()
        self._closing: deque[tuple[int, int]] = deque()
        self._ops: deque[tuple[int, int]] = deque()
        self._half_end = 0
        self._op_end = 0

    def __len__(self) -> int:
        return len(self._halves)

    def __iter__(self) -> Iterator[Half]:
        return iter(self._halves.values())

    def find(self, identity: Identity) -> Half | None:
        """Return the pending half with this identity."""
        return self._halves.get(identity)

    # Halves.

    def add(self, half: Half) -> None:
        """Add a half that was just stored."""
        assert half.identity not in self._halves
        self._halves[half.identity] = half
        self.topic_counts[half.topic] += 1
        self._open_offset(half.offset)
        self.schedule(half, half.due_ms)

    def move(self, half: Half, *, offset: int, position: int, proof: int) -> None:
        """Record a newer copy of a half, stored before ``proof``."""
        self._closing.append((proof, half.offset))
        half.offset, half.position = offset, position
        self._open_offset(offset)

    def remove(self, half: Half, *, proof: int) -> None:
        """Remove a half whose end is in the log before ``proof``."""
        if half.is_open:
            half.is_open = False
            del self._halves[half.identity]
            self.topic_counts[half.topic] -= 1
            if not self.topic_counts[half.topic]:
                del self.topic_counts[half.topic]
            self._closing.append((proof, half.offset))

    def find_before(self, *, offset: int = 0, position: int = 0) -> list[Half]:
        """Return the halves before an offset of the queue or a position of the log."""
        return [
            half
            for half in self._halves.values()
            if half.offset < offset or half.position < position
        ]

    # Schedule.

    def schedule(self, half: Half, due_ms: int) -> None:
        """Schedule a half for ``due_ms`` and no other time."""
        half.due_ms = due_ms
        heapq.heappush(self._heap, (due_ms, next(self._ticket), half))
        if len(self._heap) > 2 * len(self._halves) + _STALE_MAX:
            # Most halves are ended long before they are due.
            self._heap = [each for each in self._heap if _is_due_at(each[2], each[0])]
            heapq.heapify(self._heap)

    @property
    def schedule_count(self) -> int:
        """Number of entries in the schedule, some of which may no longer count."""
        return len(self._heap)

    def next_due_ms(self) -> int | None:
        """Return when the next half is due; None if none is scheduled."""
        while self._heap:
            due_ms, _, half = self._heap[0]
            if _is_due_at(half, due_ms) and half.ending is None:
                return due_ms
            heapq.heappop(self._heap)
        return None

    def take_due(self, now_ms: int) -> Half | None:
        """Remove a due half from the schedule and return it."""
        due_ms = self.next_due_ms()
        if due_ms is None or due_ms > now_ms:
            return None
        half = heapq.heappop(self._heap)[2]
        half.due_ms = -1
        return half

    def shift(self, by_ms: int) -> None:
        """Move the schedule back by ``by_ms``, since the clock was set back."""
        for half in self._halves.values():
            half.since_ms -= by_ms
            if half.due_ms >= 0:
                self.schedule(half, half.due_ms - by_ms)

    # Progress of the queues.

    def start_at(self, half_offset: int, op_offset: int) -> None:
        """Set the next offsets of both queues."""
        self._half_end, self._op_end = half_offset, op_offset

    def note_op(self, op_offset: int, offsets: list[int]) -> None:
        """Record an op message and the halves that it names."""
        self._op_end = max(self._op_end, op_offset + 1)
        self._ops.append((op_offset, max(offsets, default=-1)))

    def half_floor(self, durable: int) -> int:
        """Return the first offset of the half queue that is still needed."""
        while self._closing and self._closing[0][0] <= durable:
            self._open.discard(self._closing.popleft()[1])
        while self._order and self._order[0] not in self._open:
            self._order.popleft()
        return self._order[0] if self._order else self._half_end

    def op_floor(self, half_floor: int) -> int:
        """Return the first offset of the op queue that is still needed."""
        while self._ops and self._ops[0][1] < half_floor:
            self._ops.popleft()
        return self._ops[0][0] if self._ops else self._op_end

    @property
    def half_end(self) -> int:
        """The offset that the next half gets."""
        return self._half_end

    @property
    def is_settled(self) -> bool:
        """Whether no closed offset waits for the disk."""
        return not self._closing

    def _open_offset(self, offset: int) -> None:
        self._open.add(offset)
        self._order.append(offset)
        self._half_end = max(self._half_end, offset + 1)


def _is_due_at(half: Half, due_ms: int) -> bool:
    return half.is_open and half.due_ms == due_ms
