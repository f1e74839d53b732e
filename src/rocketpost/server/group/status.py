"""The state of a member of a group, as tools show it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from rocketpost.codec.bodies.group_status import GroupStatus, MemberState
from rocketpost.raft.election import Role
from rocketpost.raft.members import MemberChange
from rocketpost.raft.node import RaftNode
from rocketpost.raft.progress import Progress
from rocketpost.server.features.send import LeaderSeat
from rocketpost.server.group.links import GroupLinks
from rocketpost.server.group.outgoing import OutgoingLink
from rocketpost.server.group.roster import Roster
from rocketpost.server.replication.status import (
    MasterStatus,
    ReplicaStatus,
    ReplicationStatus,
    SlaveStatus,
)
from rocketpost.server.settings.group import follower_id_of

_IN_SYNC_BYTES: Final = 256 * 1024 * 1024
_SILENT: Final = "it does not answer"


class MemberFacts(NamedTuple):
    """Facts about a member that its state machine does not know."""

    group: str
    problem: str
    """Reason why it cannot do its part; empty if it can."""
    suspicions: tuple[str, ...]
    """Losses that its last start found."""
    scrub: str
    """Progress of the comparison of old log with other members."""


def group_status(
    node: RaftNode, roster: Roster, links: GroupLinks, facts: MemberFacts
) -> GroupStatus:
    """Return a member's view of its group."""
    role = node.role if node.role in (Role.LEADER, Role.FOLLOWER) else Role.CANDIDATE
    return GroupStatus(
        group=facts.group,
        member=node.node,
        role=role.name,
        term=node.term,
        leader=node.leader or "",
        first=node.log.first,
        end=node.log.end,
        committed=node.commit,
        is_suspect=node.is_suspect,
        suspicions=list(facts.suspicions),
        problem=facts.problem,
        scrub=facts.scrub,
        epochs=[(term, start) for term, start in node.log.terms.spans],
        members=[
            _member_state(node, name, address, links) for name, address in roster.addresses.items()
        ],
    )


def _member_state(node: RaftNode, name: str, address: str, links: GroupLinks) -> MemberState:
    progress = node.progress.get(name)
    link = links.get(name)
    is_own = name == node.node
    has = node.log.persisted if is_own else 0
    return MemberState(
        name=name,
        address=address,
        client_address=links.client_addresses.get(name, ""),
        is_voter=name in node.members.voters,
        has=progress.match if progress is not None else has,
        is_known=is_own or progress is not None,
        is_suspect=node.is_suspect if is_own else progress is not None and progress.suspect != 0,
        problem="" if is_own else _problem_of(progress, link),
    )


def _problem_of(progress: Progress | None, link: OutgoingLink | None) -> str:
    """Return why a peer does not do its part, as far as is known here; empty if it does.

    The connection to a machine that was cut off, or whose process is frozen, lasts for a while.
    """
    if link is not None and link.problem:
        return link.problem
    return _SILENT if progress is not None and progress.is_silent else ""


def is_in_sync(member: MemberState, end: int) -> bool:
    """Tell whether a member has nearly all of the log, and the leader can count on it."""
    is_near = end - member.has < _IN_SYNC_BYTES
    return member.is_voter and is_near and not member.is_suspect and not member.problem


def replication_status(node: RaftNode, links: GroupLinks, problem: str) -> ReplicationStatus:
    """Return the state of replication, as ``haStatus`` shows it."""
    epochs = [(term, start) for term, start in node.log.terms.spans]
    if node.role is Role.LEADER:
        replicas = []
        for peer, progress in node.progress.items():
            link = links.get(peer)
            if link is not None:
                member = _member_state(node, peer, link.address, links)
                replicas.append(
                    ReplicaStatus(
                        address=link.address,
                        acknowledged=progress.match,
                        next_position=progress.next,
                        is_in_sync=is_in_sync(member, node.log.end),
                        problem=member.problem,
                    )
                )
        return MasterStatus(replicas, epochs)
    leader = links.get(node.leader or "")
    return SlaveStatus(
        master_address=leader.address if leader is not None else None,
        is_connected=node.leader is not None,
        problem=problem,
        epochs=epochs,
        broker_id=follower_id_of(node.node),
    )


def runtime_values(status: GroupStatus) -> dict[str, str]:
    """Return a member's view of its group for ``brokerStatus``."""
    problems = {each.name: each.problem for each in status.members if each.problem}
    return {
        "groupName": status.group,
        "groupMember": status.member,
        "groupRole": status.role,
        "groupTerm": str(status.term),
        "groupLeader": status.leader,
        "groupLogFirst": str(status.first),
        "groupLogEnd": str(status.end),
        "groupCommitted": str(status.committed),
        "groupVoters": ";".join(sorted(each.name for each in status.members if each.is_voter)),
        "groupLearners": ";".join(
            sorted(each.name for each in status.members if not each.is_voter)
        ),
        "groupLinkProblems": "; ".join(f"{peer}: {why}" for peer, why in sorted(problems.items())),
        "groupSuspect": "true" if status.is_suspect else "false",
        "groupSuspicions": "; ".join(status.suspicions),
        "groupFailure": status.problem,
        "groupScrub": status.scrub,
    }


class StatusSource(Protocol):
    """A source of the state of this member."""

    @property
    def status(self) -> Callable[[], ReplicationStatus]:
        """Return the state of replication, as ``haStatus`` shows it."""

    @property
    def member_status(self) -> Callable[[], GroupStatus]:
        """Return this member's view of its group."""

    @property
    def hand_over(self) -> Callable[[str], Awaitable[None]]:
        """Let a member lead, the one with most of the log if none is named."""

    @property
    def change_members(self) -> Callable[[MemberChange, str], Awaitable[None]]:
        """Change the members by one; a new member has the given address."""


class GroupSeat(LeaderSeat, StatusSource, Protocol):
    """The leadership of a group, and its state."""

    before_handover: Callable[[], None]
    """Writes the progress that the next leader should know, before a planned handover."""
