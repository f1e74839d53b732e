"""A change of the members of a group, from the request to its commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from rocketpost.errors import ReplicationError
from rocketpost.raft.actions import Action
from rocketpost.raft.election import Role
from rocketpost.raft.members import MemberChange
from rocketpost.raft.node import RaftNode

SECONDS_MAX: Final = 10.0
"""Time after which a change that is not committed is reported as open."""


class MemberChanges:
    """Makes changes of members, and waits until they are committed. Owned by the loop.

    Args:
        node: The state machine.
        carry_out: Carries out actions of the state machine.
    """

    def __init__(self, node: RaftNode, *, carry_out: Callable[[Sequence[Action]], None]) -> None:
        self._node = node
        self._carry_out = carry_out
        self._news = asyncio.Event()

    def note_news(self) -> None:
        """Note that more is committed, or that this member does not lead any more."""
        self._news.set()

    async def run(self, change: MemberChange) -> None:
        """Change the members by one, and return when that is committed.

        Raises:
            ReplicationError: It is not possible now, or it is not known whether it is committed.
        """
        node, term, members = self._node, self._node.term, self._node.members
        self._carry_out(node.propose_members(change))
        if node.members == members:
            raise ReplicationError("the change could not be written; see the log of the broker")
        position = node.log.members.latest_position
        try:
            async with asyncio.timeout(SECONDS_MAX):
                while node.commit < position:
                    if node.term != term or node.role is not Role.LEADER:
                        raise ReplicationError(
                            "this member does not lead any more; the new leader knows whether the"
                            " members are changed"
                        )
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise ReplicationError(
                f"the change is written, but no majority has it after {SECONDS_MAX:g} s; it may be"
                " made later"
            ) from None
