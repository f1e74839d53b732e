"""The state of replication on one broker, as tools show it.

The feature that replicates makes these values; ``server.handlers.ha_status`` encodes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ReplicaStatus(NamedTuple):
    """One connected slave, as its master sees it."""

    address: str
    """The slave's end of the connection."""
    acknowledged: int
    """End of the bytes that the slave has reported; 0 before its first report."""
    next_position: int
    """Position of the next byte to send; -1 before the slave has told where to begin."""
    broker_id: int | None = None
    """Its id, if it has told it; RocketMQ's slaves do not."""
    bytes_per_second: int = 0
    """Bytes sent in the last second."""
    is_in_sync: bool = False
    """Whether it is less than ``haMaxGapNotInSync`` bytes behind."""
    problem: str = ""
    """Reason why it can never follow this master; empty if it can."""


class MasterStatus(NamedTuple):
    """The state of a master, which may have no slaves."""

    replicas: Sequence[ReplicaStatus] = ()
    epochs: Sequence[tuple[int, int]] = ()
    """Each term of the log and its first position, if the broker is a member of a group."""

    @property
    def in_sync_count(self) -> int:
        """Number of connected slaves that are in sync."""
        return sum(replica.is_in_sync for replica in self.replicas)


class SlaveStatus(NamedTuple):
    """The state of a slave and of its connection to the master."""

    master_address: str | None = None
    """Address of the master's log stream; None if it is not known yet."""
    is_connected: bool = False
    """Whether the stream is connected and the master was heard of lately."""
    last_read_ms: int = 0
    """Time at which bytes of the master arrived last; 0 if none have arrived."""
    last_write_ms: int = 0
    """Time of the last report to the master; 0 if there was none."""
    bytes_per_second: int = 0
    """Bytes received in the last second."""
    problem: str = ""
    """Reason why it cannot follow its master; empty if it can."""
    epochs: Sequence[tuple[int, int]] = ()
    """As on a master."""
    broker_id: int = 0
    """Id of the broker, if it is a member of a group."""


ReplicationStatus = MasterStatus | SlaveStatus
