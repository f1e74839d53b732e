"""The metric families of replication: masters with slaves, and groups that elect their leader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rocketpost.codec.bodies.group_status import GroupStatus
from rocketpost.server.metrics.exposition import Family, Labels, Sample, flag, gauge, single
from rocketpost.server.replication.status import MasterStatus, SlaveStatus

_ROLES: Final = ("LEADER", "FOLLOWER", "CANDIDATE")
_ROLE: Final = Labels("role")
_REPLICA: Final = Labels("replica")
_MEMBER: Final = Labels("member", "voter")


def master_families(status: MasterStatus, end: int) -> Iterator[Family]:
    """Return the metrics of a master.

    Args:
        status: The slaves.
        end: End of the master's log.
    """
    yield gauge(
        "rocketpost_replicas_in_sync", "Slaves that are in sync.", single(status.in_sync_count)
    )
    yield gauge(
        "rocketpost_replica_behind_bytes",
        "Bytes of the log that a slave has not reported.",
        [
            Sample(_REPLICA(each.address), max(0, end - each.acknowledged))
            for each in status.replicas
        ],
    )


def slave_families(status: SlaveStatus, *, now_ms: int) -> Iterator[Family]:
    """Return the metrics of a slave."""
    yield gauge(
        "rocketpost_follows_master",
        "Whether the slave is connected to its master's log.",
        single(int(status.is_connected)),
    )
    if status.last_read_ms > 0:
        yield gauge(
            "rocketpost_master_silent_seconds",
            "Time since bytes of the master arrived.",
            single(max(0, now_ms - status.last_read_ms) / 1000),
        )


def group_families(status: GroupStatus) -> Iterator[Family]:
    """Return the metrics of a member of a group, as it sees the group."""
    yield gauge(
        "rocketpost_group_role",
        "The role of the member: 1 for the role that it has.",
        [Sample(_ROLE(role.lower()), int(status.role == role)) for role in _ROLES],
    )
    for name, text, value in (
        ("term", "Number of the last election.", status.term),
        ("has_leader", "Whether the member knows a leader.", int(bool(status.leader))),
        ("log_end_bytes", "End of the member's log.", status.end),
        ("committed_bytes", "Position before which the log is committed.", status.committed),
        ("suspect", "Whether the member has lost something.", int(status.is_suspect)),
        ("failed", "Whether the member cannot do its part.", int(bool(status.problem))),
    ):
        yield gauge(f"rocketpost_group_{name}", text, single(value))
    others = [each for each in status.members if each.name != status.member]
    yield gauge(
        "rocketpost_group_member_behind_bytes",
        "Bytes of the leader's log that another member does not have; only the leader knows.",
        [
            Sample(_MEMBER(each.name, flag(each.is_voter)), max(0, status.end - each.has))
            for each in others
            if each.is_known
        ],
    )
    yield gauge(
        "rocketpost_group_member_unreachable",
        "Whether the connection to another member has a problem.",
        [
            Sample(_MEMBER(each.name, flag(each.is_voter)), int(bool(each.problem)))
            for each in others
        ],
    )
