"""A member's state machine in the state that its store has."""

from __future__ import annotations

import random
from typing import Final

from rocketpost.model.members import Configuration, Member
from rocketpost.raft.config import RaftConfig
from rocketpost.raft.follower import Suspicion
from rocketpost.raft.messages import MemberRecord, Members, TermSpan
from rocketpost.raft.node import RaftNode
from rocketpost.server.settings.group import GroupConfig
from rocketpost.store.member.hard_state import LOG_LOST, STATE_LOST
from rocketpost.store.member.member_store import MemberStore

_SUSPICIONS: Final = {
    0: Suspicion.NONE,
    LOG_LOST: Suspicion.LOG,
    STATE_LOST: Suspicion.STATE,
}


def initial_members(config: GroupConfig) -> Configuration:
    """Return the configuration with which every member of a new group begins."""
    members = sorted(config.members.values())
    return Configuration(0, tuple(Member(peer.node, peer.address) for peer in members))


def open_node(config: GroupConfig, store: MemberStore, raft: RaftConfig) -> RaftNode:
    """Return the state machine in the state that the store has."""
    state = store.state
    configurations = state.configurations or (initial_members(config),)
    return RaftNode(
        config.node,
        config=raft,
        chance=random.Random(),
        term=state.term,
        vote=state.vote,
        first=store.store.first_position,
        end=store.store.written_position,
        commit=max(state.commit, store.store.confirmed_position),
        spans=[TermSpan(*span) for span in store.spans],
        members=[_record_of(each) for each in configurations],
        suspicion=_SUSPICIONS[state.suspect],
    )


def _record_of(configuration: Configuration) -> MemberRecord:
    members = configuration.members
    return MemberRecord(
        configuration.position,
        Members(
            frozenset(each.name for each in members if each.is_voter),
            frozenset(each.name for each in members if not each.is_voter),
        ),
    )
