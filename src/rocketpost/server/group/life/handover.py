"""The handover of leadership to another member, while the leader serves or when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from rocketpost.errors import ReplicationError
from rocketpost.raft.actions import Action
from rocketpost.raft.election import Role
from rocketpost.raft.node import RaftNode

SECONDS_MAX: Final = 2.0
"""Time after which a handover has failed; the state machine gives up before."""


class Handover:
    """Hands leadership over, and waits for the outcome. Owned by the loop.

    Args:
        node: The state machine.
        is_up: Tells whether messages can be sent to a peer.
        carry_out: Carries out actions of the state machine.
    """

    def __init__(
        self,
        node: RaftNode,
        *,
        is_up: Callable[[str], bool],
        carry_out: Callable[[Sequence[Action]], None],
    ) -> None:
        self._node = node
        self._is_up = is_up
        self._carry_out = carry_out
        self._ended: asyncio.Event | None = None

    def note_end(self) -> None:
        """Note that this member does not lead any more, or that the handover was given up."""
        if self._ended is not None:
            self._ended.set()

    async def run(self, to: str) -> None:
        """Let a member lead, the one with most of the log if ``to`` is empty.

        Raises:
            ReplicationError: This one does not lead, or the other one did not take over.
        """
        node, term = self._node, self._node.term
        if node.role is not Role.LEADER:
            raise ReplicationError(f"{node.node} does not lead; ask {node.leader or 'again later'}")
        target = to or self._choose()
        if to and not self._is_up(to) and to != node.node and to in node.members.voters:
            raise ReplicationError(f"{to} cannot be reached")
        ended = self._ended = asyncio.Event()
        try:
            self._carry_out(node.transfer(target))
            async with asyncio.timeout(SECONDS_MAX):
                await ended.wait()
        except TimeoutError:
            pass  # the role shows whether it succeeded
        finally:
            self._ended = None
        if node.role is Role.LEADER and node.term == term:
            raise ReplicationError(f"{target} did not take over in time; {node.node} leads on")

    def _choose(self) -> str:
        node = self._node
        ready = [
            (progress.match, peer)
            for peer, progress in node.progress.items()
            if peer in node.members.voters and self._is_up(peer) and not progress.suspect
        ]
        if not ready:
            raise ReplicationError("no other member can take over")
        return max(ready)[1]
