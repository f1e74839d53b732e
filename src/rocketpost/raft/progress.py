"""A leader's view of one peer: how much of the log it has, and what it is sent next.

A peer is first *probed*: empty messages find the position where its log meets the leader's. Then it
is *streamed* to, without waiting for replies, up to a window of unacknowledged bytes; more is
*paused* until replies come. A peer that needs bytes which the leader has deleted is *offered* a
snapshot. A rejected message, or a lost link, takes a peer back to probing.

Invariants:

- ``match <= next``, and ``next`` is at most the end of the leader's log.
- Bytes are shipped to streamed peers only, from positions where the logs agree: these are ends of
  records in both logs. Probes may compare at any position, and carry no bytes.
- One :class:`~rocketpost.raft.actions.Ship` is under way per peer; so a peer that does not read
  delays no other peer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rocketpost.raft.actions import Ship


class Pace(Enum):
    """Way in which a peer gets the log."""

    PROBING = "probing"
    STREAMING = "streaming"
    OFFERING = "offering"


@dataclass(slots=True)
class Progress:
    """State of one peer, owned by the leader's state.

    Attributes:
        next: Position of the next byte to send, or at which the next probe compares.
        heard: Tick at which the leader last heard of the peer.
        match: The peer has persisted the leader's log up to here.
        pace: How it is sent the log.
        ship: The bytes that the driver is sending; None if it may be asked for more.
        suspect: Number of the peer's suspicion; 0 if it counts.
        bar: End of the log when the leader first heard of the suspicion.
        told: Commit position in the newest message to the peer.
        is_silent: Whether it had not answered for an election time-out at the last tick.
    """

    next: int
    heard: int
    match: int = 0
    pace: Pace = Pace.PROBING
    ship: Ship | None = None
    suspect: int = 0
    bar: int = 0
    told: int = 0
    is_silent: bool = False

    def room(self, window_bytes: int) -> bool:
        """Tell whether the peer may be sent bytes now."""
        is_free = self.pace is Pace.STREAMING and self.ship is None
        return is_free and self.next - self.match < window_bytes

    def probe(self, position: int) -> None:
        """Go back to comparing, at a position."""
        self.pace = Pace.PROBING
        self.next = position
        self.match = min(self.match, position)
        self.ship = None

    def acknowledge(self, match: int) -> None:
        """Take the peer's statement about how much it has persisted."""
        self.match = max(self.match, match)
        self.next = max(self.next, self.match)
