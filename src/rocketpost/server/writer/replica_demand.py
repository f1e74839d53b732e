"""The number of replicas that a message of a SYNC_MASTER needs before its sender is answered.

The master counts as a replica. There are two kinds of broker groups:

    classic         ``inSyncReplicas``; a message is stored however few slaves are in sync, and the
                    answer tells (SLAVE_NOT_AVAILABLE)
    acting master   the same, but a message is refused before it is stored if too few replicas are
                    in sync. With ``enableAutoInSyncReplicas`` fewer are enough, down to
                    ``minInSyncReplicas``
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Demand(NamedTuple):
    """The slaves that a message needs now."""

    slaves: int
    """Number of slaves that must have the message."""
    is_enough: bool
    """Whether at least that many are in sync."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPolicy:
    """The settings that decide about the demand.

    Args:
        replicas: The number of replicas that must have a message.
        gap_bytes: A slave that is further behind is not in sync.
        refuses: Whether sends are refused while too few replicas are in sync.
        adapts: Whether the demand follows the number of replicas in sync.
        replicas_min: The least demand if it adapts.
    """

    replicas: int
    gap_bytes: int
    refuses: bool = False
    adapts: bool = False
    replicas_min: int = 1


def demand_now(policy: ReplicaPolicy, *, slaves_in_sync: int, alive: int | None) -> Demand:
    """Return the slaves that a message needs.

    Args:
        policy: The settings.
        slaves_in_sync: The number of connected slaves that are in sync.
        alive: The number of replicas that name servers know, with this one; None if unknown. Only
            a group with an acting master uses it.
    """
    in_sync = 1 + slaves_in_sync
    replicas = policy.replicas
    if policy.refuses:
        if alive is not None:
            in_sync = min(in_sync, alive)
        if policy.adapts:
            replicas = max(min(replicas, in_sync), policy.replicas_min)
    return Demand(replicas - 1, replicas <= in_sync)
