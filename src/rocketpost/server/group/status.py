"""The state of a member of a group, as tools show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from rocketpost.server.feature import Feature
from rocketpost.server.features.send import LeaderSeat
from rocketpost.server.replication.status import ReplicationStatus


class MemberStatus(NamedTuple):
    """One member's view of its group."""

    group: str
    node: str
    role: str
    """LEADER, FOLLOWER, or CANDIDATE."""
    term: int
    leader: str
    """Id of the leader; empty if none is known."""
    end: int
    """End of this member's log."""
    committed: int
    """Position before which everything is committed, as far as this member knows."""
    voters: tuple[str, ...]
    problems: dict[str, str]
    """Reason why a peer cannot be reached, by peer."""
    is_suspect: bool
    """Whether this member must get its log back before it votes."""
    failure: str
    """Reason why this member takes no part any more; empty if it does."""

    def values(self) -> dict[str, str]:
        """Return the values for tools."""
        problems = "; ".join(f"{peer}: {why}" for peer, why in sorted(self.problems.items()))
        return {
            "groupName": self.group,
            "groupMember": self.node,
            "groupRole": self.role,
            "groupTerm": str(self.term),
            "groupLeader": self.leader,
            "groupLogEnd": str(self.end),
            "groupCommitted": str(self.committed),
            "groupVoters": ";".join(self.voters),
            "groupLinkProblems": problems,
            "groupSuspect": "true" if self.is_suspect else "false",
            "groupFailure": self.failure,
        }


class StatusSource(Protocol):
    """Something that knows the state of this member."""

    @property
    def status(self) -> Callable[[], ReplicationStatus]:
        """Returns the state of replication, as ``haStatus`` shows it."""

    @property
    def member_status(self) -> Callable[[], MemberStatus]:
        """Returns this member's view of its group."""


class GroupSeat(LeaderSeat, StatusSource, Protocol):
    """The leadership of a group, and its state."""


class GroupStatusFeature(Feature):
    """Shows the state of the group. Owned by the loop.

    Args:
        source: Knows it.
    """

    def __init__(self, source: StatusSource) -> None:
        self._source = source

    def runtime_values(self) -> dict[str, str]:
        """Return this member's view of its group."""
        return self._source.member_status().values()
