"""Campaigns: pre-votes and votes.

A member whose leader has been silent asks first whether it would be elected (pre-vote), without
changing any term; so a member that was cut off does not disturb a group that works (Raft thesis,
9.6). Only a majority of such answers lets it enter a new term and ask for votes.

Invariant: a candidate counts its own vote only once that is saved.
"""

from __future__ import annotations

from enum import Enum

from rocketpost.raft.core import Core
from rocketpost.raft.messages import NodeId, PreVote, Vote
from rocketpost.raft.quorum import has_majority


class Role(Enum):
    """Part that a member plays at present."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Campaign:
    """One round of pre-votes or votes. Belongs to the node.

    Attributes:
        is_pre: Whether this is a round of pre-votes.
        term: The term that the campaign is for.
    """

    def __init__(self, core: Core, *, is_pre: bool) -> None:
        self._core = core
        self.is_pre = is_pre
        self.term = core.term + 1 if is_pre else core.term
        self._granted: set[NodeId] = set()
        self._number = core.number

    @property
    def role(self) -> Role:
        """Part that a member plays during the campaign."""
        return Role.PRE_CANDIDATE if self.is_pre else Role.CANDIDATE

    @property
    def is_won(self) -> bool:
        """Whether a majority has granted it."""
        core = self._core
        granted = set(self._granted)
        if self.is_pre or core.saved >= self._number:
            granted.add(core.node)
        return has_majority(core.members.voters, granted)

    def ask(self, *, is_transfer: bool) -> None:
        """Ask every other voter."""
        log = self._core.log
        for voter in sorted(self._core.members.voters - {self._core.node}):
            if self.is_pre:
                self._core.send(voter, PreVote(self.term, log.end, log.last_term))
            else:
                self._core.send(voter, Vote(self.term, log.end, log.last_term, is_transfer))

    def grant(self, voter: NodeId) -> None:
        """Count a vote."""
        self._granted.add(voter)
