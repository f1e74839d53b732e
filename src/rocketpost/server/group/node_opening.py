"""A member's state machine in the state that its store has."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from rocketpost.raft.config import RaftConfig
from rocketpost.raft.follower import Suspicion
from rocketpost.raft.messages import MemberRecord, TermSpan
from rocketpost.raft.node import RaftNode
from rocketpost.server.settings.group import GroupConfig
from rocketpost.store.member.hard_state import LOG_LOST, LOG_UNUSABLE, STATE_LOST
from rocketpost.store.member.member_store import MemberStore

RAFT: Final = RaftConfig(gather_bytes=64 * 1024, spare_bytes=1024 * 1024)
"""Times and sizes of a broker's state machine."""
SUSPICIONS: Final = {
    0: Suspicion.NONE,
    LOG_LOST: Suspicion.LOG,
    STATE_LOST: Suspicion.STATE,
    LOG_UNUSABLE: Suspicion.STATE,
}
"""The suspicion with which a member begins, by the loss that its store has saved."""


def open_node(
    config: GroupConfig, store: MemberStore, members: Sequence[MemberRecord], raft: RaftConfig
) -> RaftNode:
    """Return the state machine in the state that the store has."""
    state = store.state
    return RaftNode(
        config.node,
        config=raft,
        chance=random.Random(random.getrandbits(64)),
        term=state.term,
        vote=state.vote,
        first=store.store.first_position,
        end=store.store.written_position,
        commit=max(state.commit, store.store.confirmed_position),
        spans=[TermSpan(*span) for span in store.spans],
        members=members,
        suspicion=SUSPICIONS[state.suspect],
        floor=state.floor,
    )
