"""A member's past: what its disk says about it, and what the other members remember.

Members introduce themselves whenever they connect. Each tells the other what it has on its disk,
and what it remembers of the other one. So a member notices losses that its own files do not show,
such as the replacement of its whole store by an older copy:

- It once sent a message of a later term than the one on its disk.
- It has saved its promises more often than the files on its disk say.
- The leader has its acknowledgement of bytes that its log lacks.

Such a member is suspect from then on: it neither votes nor leads until a leader has repaired it.
Members remember this as long as they run. They forget it when all of them are restarted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from rocketpost.codec.group.frames import Framed
from rocketpost.codec.group.hello import History
from rocketpost.codec.group.questions import Piece, Question
from rocketpost.raft.actions import Action
from rocketpost.raft.messages import PreVote, PreVoteReply
from rocketpost.raft.node import RaftNode
from rocketpost.server.group.life.founding import Founding, Verdict
from rocketpost.server.group.node_opening import SUSPICIONS
from rocketpost.server.group.roster import Roster
from rocketpost.store.member.hard_state import LOG_LOST, STATE_LOST
from rocketpost.store.member.member_store import MemberStore

logger = logging.getLogger(__name__)

_NOTHING_SAID: Final = (PreVote, PreVoteReply, Question, Piece)
"""Messages that do not state a term which their sender has saved."""


class Loss(NamedTuple):
    """Something that a member has lost, as another one remembers."""

    kind: int
    """``LOG_LOST`` or ``STATE_LOST``."""
    reason: str


def find_loss(own: History, remembered: History, teller: History) -> Loss | None:
    """Return what a member has lost, if another one remembers more than its disk has.

    Args:
        own: The facts on the member's disk.
        remembered: The facts that it must have, as the other one remembers.
        teller: The facts of the other one. Positions that it remembers are of its own term: in a
            later one, the member may have cut its log for another leader.
    """
    if remembered.term > own.term:
        return Loss(
            STATE_LOST, f"it has sent messages of term {remembered.term}, but is in {own.term}"
        )
    if remembered.saves > own.saves:
        return Loss(
            STATE_LOST,
            f"it has saved its promises {remembered.saves} times, but the newest on disk is number"
            f" {own.saves}",
        )
    if remembered.end > own.end and teller.term >= own.term:
        return Loss(
            LOG_LOST, f"its log ends at {own.end}, but it has acknowledged {remembered.end}"
        )
    return None


class Past:
    """Keeps what this member and the others know of their pasts. Owned by the loop.

    Args:
        node: The state machine.
        store: This member's store.
        others: The ids of the other members, as the settings name them.
        roster: The members of the group.
        carry_out: Carries out actions of the state machine.
        later: Runs work that saves something; if that fails, this member takes no part any more.
    """

    def __init__(
        self,
        node: RaftNode,
        store: MemberStore,
        *,
        others: Iterable[str],
        roster: Roster,
        carry_out: Callable[[Sequence[Action]], None],
        later: Callable[[Awaitable[None]], None],
    ) -> None:
        self._node = node
        self._store = store
        self._roster = roster
        self._carry_out = carry_out
        self._later = later
        self._terms: dict[str, int] = {}
        self._saves: dict[str, int] = {}
        self._doubted = store.state.suspect
        self._saving = asyncio.Lock()
        self._founding = Founding(self.history(), others) if store.is_unproven else None

    @property
    def obstacle(self) -> str:
        """Reason why this member takes no part in the group yet; empty if it does."""
        return self._founding.obstacle if self._founding is not None else ""

    @property
    def is_stranger(self) -> bool:
        """Whether this member has messages from outside the group, so it ignores every leader."""
        return self._founding is not None and self._founding.is_stranger

    def history(self) -> History:
        """Return what this member has on its disk."""
        return History(
            term=max(self._store.state.term, self._node.term),
            end=self._node.log.end,
            saves=self._store.save_count,
        )

    def recall(self, peer: str) -> History:
        """Return what a peer must have on its disk, as far as this member knows."""
        progress = self._node.progress.get(peer)
        is_sound = progress is not None and not progress.suspect
        return History(
            term=self._terms.get(peer, 0),
            end=progress.match if progress is not None and is_sound else 0,
            saves=self._saves.get(peer, 0),
        )

    def note_message(self, peer: str, message: Framed) -> None:
        """Remember the term of a message: its sender has saved it."""
        if not isinstance(message, _NOTHING_SAID) and message.term > self._terms.get(peer, 0):
            self._terms[peer] = message.term

    def note_history(self, peer: str, history: History, remembered: History) -> None:
        """Note what a peer states about itself, and about this member."""
        self._saves[peer] = max(history.saves, self._saves.get(peer, 0))
        if self._founding is not None:
            self._founding.note(peer, history)
        own = self.history()
        loss = find_loss(own, remembered, history)
        if loss is not None and self._known_loss < loss.kind:
            self._doubted = loss.kind
            reason = f"{peer} remembers more than this member's disk has: {loss.reason}"
            logger.error("this member may not vote or lead until its log is repaired: %s", reason)
            self._store.suspicions = (*self._store.suspicions, reason)
            self._carry_out(self._node.doubt(SUSPICIONS[loss.kind]))
            self._later(self._save_loss(loss.kind, remembered.saves))
        elif remembered.saves > own.saves:
            self._later(self._save_loss(0, remembered.saves))

    async def _save_loss(self, kind: int, saves: int) -> None:
        """Save a loss, and count saves from the number that a peer remembers, in this order.

        Else the peer would find the same loss again, whenever it connects, after it is repaired.

        Raises:
            StoreError: It cannot be saved.
        """
        async with self._saving:
            await asyncio.to_thread(self._store.doubt_blocking, kind, saves=saves)

    async def save_repair(self) -> None:
        """Save that the log is repaired, unless another loss has been found since.

        Raises:
            StoreError: It cannot be saved.
        """
        async with self._saving:
            if not self._node.is_suspect:
                await asyncio.to_thread(self._store.clear_suspicion_blocking)

    @property
    def _known_loss(self) -> int:
        """Kind of the loss for which this member is suspect; a later one may be worse."""
        saved = self._store.state.suspect
        return max(saved, self._doubted) if self._node.is_suspect else saved

    async def settle_founding(self) -> None:
        """Find out whether the group is new, if this member does not know."""
        if self._founding is None:
            return
        founding = self._founding
        verdict = await founding.decide()
        if founding.is_stranger:
            logger.error("this member takes no part: %s", founding.obstacle)
            return
        self._founding = None
        if verdict is Verdict.OLD or self._node.term:
            logger.warning("no past on this disk: this member gets the log before it votes")
            return
        self._later(self._begin(founding.floor))

    async def _begin(self, floor: int) -> None:
        """Begin a new group.

        Raises:
            StoreError: The beginning cannot be saved.
        """
        await asyncio.to_thread(self._store.begin_group_blocking, floor)
        await self._roster.save()
        if not self._node.term:
            members = ", ".join(sorted(self._roster.addresses))
            logger.info("the group is new: members=%s", members)
            self._carry_out(self._node.trust(floor))
