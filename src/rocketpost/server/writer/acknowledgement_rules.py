"""Acknowledgement rules: the conditions that a message must meet before it is acknowledged.

Each rule has a position, before which every message meets the rule. There are two kinds of rules.
A message that meets those of the first kind is visible to consumers; :func:`rules_for` is the only
place that turns a flush mode into them. A sender that waits gets its answer when the message also
meets the second kind.

    visible    ASYNC_FLUSH   Written              survives the death of this process
               SYNC_FLUSH    Written, Flushed     survives a power cut
               a group       Written, Committed   survives the loss of a minority of the group
    answered   SYNC_MASTER   Replicated           survives the loss of this machine

RocketMQ shows messages before slaves have them, and so does this broker (ADR 0082). The leader of a
group that elects shows and answers committed messages only (ADR 0099).
"""

from __future__ import annotations

from typing import Final, Protocol

from rocketpost.model.ids import Position
from rocketpost.server.writer.replica_demand import Demand, ReplicaPolicy, demand_now
from rocketpost.store.config import FlushMode


class Log(Protocol):
    """The part of the commit log that the rules use."""

    @property
    def written_position(self) -> Position:
        """End of the bytes that are in the files."""

    @property
    def durable_position(self) -> Position:
        """End of the bytes that are on disk."""

    def request_flush(self) -> None:
        """Ask for a flush of the written bytes soon."""


class AcknowledgementRule:
    """A condition on messages, met up to a position. Owned by the loop.

    Only the log writer changes ``position``; between two starts it only grows.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self.position = Position(0)
        """Every message that ends at or before it meets the rule."""

    def start(self) -> None:
        """Read the position from the log at the beginning of a term."""
        raise NotImplementedError

    def pursue(self) -> None:
        """Start the work that makes new messages meet the rule; called after each commit."""


class Written(AcknowledgementRule):
    """The bytes are in the log's files, perhaps only in the page cache."""

    def start(self) -> None:
        """Begin at the log's written position."""
        self.position = self._log.written_position


class Flushed(AcknowledgementRule):
    """The bytes are on disk."""

    def start(self) -> None:
        """Begin at the log's durable position."""
        self.position = self._log.durable_position

    def pursue(self) -> None:
        """Ask for a flush."""
        self._log.request_flush()


class Commitment(Protocol):
    """The part of a group that the rules use."""

    @property
    def committed(self) -> int:
        """Position before which everything is committed."""

    def note_growth(self) -> None:
        """Send what was written to the other members."""


class Committed(AcknowledgementRule):
    """A majority of the group has the bytes, and every later leader keeps them.

    How safe they are on each member is its own report: written with ASYNC_FLUSH, flushed with
    SYNC_FLUSH. The leader's own flush counts like that of any other member.

    Args:
        log: The commit log.
        group: The group that this broker leads.
        flushes: Whether members flush before they report.
    """

    def __init__(self, log: Log, *, group: Commitment, flushes: bool) -> None:
        super().__init__(log)
        self._group = group
        self._flushes = flushes

    def start(self) -> None:
        """Begin at the group's commit position, at most at the end of this log."""
        self.position = min(Position(self._group.committed), self._log.written_position)

    def pursue(self) -> None:
        """Send the written bytes to the group, and ask for a flush.

        In this order: the other members take longer, and the flusher's thread would interrupt.
        """
        self._group.note_growth()
        if self._flushes:
            self._log.request_flush()


class Replicas(Protocol):
    """The part of the slaves' reports that the rules use (``replication.acks``)."""

    def position_of(self, replicas: int, /) -> int:
        """Return the highest position that this many slaves have."""

    def in_sync(self, end: int, gap_bytes: int, /) -> int:
        """Return the number of slaves that are less than ``gap_bytes`` behind ``end``."""


class _NoReplicas:
    """The reports of a master that has no slaves."""

    def position_of(self, replicas: int, /) -> int:
        """Return 0: no slave has anything."""
        return 0

    def in_sync(self, end: int, gap_bytes: int, /) -> int:
        """Return 0: no slave is connected."""
        return 0


NO_REPLICAS: Final[Replicas] = _NoReplicas()
"""The reports of a master that has no slaves."""


class Replicated(AcknowledgementRule):
    """Enough slaves have the bytes. Messages are visible before they meet this rule.

    The required number of slaves may change while messages wait. A message that has met the rule
    still meets it then.

    Args:
        log: The commit log.
        replicas: The slaves' reports.
        policy: The settings that say how many slaves are enough.
    """

    def __init__(self, log: Log, *, replicas: Replicas, policy: ReplicaPolicy) -> None:
        super().__init__(log)
        self._replicas = replicas
        self.policy = policy
        """The settings in force."""
        self.alive: int | None = None
        """The replicas that name servers know, with this one; None if unknown."""
        self.demand = Demand(policy.replicas - 1, is_enough=False)
        """The slaves that a message needs, as of the last :meth:`look`."""

    @property
    def is_refusing(self) -> bool:
        """Whether messages must be refused before they are appended."""
        return self.policy.refuses and not self.demand.is_enough

    def start(self) -> None:
        """Begin at 0: slaves report their positions when they connect."""
        self.position = Position(0)
        self.look()

    def pursue(self) -> None:
        """Check the slaves again: they may have fallen too far behind."""
        self.look()

    def look(self) -> None:
        """Find out how many slaves are needed and in sync."""
        end = self._log.written_position
        self.demand = demand_now(
            self.policy,
            slaves_in_sync=self._replicas.in_sync(end, self.policy.gap_bytes),
            alive=self.alive,
        )

    def measure(self) -> Position:
        """Return the position that enough slaves have reported, at most the end of the log.

        While no slave is needed, it is that of the first slave: earlier messages may wait for one.
        """
        reported = self._replicas.position_of(max(self.demand.slaves, 1))
        return min(Position(reported), self._log.written_position)


def rules_for(
    flush_mode: FlushMode, log: Log, group: Commitment | None = None
) -> list[AcknowledgementRule]:
    """Return the rules that a flush mode stands for, alone or as the leader of a group."""
    if group is not None:
        flushes = flush_mode is FlushMode.SYNC_FLUSH
        return [Written(log), Committed(log, group=group, flushes=flushes)]
    if flush_mode is FlushMode.SYNC_FLUSH:
        return [Written(log), Flushed(log)]
    return [Written(log)]
