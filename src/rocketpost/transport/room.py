"""Limits on the memory that all connections of a server use together.

Each connection may hold 16 MiB of an incomplete frame and 64 MiB that its peer does not read, so
without these limits a thousand silent peers could hold 80 GiB.

Where users are known, peers that have not logged in are strangers. They make room for others: if
there are too many connections, the stranger that has waited longest is closed instead of the newest
connection, and if unfinished frames take too much memory, those of strangers are dropped first. So
strangers that hold connections or memory do not keep users out.
"""

from __future__ import annotations

import itertools
import logging
from typing import Final, Protocol

from rocketpost.transport.turns import Turns

logger = logging.getLogger(__name__)

UNWRITTEN_BYTES_FREE: Final = 64 * 1024
"""Unwritten bytes that a connection may have uncounted."""
_KEPT: Final = 7 / 8
"""Share of the bound to free up to, so that the next write does not exceed it again."""
_STUCK_SECONDS: Final = 1.0
_LOOKED_AT: Final = 1024
"""Most connections examined when one must make room; the next search continues there."""


class Debtor(Protocol):
    """A connection with unwritten bytes."""

    counted_bytes: int
    """Bytes that the room counts for it; 0 at first."""

    @property
    def unwritten_bytes(self) -> int:
        """Bytes that its peer has not read yet."""
        ...

    @property
    def stuck_seconds(self) -> float:
        """Seconds for which its peer has read nothing."""
        ...

    def drop(self, reason: str) -> None:
        """Disconnect the peer."""
        ...


class Guest(Protocol):
    """A connection of a server."""

    is_known: bool
    """Whether its peer has logged in."""
    partial_bytes: int
    """Bytes of its incomplete frame, as counted by the room."""

    def drop(self, reason: str) -> None:
        """Disconnect the peer."""
        ...


class Room:
    """Limits on the memory that all connections of a server use together, on all its ports.

    Belongs to the event loop.
    """

    __slots__ = (
        "_debtors",
        "_strangers",
        "connections",
        "connections_max",
        "knows_users",
        "partial_bytes",
        "partial_bytes_max",
        "turns",
        "unwritten_bytes",
        "unwritten_bytes_max",
    )

    def __init__(
        self, *, connections_max: int, partial_bytes_max: int, unwritten_bytes_max: int
    ) -> None:
        self.connections_max = connections_max
        self.partial_bytes_max = partial_bytes_max
        self.unwritten_bytes_max = unwritten_bytes_max
        self.turns = Turns()
        self.connections = 0
        self.partial_bytes = 0
        """Bytes of incomplete frames, except the first 64 KiB of each connection."""
        self.unwritten_bytes = 0
        """Bytes that wait for peers, except the first 64 KiB of each connection."""
        self._debtors: dict[Debtor, None] = {}
        self.knows_users = False
        """Whether peers log in, so that those who have not are strangers."""
        self._strangers: dict[Guest, None] = {}

    def enter(self, guest: Guest) -> bool:
        """Count a new connection; return whether there is room for it."""
        self.connections += 1
        if self.knows_users:
            self._strangers[guest] = None
        return self.connections <= self.connections_max or self._drop_oldest_stranger(guest)

    def leave(self, guest: Guest) -> None:
        """Forget a connection that is gone."""
        self.connections -= 1
        self._strangers.pop(guest, None)

    def _drop_oldest_stranger(self, newest: Guest) -> bool:
        for guest in list(itertools.islice(self._strangers, _LOOKED_AT)):
            if guest is newest:
                break
            del self._strangers[guest]
            if not guest.is_known:
                guest.drop(f"{self.connections_max} connections are open, and it has not logged in")
                return True
        return False

    def drop_unfinished_strangers(self) -> bool:
        """Disconnect all strangers with large incomplete frames; return whether there were any."""
        found = [each for each in self._strangers if each.partial_bytes and not each.is_known]
        for guest in found:
            del self._strangers[guest]
            guest.drop("unfinished frames take too much memory, and it has not logged in")
        return bool(found)

    def count_unwritten(self, debtor: Debtor, size: int) -> None:
        """Count bytes that wait for a peer; disconnect the slowest peers if there are too many."""
        counted = size if size > UNWRITTEN_BYTES_FREE else 0
        self.unwritten_bytes += counted - debtor.counted_bytes
        debtor.counted_bytes = counted
        if not counted:
            self._debtors.pop(debtor, None)
            return
        self._debtors[debtor] = None
        if self.unwritten_bytes > self.unwritten_bytes_max:
            self._make_room()

    def _make_room(self) -> None:
        # Peers may have read bytes since: the count is an upper bound.
        for debtor in list(self._debtors):
            size = debtor.unwritten_bytes
            counted = size if size > UNWRITTEN_BYTES_FREE else 0
            self.unwritten_bytes += counted - debtor.counted_bytes
            debtor.counted_bytes = counted
            if not counted:
                del self._debtors[debtor]
        total = self.unwritten_bytes
        if total <= self.unwritten_bytes_max:
            return
        worst_first = sorted(
            self._debtors,
            key=lambda each: (each.stuck_seconds > _STUCK_SECONDS, each.counted_bytes),
            reverse=True,
        )
        left = total
        for debtor in worst_first:
            if left <= self.unwritten_bytes_max * _KEPT:
                break
            left -= debtor.counted_bytes
            debtor.drop(f"does not read, while {total} bytes wait for all")
